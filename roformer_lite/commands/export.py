"""`roformer-lite export`: a saved model in the form of other runtimes."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..errors import InputError
from ..exporting import (
    EXPORTED_ENGINES,
    FORMATS,
    GRAPH_FORMATS,
    QUANTIZATIONS,
    check_libraries,
    export_ctranslate2,
    export_gguf,
    export_model,
)
from ..exporting.onnx import write_onnx
from ..exporting.sentence_embeddings import is_bare_encoder, write_pooling
from ..model_name import check_model_name
from ..output_directory import RESULTS_FILE, complete_directory, require_space
from ..output_place import new_directory
from ..saved_files import read_optional_object
from ..saved_model import load_model, load_tokenizer
from ..sentence_encoder import SentenceEncoder
from .command_parser import CommandParser

_GRAPH_SIZE = 2**19  # bytes; more than a graph takes without its weights
_QUANTIZATIONS = "; ".join(f"{name}: {', '.join(kinds)}" for name, kinds in QUANTIZATIONS.items())


@dataclass
class ExportArguments:
    """Options of `roformer-lite export`."""

    format: str = field(default="onnx", metadata={"help": f"What to write: {', '.join(FORMATS)}."})
    quantization: str | None = field(
        default=None,
        metadata={"help": f"How to store the weights, where the format has a choice ({_QUANTIZATIONS})."},
    )
    embeddings: bool = field(
        default=False,
        metadata={
            "help": "onnx, openvino: one vector for a text, pooled as `classifier_pooling` says, in place of what the "
            "head gives. Without a head it is so anyway."
        },
    )

    def __post_init__(self):
        if self.embeddings and self.format not in ("onnx", "openvino"):
            raise InputError(f"--embeddings is for --format onnx and openvino; {self.format} has its own")
        if self.format not in FORMATS:
            raise InputError(f"--format {self.format} is unknown; choose one of {', '.join(FORMATS)}")
        kinds = QUANTIZATIONS.get(self.format)
        if self.quantization is None or self.quantization in (kinds or ()):
            return
        if kinds is None:
            known = ", ".join(QUANTIZATIONS)
            raise InputError(f"--quantization {self.quantization}: --format {self.format} has none; {known} have")
        raise InputError(f"--quantization {self.quantization} is unknown; choose one of {', '.join(kinds)}")


def main(argv: list[str]) -> None:
    """Run `roformer-lite export DIR OUT`."""
    parser = CommandParser(
        "export",
        "Write a saved model in the form of another runtime, with its tokenizer. OUT must not exist yet.",
        [ExportArguments],
        DIR="the model's directory",
        OUT="the directory to write",
    )
    options, paths = parser.parse(argv)
    check_model_name(paths.dir)
    check_libraries(options.format)
    out = new_directory(paths.out)
    settings = read_optional_object(paths.dir, RESULTS_FILE).get("settings", {})
    tokenizer = load_tokenizer(paths.dir)
    if tokenizer is None and options.format not in GRAPH_FORMATS:
        raise InputError(f"{paths.dir} has no tokenizer, which --format {options.format} takes its vocabulary from")
    model = load_model(paths.dir).float()  # the precision that every runtime has
    with complete_directory(out) as directory:
        parts = _write(model, tokenizer, directory, options)
        if tokenizer is not None:
            tokenizer.save_pretrained(directory)
        if options.format in EXPORTED_ENGINES:
            _save_what_predict_reads(model, settings, directory)
    print(f"{type(model).__name__} as {options.format}, {parts}: {out}")


def _save_what_predict_reads(model: PreTrainedModel, settings: Any, directory: Path) -> None:
    model.config.dtype = "float32"
    model.config.save_pretrained(directory)
    if model.can_generate():
        model.generation_config.save_pretrained(directory)
    (directory / RESULTS_FILE).write_text(json.dumps({"settings": settings}, indent=2) + "\n", "utf-8")


def _write(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase | None,
    directory: Path,
    options: ExportArguments,
) -> str:
    """Fill `directory`, with a folder for an engine of `predict`; what was written, for the user."""
    folder = directory
    if options.format in EXPORTED_ENGINES:
        folder = directory / options.format
        folder.mkdir()
    if options.format == "ctranslate2":
        loader = export_ctranslate2(model, tokenizer, folder, options.quantization)
        return f"to be loaded by ctranslate2.{loader}"
    if options.format == "gguf":
        return f"architecture {export_gguf(model, tokenizer, folder, options.quantization)}"
    return _write_graphs(model, folder, options)


def _write_graphs(model: PreTrainedModel, folder: Path, options: ExportArguments) -> str:
    gives_embeddings = options.embeddings or (options.format in EXPORTED_ENGINES and is_bare_encoder(model))
    traced = SentenceEncoder(model) if gives_embeddings else model
    exported = export_model(traced, options.format)
    weights = sum(tensor.nbytes for tensor in traced.state_dict().values())
    require_space(folder, len(exported.components) * (weights + _GRAPH_SIZE))
    if options.format == "torch":
        exported.save_pretrained(folder)
    elif options.format == "onnx":
        write_onnx(exported, folder, options.quantization)
    else:
        exported.config = None  # which lies in the directory above
        exported.save_pretrained(folder)
    if gives_embeddings:
        write_pooling(traced.config, folder.parent)
    return ", ".join([*exported.components, *(["embeddings"] if gives_embeddings else [])])
