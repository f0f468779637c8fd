"""`roformer-lite export`: a saved model in the form of other runtimes."""

import io
import json
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from transformers.hf_argparser import HfArg

from ..command_parser import CommandParser
from ..errors import InputError, check_model_name
from ..export.formats import (
    FOLDER_FORMATS,
    FORMATS,
    GRAPH_FORMATS,
    QUANTIZATIONS,
    check_format,
    check_libraries,
)
from ..output import RESULTS_FILE, complete_directory, new_directory

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

_QUANTIZATIONS = "; ".join(f"{name}: {', '.join(kinds)}" for name, kinds in QUANTIZATIONS.items())


@dataclass
class ExportArguments:
    """Options of `roformer-lite export`."""

    format: str = HfArg(default="onnx", help=f"What to write: {', '.join(FORMATS)}.")
    quantization: str | None = HfArg(
        default=None,
        help=f"How to store the weights, where the format has a choice ({_QUANTIZATIONS}).",
    )
    embeddings: bool = HfArg(
        default=False,
        help=(
            "onnx: one vector for a text, pooled as `classifier_pooling` says, in place of "
            "what the head gives. Without a head it is so anyway."
        ),
    )

    def __post_init__(self):
        if self.embeddings and self.format != "onnx":
            raise InputError(f"--embeddings is for --format onnx, not for {self.format}")
        check_format(self.format, self.quantization)


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

    from ..saved_model import load_config, load_model, load_tokenizer, naming, read_optional_object
    from ..sentence_encoder import check_sentence_modules

    training = read_optional_object(paths.dir, RESULTS_FILE)
    settings = training.get("settings", {})
    if training.get("task") == "rerank":
        raise InputError(
            f"{paths.dir} is a reranker: its scores are what sentence-transformers makes of the model's numbers, and "
            "an exported model would give other ones; open it with CrossEncoder"
        )
    check_sentence_modules(paths.dir)
    tokenizer = load_tokenizer(paths.dir, load_config(paths.dir))
    if tokenizer is None and options.format not in GRAPH_FORMATS:
        raise InputError(
            f"{paths.dir} has no tokenizer, which --format {options.format} takes its vocabulary from"
        )
    model = load_model(paths.dir).float()  # the precision that every runtime has
    place = out / options.format if options.format in FOLDER_FORMATS else out
    with (
        complete_directory(out) as directory,
        naming(paths.dir, f"cannot be exported as {options.format}"),
        # torch prints the progress of its exporter.
        redirect_stdout(io.StringIO()),
    ):
        folder = directory / place.relative_to(out)
        folder.mkdir(exist_ok=True)
        written = _write(model, tokenizer, folder, options)
        if tokenizer is not None:
            tokenizer.save_pretrained(directory)
        if options.format == "onnx":
            _write_beside(model, settings, directory)
    print(f"{type(model).__name__} as {options.format}, {written}: {place}")


def _write(
    model: "PreTrainedModel",
    tokenizer: "PreTrainedTokenizerBase | None",
    folder: Path,
    options: ExportArguments,
) -> str:
    """Fill `folder`, which exists; what was written, for the user."""
    if options.format == "ctranslate2":
        from hf_roformer_lite.conversion.ctranslate2 import export_ctranslate2

        return f"to be loaded by ctranslate2.{export_ctranslate2(model, tokenizer, folder, options.quantization)}"
    if options.format == "gguf":
        from hf_roformer_lite.conversion.gguf import export_gguf

        return f"architecture {export_gguf(model, tokenizer, folder, options.quantization)}"
    from ..export.graphs import write_graphs, write_pooling
    from ..sentence_encoder import SentenceEncoder, is_bare_encoder

    gives_embeddings = options.format == "onnx" and (options.embeddings or is_bare_encoder(model))
    traced = SentenceEncoder(model) if gives_embeddings else model
    graphs = write_graphs(traced, folder, options.format, options.quantization)
    if gives_embeddings:
        write_pooling(traced.config, folder.parent)
    return ", ".join([*graphs, *(["embeddings"] if gives_embeddings else [])])


def _write_beside(model: "PreTrainedModel", settings: object, directory: Path) -> None:
    """Write what `predict` reads besides the graphs."""
    model.config.dtype = "float32"
    model.config.save_pretrained(directory)
    if model.can_generate():
        model.generation_config.save_pretrained(directory)
    (directory / RESULTS_FILE).write_text(
        json.dumps({"settings": settings}, indent=2) + "\n", "utf-8"
    )
