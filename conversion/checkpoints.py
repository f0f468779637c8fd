"""Reading and writing checkpoint directories. Code inside a checkpoint is never executed."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from transformers import PreTrainedModel

from roformer_lite.errors import InputError
from roformer_lite.output_directory import complete_directory
from roformer_lite.output_place import check_place
from roformer_lite.saved_files import INDEX_FILES, Checkpoint, find_file, read_object, shards_of, weight_files
from roformer_lite.saved_model import TOKENIZER_FILES, load_model, load_tokenizer

from .beside_weights import copy_sentence_modules, take_generation_config
from .converter import Converter
from .registry import export, family_of, find_converter, fitting_family

WEIGHT_FILES = ("model.safetensors", "pytorch_model.bin", "model.pt", "model.pth")

# What tokenizers without a tokenizer.json read.
_OF_TOKENIZERS = ("vocab.json", "merges.txt", "spiece.model", "sentencepiece.bpe.model", "source.spm", "target.spm")
_STOCK_TOKENIZERS = {
    "RoFormerLiteTokenizer": "PreTrainedTokenizerFast",
    "RoFormerLiteJiebaTokenizer": "RoFormerTokenizer",
}


def open_checkpoint(directory: str | Path) -> tuple[Checkpoint, dict[str, Any]]:
    """Tensors and config of a directory, or of a repository on the Hub: `config.json` with safetensors or torch files,
    whole or in shards.

    Raises:
        InputError: when a file is missing or cannot be read.
    """
    if not os.path.isdir(directory) and (path := find_file(directory, "config.json")) is not None:
        return Checkpoint(weight_files(directory)), read_object(path)
    directory = Path(directory)
    config = read_object(directory / "config.json")
    for index_file in INDEX_FILES:
        if (directory / index_file).is_file():
            return Checkpoint([directory / shard for shard in shards_of(directory / index_file)]), config
    for weight_file in WEIGHT_FILES:
        if (directory / weight_file).is_file():
            return Checkpoint([directory / weight_file]), config
    raise InputError(f"{directory}: has no weights; looked for {', '.join((*INDEX_FILES, *WEIGHT_FILES))}")


def convert_checkpoint(name: str, path: str | Path, out: str | Path) -> PreTrainedModel:
    """Convert the checkpoint directory `path` of the source `name` (`auto`: by its config) into the directory `out`,
    with its tokenizer if it has one.

    Nothing is written outside `out`, and `out` appears only when it is complete.

    Raises:
        InputError: when names, shapes or fields do not fit, or `out` exists and is not empty.
    """
    out = new_directory(out)
    model, converter = load_checkpoint(path, name)
    tokenizer = load_tokenizer(path, converter.tokenizer_class)
    with complete_directory(out) as unfinished:
        model.save_pretrained(unfinished)
        copy_sentence_modules(path, unfinished)
        if tokenizer is not None:
            tokenizer.save_pretrained(unfinished)
    return model


def load_checkpoint(path: str | Path, name: str = "auto") -> tuple[PreTrainedModel, Converter]:
    """The model that a checkpoint of the source `name` becomes, and the converter that knows it.

    Args:
        path: A directory, or a repository on the Hub.
        name: The source; `auto` reads it from the config's `model_type`.

    Raises:
        InputError: when a file is missing or wrong, names or shapes do not fit, or `auto` finds no source.
    """
    state_dict, config = open_checkpoint(path)
    converter = find_converter(source_of(path, config) if name == "auto" else name)
    model = converter.convert(state_dict, config, copy=False)
    take_generation_config(model, path)
    return model, converter


def source_of(path: str | Path, config: dict[str, Any]) -> str:
    """The source of the checkpoint at `path`, by its config.

    Raises:
        InputError: when it tells none.
    """
    try:
        return family_of(config)
    except InputError as error:
        raise InputError(f"{path}: {error}") from error


def export_checkpoint(name: str, path: str | Path, out: str | Path) -> str:
    """Write the model of this package at `path` as a checkpoint of the source `name` to the directory `out`.

    Returns:
        The name of the source; for `auto` that of the family that fits.

    Raises:
        InputError: when the source has no equivalent of the model, or `out` exists and is not empty.
    """
    out = new_directory(out)
    model = load_model(path)
    name = fitting_family(model) if name == "auto" else name
    state_dict, config = export(name, model)
    with complete_directory(out) as unfinished:
        save_file(state_dict, unfinished / "model.safetensors", metadata={"format": "pt"})
        (unfinished / "config.json").write_text(json.dumps(config, indent=2) + "\n", "utf-8")
        for file in filter(Path.is_file, (Path(path) / file for file in (*TOKENIZER_FILES, *_OF_TOKENIZERS))):
            shutil.copy(file, unfinished)
        if model.can_generate():
            model.generation_config.save_pretrained(unfinished)
        copy_sentence_modules(path, unfinished)
        _name_stock_tokenizer(unfinished / "tokenizer_config.json")
    return name


def _name_stock_tokenizer(config_file: Path) -> None:
    """Write the name of the stock class that reads the same files: the tokenizer then opens without this package."""
    if config_file.is_file():
        config = json.loads(config_file.read_text("utf-8"))
        config["tokenizer_class"] = _STOCK_TOKENIZERS.get(config["tokenizer_class"], config["tokenizer_class"])
        config_file.write_text(json.dumps(config, indent=2, ensure_ascii=False) + "\n", "utf-8")


def new_directory(out: str | Path) -> Path:
    """`out` as a path; an `InputError` when it cannot be made, or exists and is anything but an empty directory."""
    out = Path(check_place("", str(out)))
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise InputError(f"{out} exists already; choose a new directory")
    return out
