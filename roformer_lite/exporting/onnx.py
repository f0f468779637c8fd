"""Graphs as ONNX files: each one file with its weights inside, and where int8 is asked for, another one beside it.

The names are those that transformers.js asks for: `model.onnx`, and `model_quantized.onnx` in int8.
"""

import dataclasses
import json
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import InputError
from .formats import QUANTIZATIONS, quantized_name

if TYPE_CHECKING:
    from transformers.exporters import ExportedModel

_LARGEST_FILE = 2**31 - 2**24  # bytes; protobuf has no larger message, and the graph itself needs room


def write_onnx(exported: "ExportedModel", directory: Path, quantization: str | None = None) -> None:
    """Write exported graphs into `directory`, which exists.

    Args:
        exported: What `export_model(model, "onnx")` returned.
        directory: Takes a file for each graph, and `export.json`, which names the file that `predict` runs (that in
            int8 if there is one) and says how the graph is called.
        quantization: `int8` writes the graphs in this type as well: the weights of matrix products and the table of
            embeddings in 8 bits, activations in 8 bits that are found anew for each batch. Default: float32 alone.

    Raises:
        InputError: for an unknown quantization, or a graph of more than 2 GiB, which no ONNX file can hold.
    """
    if quantization not in (None, *QUANTIZATIONS["onnx"]):
        raise InputError(f"{quantization=} is unknown; choose one of {', '.join(QUANTIZATIONS['onnx'])}")
    components = {}
    for name, component in exported.components.items():
        file = f"{name}.onnx"
        _save(component.program, directory / file)
        if quantization is not None:
            file = quantized_name(name)
            _save(_in_int8(component.program), directory / file)
        components[name] = {"file": file, "metadata": dataclasses.asdict(component.metadata)}
    manifest = {"export_format": "onnx", "components": components}
    (directory / "export.json").write_text(json.dumps(manifest, indent=2) + "\n", "utf-8")


def _save(program: Any, path: Path) -> None:
    import onnx_ir

    weights = sum(value.const_value.nbytes for value in program.graph.initializers.values())
    if weights > _LARGEST_FILE:
        raise InputError(f"{path.name} would have {weights:,} bytes of weights, and an ONNX file holds 2 GiB at most")
    onnx_ir.save(program, path)


def _in_int8(program: Any) -> Any:
    """The graph with matrices in 8 bits, one scale for each output channel.

    Weights have a sign and 7 bits, because processors without VNNI add two products in 16 bits, where 8 bits overflow.
    """
    from transformers.exporters import OnnxRuntimeDynamicConfig, OnnxRuntimeQuantizer

    config = OnnxRuntimeDynamicConfig(per_channel=True, reduce_range=True)
    logging.disable(logging.WARNING)  # about masks and other whole numbers, which stay as they are
    try:
        return OnnxRuntimeQuantizer(config).quantize(program, {}, "onnx")
    finally:
        logging.disable(logging.NOTSET)
