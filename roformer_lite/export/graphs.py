"""Exports models as graphs, with transformers' exporters.

A graph takes padded batches of any size and length. A model that generates text is exported as
several graphs. `prefill` reads the prompt. `decode` reads one more token, and takes and returns the
keys and values of all tokens before it. An encoder–decoder also has `encoder`, which runs first.
`tutorials/translate_onnx.py` shows how to generate with them.
"""

import dataclasses
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from transformers import GenerationConfig, PreTrainedModel

from ..errors import InputError
from ..options.formats import GRAPH_FORMATS
from ..output import write_json

if TYPE_CHECKING:
    from transformers.exporters import ExportedModel

# A protobuf message cannot be larger than 2 GiB, and the graph itself needs some of these bytes.
MAX_FILE_BYTES = 2**31 - 2**24


def export_model(model: PreTrainedModel, format: str = "onnx") -> "ExportedModel":
    """Export a RoFormerLite model of any class.

    Args:
        model: The model, which is set to evaluation mode.
        format: `onnx`, which needs the extra `export` and in which norms, GELU and projections
            become operations of onnxruntime, or `torch`, the format of torch.export.

    Returns:
        The `ExportedModel` of transformers, which can be called and saved. Its `components` are the
        graph `model`, or the graphs `prefill`, `decode` and `encoder` of a model that generates
        text. Their inputs are `input_ids` (`inputs_embeds` if `vocab_size` is 0), `attention_mask`,
        `token_type_ids` if `type_vocab_size` is not 0, and the further inputs that `generate`
        passes to `forward`.

    Raises:
        InputError: for a decoder that needs the states of an encoder, for dynamic rotary positions,
            and for a decoder with sliding-window layers if the format is `torch`.
    """
    from transformers.exporters import AutoExportConfig, AutoHfExporter

    if getattr(model.config, "add_cross_attention", False):
        raise InputError(
            f"{type(model).__name__} needs the states of an encoder; export the whole pair"
        )
    if any(getattr(module, "rope_type", None) == "dynamic" for module in model.modules()):
        raise InputError(
            "rope_type='dynamic' computes its frequencies from the longest text of a batch, which "
            "a graph cannot do; run the model with torch, or train one with rope_type 'linear', "
            "'yarn', 'llama3' or 'longrope'"
        )
    fusions = {"ort_fusions": "cpu"} if format == "onnx" else {}
    config = AutoExportConfig.from_dict(
        {"export_format": GRAPH_FORMATS[format], "dynamic": True, **fusions}
    )
    exporter = AutoHfExporter.from_config(config)
    model.eval()
    sample = sample_inputs(model)
    if not model.can_generate():
        sample["use_cache"] = False
        return exporter.export(model, sample, config)
    if (
        format == "torch"
        and "sliding_attention" in model.config.get_text_config(decoder=True).layer_types
    ):
        raise InputError(
            "layer_types has sliding_attention, whose cache counts its tokens outside the graph, "
            "so that a torch program could decode only one step; export with format='onnx'"
        )
    greedy = GenerationConfig(do_sample=False, num_beams=1)
    exported = exporter.export_for_generation(model, sample, config, generation_config=greedy)
    if model.config.is_encoder_decoder:
        stack = model.get_encoder()
        encoder = exporter.export(stack, sample_inputs(stack), config)
        exported.components = {"encoder": encoder.components["model"], **exported.components}
    exported.generation_config = model.generation_config
    return exported


def sample_inputs(model: PreTrainedModel, num_rows: int = 2) -> dict[str, Any]:
    """Inputs for tracing `model`. No dimension is 1, because a trace would regard it as a
    constant."""
    # The shape is (B, L) or (B, choices, L).
    choices = (3,) if type(model).__name__.endswith("ForMultipleChoice") else ()
    shape = (num_rows, *choices, 5)
    stack = getattr(model.config, "encoder", model.config)
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
            (num_rows, 3), model.config.decoder_start_token_id, device=model.device
        )
    elif stack.type_vocab_size:
        inputs["token_type_ids"] = torch.zeros_like(mask)
    return inputs


def write_graphs(
    model: PreTrainedModel,
    directory: Path,
    format: str,
    quantization: str | None,
) -> list[str]:
    """Export a model to `directory`, which exists.

    ONNX files have the names that transformers.js expects: `model.onnx`, which contains the
    weights, and `model_quantized.onnx`, the same graph in int8. `export.json` names the file that
    `predict` runs, and describes its inputs. transformers itself writes the other format.

    Args:
        model, format: As for `export_model`.
        directory: The directory for the files.
        quantization: `int8` also writes the graphs of `onnx` in this type: the weights of matrix
            products and the table of embeddings have 8 bits, and the scale of activations is
            computed for each batch. None writes only float32.

    Returns:
        The names of the graphs.

    Raises:
        InputError: as `export_model`, and for a graph of more than 2 GiB, which is too large for
            an ONNX file.
    """
    exported = export_model(model, format)
    if format == "onnx":
        _write_onnx(exported, directory, quantization)
    else:
        exported.save_pretrained(directory)
    if not model.can_generate():
        # A trace may have taken its number of rows for a constant.
        for num_rows in (1, 3):
            exported(**sample_inputs(model, num_rows))
    return list(exported.components)


def _write_onnx(exported: "ExportedModel", directory: Path, quantization: str | None) -> None:
    components = {}
    for name, component in exported.components.items():
        file = f"{name}.onnx"
        _save_onnx(component.program, directory / file)
        if quantization is not None:
            file = f"{name}_quantized.onnx"
            _save_onnx(_in_int8(component.program), directory / file)
        components[name] = {"file": file, "metadata": dataclasses.asdict(component.metadata)}
    manifest = {"export_format": "onnx", "components": components}
    write_json(directory / "export.json", manifest)


def _save_onnx(program: Any, path: Path) -> None:
    import onnx_ir

    weights = sum(value.const_value.nbytes for value in program.graph.initializers.values())
    if weights > MAX_FILE_BYTES:
        raise InputError(
            f"{path.name} would have {weights:,} bytes of weights, but the limit of an ONNX file "
            "is 2 GiB"
        )
    for node in program.graph.all_nodes():
        # It names the files of torch and of this package on this machine.
        node.metadata_props.pop("pkg.torch.onnx.stack_trace", None)
    onnx_ir.save(program, path)


def _in_int8(program: Any) -> Any:
    """The graph with matrices in 8 bits, which have one scale for each output channel.

    Only seven bits of a weight are used, because processors without VNNI add two products in 16
    bits, which would overflow.
    """
    from transformers.exporters import OnnxRuntimeDynamicConfig, OnnxRuntimeQuantizer

    config = OnnxRuntimeDynamicConfig(per_channel=True, reduce_range=True)
    # Its method takes the name of the format as well as the member of an enumeration.
    quantizer: Any = OnnxRuntimeQuantizer(config)
    # It warns that it does not change masks and other integers.
    logging.disable(logging.WARNING)
    try:
        return quantizer.quantize(program, {}, "onnx")
    finally:
        logging.disable(logging.NOTSET)
