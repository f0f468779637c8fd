"""`roformer-lite export`: a saved model in the form of other runtimes."""

import io
import json
from contextlib import redirect_stdout
from pathlib import Path

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from hf_roformer_lite.conversion.ctranslate2 import export_ctranslate2
from hf_roformer_lite.conversion.gguf import export_gguf

from ..command_options import ExportArguments
from ..errors import InputError
from ..export.formats import FOLDER_FORMATS, GRAPH_FORMATS
from ..export.graphs import write_graphs, write_pooling
from ..output import RESULTS_FILE, complete_directory
from ..saved_model import load_config, load_model, load_tokenizer, naming, read_optional_object
from ..sentence_encoder import SentenceEncoder, check_sentence_modules, is_bare_encoder


def main(options: ExportArguments, source: str, out: Path) -> None:
    """Run `roformer-lite export DIR OUT`.

    Args:
        options: The format, and what it has a choice of.
        source: The model's directory, or its name on the Hub.
        out: The directory to write.
    """
    training = read_optional_object(source, RESULTS_FILE)
    settings = training.get("settings", {})
    if training.get("task") == "rerank":
        raise InputError(
            f"{source} is a reranker: its scores are what sentence-transformers makes of the model's numbers, and "
            "an exported model would give other ones; open it with CrossEncoder"
        )
    check_sentence_modules(source)
    tokenizer = load_tokenizer(source, load_config(source))
    if tokenizer is None and options.format not in GRAPH_FORMATS:
        raise InputError(
            f"{source} has no tokenizer, which --format {options.format} takes its vocabulary from"
        )
    model = load_model(source).float()  # the precision that every runtime has
    place = out / options.format if options.format in FOLDER_FORMATS else out
    with (
        complete_directory(out) as directory,
        naming(source, f"cannot be exported as {options.format}"),
        # torch prints the progress of its exporter.
        redirect_stdout(io.StringIO()),
    ):
        folder = directory / place.relative_to(out)
        folder.mkdir(exist_ok=True)
        written = _write(model, tokenizer, folder, options)
        if tokenizer is not None:
            tokenizer.save_pretrained(directory)
        if options.format == "onnx":
            _write_further_files(model, settings, directory)
    print(f"{type(model).__name__} as {options.format}, {written}: {place}")


def _write(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase | None,
    folder: Path,
    options: ExportArguments,
) -> str:
    """Fill `folder`, which exists; what was written, for the user."""
    if options.format == "ctranslate2":
        return f"to be loaded by ctranslate2.{export_ctranslate2(model, tokenizer, folder, options.quantization)}"
    if options.format == "gguf":
        return f"architecture {export_gguf(model, tokenizer, folder, options.quantization)}"
    gives_embeddings = options.format == "onnx" and (options.embeddings or is_bare_encoder(model))
    traced = SentenceEncoder(model) if gives_embeddings else model
    graphs = write_graphs(traced, folder, options.format, options.quantization)
    if gives_embeddings:
        write_pooling(traced.config, folder.parent)
    return ", ".join([*graphs, *(["embeddings"] if gives_embeddings else [])])


def _write_further_files(model: PreTrainedModel, settings: object, directory: Path) -> None:
    """Write what `predict` reads besides the graphs."""
    model.config.dtype = "float32"
    model.config.save_pretrained(directory)
    if model.can_generate():
        model.generation_config.save_pretrained(directory)
    (directory / RESULTS_FILE).write_text(
        json.dumps({"settings": settings}, indent=2) + "\n", "utf-8"
    )
