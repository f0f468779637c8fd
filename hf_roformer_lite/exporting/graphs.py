"""Export: a saved model as graphs that run without this package, by transformers' own exporters.

A graph takes batches of any size and length, with their padding. A model that generates becomes several: `prefill`
reads the prompt, `decode` one token more, with the keys and values of all tokens before it as inputs and outputs;
`encoder` runs before both where there is one. `tutorials/translate_onnx.py` generates with them.
"""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from transformers import GenerationConfig, HfArgumentParser, PreTrainedModel

from ..conversion.checkpoints import load_model, load_tokenizer, new_directory
from ..errors import InputError
from ..output_directory import complete_directory

if TYPE_CHECKING:
    from transformers.exporters import ExportedModel

FORMATS = {"onnx": "onnx", "torch": "dynamo"}  # ours, and transformers' names of them


def export_model(model: PreTrainedModel, format: str = "onnx") -> "ExportedModel":
    """Export a model of this package, every class of it.

    Args:
        model: The model; it is put into evaluation mode.
        format: `onnx` (the extra `export`; runs on onnxruntime and whatever else reads ONNX) or `torch`
            (torch.export).

    Returns:
        transformers' `ExportedModel`: the graphs in `components` (`model`; or `prefill` and `decode`, and `encoder`),
        ready to be called, and `save_pretrained`. Sizes and lengths of batches are free in all of them. Only inputs
        named here are taken: `input_ids` (`inputs_embeds` with `vocab_size=0`), `attention_mask`, `token_type_ids`
        with `type_vocab_size`, and in the graphs of generation what `generate` gives to `forward`.

    Raises:
        InputError: for an unknown format, a missing library, a stack that needs another's states, or `torch` with a
            decoder that has sliding layers.
    """
    try:
        from transformers.exporters import AutoExportConfig, AutoHfExporter
    except ImportError as error:
        raise InputError(f"export needs a transformers with exporters, such as 5.23: {error}") from error
    if format not in FORMATS:
        raise InputError(f"format={format!r} is unknown; choose one of {', '.join(FORMATS)}")
    if getattr(model.config, "add_cross_attention", False):
        raise InputError(f"{type(model).__name__} needs the states of an encoder; export the whole pair")
    config = AutoExportConfig.from_dict({"export_format": FORMATS[format], "dynamic": True})
    try:
        exporter = AutoHfExporter.from_config(config)
    except ImportError as error:
        raise InputError(str(error)) from error
    model.eval()
    if not model.can_generate():
        return exporter.export(model, {**sample_inputs(model), "use_cache": False}, config)
    if format == "torch" and "sliding_attention" in model.config.get_text_config(decoder=True).layer_types:
        raise InputError(
            "layer_types has sliding_attention, whose cache counts its tokens outside the graph: a torch program "
            "would decode one step and no more. Export with format='onnx'"
        )
    greedy = GenerationConfig(do_sample=False, num_beams=1)
    exported = exporter.export_for_generation(model, sample_inputs(model), config, generation_config=greedy)
    if model.config.is_encoder_decoder:
        encoder = exporter.export(model.get_encoder(), sample_inputs(model.get_encoder()), config)
        exported.components = {"encoder": encoder.components["model"], **exported.components}
    exported.generation_config = model.generation_config
    return exported


def sample_inputs(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    """Inputs of `model` to trace it with. No size is 1, which a trace takes for a constant."""
    shape = (2, 3, 5) if type(model).__name__.endswith("ForMultipleChoice") else (2, 5)  # (B, L) or (B, choices, L)
    stack = model.config.encoder if model.config.is_encoder_decoder else model.config
    mask = torch.ones(shape, dtype=torch.long, device=model.device)
    mask[0, ..., 0] = 0
    inputs = {"input_ids": torch.ones_like(mask), "attention_mask": mask}
    if not stack.vocab_size:
        del inputs["input_ids"]
        inputs["inputs_embeds"] = torch.zeros(*shape, stack.embedding_size, dtype=model.dtype, device=model.device)
    if model.config.is_encoder_decoder:
        inputs["decoder_input_ids"] = torch.full((2, 3), model.config.decoder_start_token_id, device=model.device)
    elif stack.type_vocab_size:
        inputs["token_type_ids"] = torch.zeros_like(mask)
    return inputs


@dataclass
class ExportArguments:
    """Options of `roformer-lite export`."""

    format: str = field(default="onnx", metadata={"help": f"What to write: {', '.join(FORMATS)}."})


def main(argv: list[str]) -> None:
    """Run `roformer-lite export DIR OUT`."""
    parser = HfArgumentParser(
        [ExportArguments],
        prog="roformer-lite export",
        description="Write a saved model as graphs for other runtimes, with its tokenizer. OUT must not exist yet.",
        allow_abbrev=False,
    )
    parser.add_argument("directory", metavar="DIR", help="the model's directory")
    parser.add_argument("out", metavar="OUT", help="the directory to write")
    options, paths = parser.parse_args_into_dataclasses(argv, look_for_args_file=False)
    out = new_directory(paths.out)
    tokenizer = load_tokenizer(paths.directory)
    model = load_model(paths.directory).float()  # which every runtime has
    exported = export_model(model, options.format)
    with complete_directory(out) as directory:
        exported.save_pretrained(directory)
        if tokenizer is not None:
            tokenizer.save_pretrained(directory)
    print(f"{type(model).__name__} as {options.format}, {', '.join(exported.components)}: {out}")
