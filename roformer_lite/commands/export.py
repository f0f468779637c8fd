"""`roformer-lite export`: write a saved model in the format of another runtime."""

import io
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from hf_roformer_lite.conversion.checkpoints import load_model
from hf_roformer_lite.conversion.ctranslate2 import export_ctranslate2
from hf_roformer_lite.conversion.gguf import export_gguf
from hf_roformer_lite.padding_free import padding_free

from ..baseline.files import copy_answer_files
from ..errors import InputError
from ..export.graphs import write_graphs
from ..export.sentence_encoder import SentenceEncoder, check_sentence_modules, is_bare_encoder
from ..options.formats import FOLDER_FORMATS
from ..output import RESULTS_FILE, complete_directory
from ..saved.saved_model import (
    leave_out_segments,
    load_config,
    naming,
    read_optional_object,
    require_tokenizer,
    sentence_modules,
)
from .export_options import ExportArguments


def main(options: ExportArguments, source: str, out: Path) -> None:
    """Run `roformer-lite export DIR OUT`.

    Args:
        options: The format and its options.
        source: The directory of the model, or its name on the Hub.
        out: The directory to write.

    Raises:
        InputError: if the model cannot be exported in this format.
    """
    if read_optional_object(source, RESULTS_FILE).get("task") == "rerank":
        raise InputError(
            f"{source} is a reranker; sentence-transformers computes its scores from the outputs "
            "of the model, so an exported model would return other scores; open it with "
            "CrossEncoder"
        )
    check_sentence_modules(source)
    tokenizer = require_tokenizer(source, load_config(source))
    with naming(source):
        model = load_model(source)
    # Every runtime supports this precision.
    padding_free(model.float(), enabled=not options.padded)
    subfolder = options.format if options.format in FOLDER_FORMATS else ""
    with (
        complete_directory(out) as directory,
        # Exporters raise errors of many types for operations that they do not know.
        naming(source, f"cannot be exported as {options.format}"),
        # The exporter of torch prints its progress.
        redirect_stdout(io.StringIO()),
    ):
        folder = directory / subfolder
        folder.mkdir(exist_ok=True)
        written = _write(model, tokenizer, folder, options)
        tokenizer.save_pretrained(directory)
        if options.format == "onnx":
            model.config.dtype = "float32"
            model.config.save_pretrained(directory)
            if model.can_generate():
                model.generation_config.save_pretrained(directory)
            copy_answer_files(source, directory)
    print(f"{type(model).__name__} as {options.format}, {written}: {out / subfolder}")
    if options.format == "onnx" and "Normalize" in sentence_modules(source):
        print("The vectors of the graph are not normalised; divide each by its length.")


def _write(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    folder: Path,
    options: ExportArguments,
) -> str:
    """Write the model to `folder`, which exists, and return a description for the user."""
    if options.format == "ctranslate2":
        loader = export_ctranslate2(model, tokenizer, folder, options.quantization)
        return f"to be loaded by ctranslate2.{loader}"
    if options.format == "gguf":
        return f"architecture {export_gguf(model, tokenizer, folder, options.quantization)}"
    if options.format == "onnx" and is_bare_encoder(model):
        model = SentenceEncoder(model)
    # A graph takes only what its tokenizer returns, and `generate` passes no segments. Without
    # segments, all tokens have type 0.
    if model.can_generate() or "token_type_ids" not in tokenizer.model_input_names:
        stack: Any = getattr(model.config, "encoder", model.config)
        stack.type_vocab_size = 0
        leave_out_segments(tokenizer, model.config)
    return ", ".join(write_graphs(model, folder, options.format, options.quantization))
