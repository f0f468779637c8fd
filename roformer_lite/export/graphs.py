"""Models as graphs that run without this package, made by transformers' own exporters.

A graph takes batches of any size and length, with their padding. A model that generates becomes
several graphs: `prefill` reads the prompt; `decode` reads one more token, and takes and returns the
keys and values of all tokens before it; an encoder–decoder also has `encoder`, which runs first.
`tutorials/translate_onnx.py` generates with them.
"""

import dataclasses
import json
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from transformers import GenerationConfig, PreTrainedModel

from hf_roformer_lite.model.configuration_roformer_lite import RoFormerLiteConfig

from ..errors import InputError
from ..output import require_space
from .formats import GRAPH_FORMATS

if TYPE_CHECKING:
    from transformers.exporters import ExportedModel

# A protobuf message cannot be larger than 2 GiB, and the graph itself also needs some bytes.
MAX_FILE_BYTES = 2**31 - 2**24
_GRAPH_SIZE = 2**19  # A graph without its weights has fewer bytes.
_POOLINGS = {
    "mean": "pooling_mode_mean_tokens",
    "cls": "pooling_mode_cls_token",
    "last": "pooling_mode_lasttoken",
}


def export_model(model: PreTrainedModel, format: str = "onnx") -> "ExportedModel":
    """Export a model of this package, of any of its classes.

    Args:
        model: The model; it is put into evaluation mode.
        format: `onnx` (the extra `export`; with norms, GELU and projections joined to onnxruntime's
            own operations) or `torch` (torch.export).

    Returns:
        transformers' `ExportedModel`: the graphs in `components` (`model`; or `prefill` and
        `decode`, and `encoder`), ready to be called, and `save_pretrained`. All of them take
        batches of any size and length. Their inputs are `input_ids` (`inputs_embeds` where
        `vocab_size=0`), `attention_mask`, `token_type_ids` where the configuration has a
        `type_vocab_size`, and in the graphs of generation what `generate` passes to `forward`.

    Raises:
        InputError: for a decoder that needs the states of an encoder, and for `torch` with a
            decoder that has sliding-window layers.
    """
    from transformers.exporters import AutoExportConfig, AutoHfExporter

    if getattr(model.config, "add_cross_attention", False):
        raise InputError(
            f"{type(model).__name__} needs the states of an encoder; export the whole pair"
        )
    fusions = {"ort_fusions": "cpu"} if format == "onnx" else {}
    config = AutoExportConfig.from_dict(
        {"export_format": GRAPH_FORMATS[format], "dynamic": True, **fusions}
    )
    exporter = AutoHfExporter.from_config(config)
    model.eval()
    if not model.can_generate():
        inputs: dict[str, Any] = {**sample_inputs(model), "use_cache": False}
        return exporter.export(model, inputs, config)
    if (
        format == "torch"
        and "sliding_attention" in model.config.get_text_config(decoder=True).layer_types
    ):
        raise InputError(
            "layer_types has sliding_attention, whose cache counts its tokens outside the graph: a torch program "
            "could decode only one step. Export with format='onnx'"
        )
    greedy = GenerationConfig(do_sample=False, num_beams=1)
    exported = exporter.export_for_generation(
        model, sample_inputs(model), config, generation_config=greedy
    )
    if model.config.is_encoder_decoder:
        encoder = exporter.export(model.get_encoder(), sample_inputs(model.get_encoder()), config)
        exported.components = {"encoder": encoder.components["model"], **exported.components}
    exported.generation_config = model.generation_config
    return exported


def sample_inputs(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    """Inputs to trace `model` with. No dimension is 1, because a trace would take it for a
    constant."""
    # The shape is (B, L) or (B, choices, L).
    shape = (2, 3, 5) if type(model).__name__.endswith("ForMultipleChoice") else (2, 5)
    stack = model.config.encoder if model.config.is_encoder_decoder else model.config
    mask = torch.ones(shape, dtype=torch.long, device=model.device)
    mask[0, ..., 0] = 0
    inputs = {"input_ids": torch.ones_like(mask), "attention_mask": mask}
    if not stack.vocab_size:
        del inputs["input_ids"]
        inputs["inputs_embeds"] = torch.zeros(
            *shape, stack.embedding_size, dtype=model.dtype, device=model.device
        )
    if model.config.is_encoder_decoder:
        inputs["decoder_input_ids"] = torch.full(
            (2, 3), model.config.decoder_start_token_id, device=model.device
        )
    elif stack.type_vocab_size:
        inputs["token_type_ids"] = torch.zeros_like(mask)
    return inputs


def write_graphs(
    model: PreTrainedModel, directory: Path, format: str = "onnx", quantization: str | None = None
) -> list[str]:
    """Export a model into `directory`, which exists.

    ONNX files have the names that transformers.js asks for: `model.onnx`, each with its weights
    inside, and beside it `model_quantized.onnx` in int8; `export.json` names the file that
    `predict` runs and says how it is called. transformers writes the other format.

    Args:
        model, format: As for `export_model`.
        directory: Takes the files.
        quantization: With `onnx`, `int8` writes the graphs in this type as well: the weights of
            matrix products and the table of embeddings in 8 bits, activations in 8 bits that are
            found anew for each batch. Default: float32 alone.

    Returns:
        The names of the graphs.

    Raises:
        InputError: as `export_model`, and for a graph of more than 2 GiB, which no ONNX file can
            hold.
    """
    exported = export_model(model, format)
    weights = sum(tensor.nbytes for tensor in model.state_dict().values())
    require_space(directory, len(exported.components) * (weights + _GRAPH_SIZE))
    if format != "onnx":
        exported.save_pretrained(directory)
        return list(exported.components)
    components = {}
    for name, component in exported.components.items():
        file = f"{name}.onnx"
        _save_onnx(component.program, directory / file)
        if quantization is not None:
            file = f"{name}_quantized.onnx"
            _save_onnx(_in_int8(component.program), directory / file)
        components[name] = {"file": file, "metadata": dataclasses.asdict(component.metadata)}
    manifest = {"export_format": "onnx", "components": components}
    (directory / "export.json").write_text(json.dumps(manifest, indent=2) + "\n", "utf-8")
    return list(components)


def _save_onnx(program: Any, path: Path) -> None:
    import onnx_ir

    weights = sum(value.const_value.nbytes for value in program.graph.initializers.values())
    if weights > MAX_FILE_BYTES:
        raise InputError(
            f"{path.name} would have {weights:,} bytes of weights, and an ONNX file holds 2 GiB at "
            "most"
        )
    onnx_ir.save(program, path)


def _in_int8(program: Any) -> Any:
    """The graph with matrices in 8 bits, one scale for each output channel.

    Weights have a sign and 7 bits, because processors without VNNI add two products in 16 bits,
    where 8 bits overflow.
    """
    from transformers.exporters import OnnxRuntimeDynamicConfig, OnnxRuntimeQuantizer

    config = OnnxRuntimeDynamicConfig(per_channel=True, reduce_range=True)
    # Its warnings are about masks and other whole numbers, which stay as they are.
    logging.disable(logging.WARNING)
    try:
        return OnnxRuntimeQuantizer(config).quantize(program, {}, "onnx")
    finally:
        logging.disable(logging.NOTSET)


def write_pooling(config: RoFormerLiteConfig, directory: Path) -> None:
    """Write how a text's vector is pooled as `1_Pooling/config.json`, which sentence-transformers
    and text-embeddings-inference read, into `directory`, which exists."""
    modes = {field: pooling == config.classifier_pooling for pooling, field in _POOLINGS.items()}
    (directory / "1_Pooling").mkdir()
    content = {"word_embedding_dimension": config.hidden_size, **modes}
    (directory / "1_Pooling" / "config.json").write_text(
        json.dumps(content, indent=2) + "\n", "utf-8"
    )
