"""Reading and writing checkpoint directories. Code inside a checkpoint is never executed."""

import json
import shutil
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from transformers import AutoConfig, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

import hf_roformer_lite
from hf_roformer_lite.errors import InputError
from hf_roformer_lite.output_directory import complete_directory

from .registry import export, find_converter

INDEX_FILES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
WEIGHT_FILES = ("model.safetensors", "pytorch_model.bin", "model.pt", "model.pth")
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "vocab.txt", "special_tokens_map.json")

_STOCK_TOKENIZERS = {
    "RoFormerLiteTokenizer": "PreTrainedTokenizerFast",
    "RoFormerLiteJiebaTokenizer": "RoFormerTokenizer",
}


class Checkpoint(Mapping[str, torch.Tensor]):
    """The tensors of one or several files by name. Each is read when it is first needed."""

    def __init__(self, files: list[Path]):
        self._files: dict[str, Any] = {}
        for path in files:
            opened = _open_file(path)
            self._files |= dict.fromkeys(opened.keys(), opened)

    def __getitem__(self, name: str) -> torch.Tensor:
        opened = self._files[name]
        return opened[name] if isinstance(opened, dict) else opened.get_tensor(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)


def _open_file(path: Path) -> Any:
    try:
        if path.suffix == ".safetensors":
            return safe_open(path, framework="pt")
        # Files written before torch 1.6 are not zip archives and cannot be mapped into memory.
        loaded = torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))
    except (OSError, SafetensorError) as error:
        raise InputError(f"{path}: cannot be read: {error}") from error
    except Exception as error:  # torch raises many types, all of which mean that the file is not a plain state_dict
        raise InputError(
            f"{path}: torch.load(weights_only=True) refuses it; save its state_dict as safetensors: {error}"
        ) from error
    if not isinstance(loaded, dict) or not all(isinstance(value, torch.Tensor) for value in loaded.values()):
        raise InputError(f"{path}: holds something other than a state_dict, a dictionary of names and tensors")
    return loaded


def open_checkpoint(directory: str | Path) -> tuple[Checkpoint, dict[str, Any]]:
    """Tensors and config of a directory: `config.json` with safetensors or torch files, whole or in shards.

    Raises:
        InputError: when a file is missing or cannot be read.
    """
    directory = Path(directory)
    config_file = directory / "config.json"
    try:
        config = json.loads(config_file.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{config_file}: cannot be read: {error}") from error
    if not isinstance(config, dict):
        raise InputError(f"{config_file}: must hold an object, the config in the source's own field names")
    for index_file in INDEX_FILES:
        if (directory / index_file).is_file():
            try:
                shards = set(json.loads((directory / index_file).read_text("utf-8"))["weight_map"].values())
            except (ValueError, KeyError, AttributeError) as error:
                raise InputError(f"{directory / index_file}: is not an index of shards: {error}") from error
            if any(Path(shard).name != shard for shard in shards):
                raise InputError(f"{directory / index_file}: names files outside its directory")
            return Checkpoint([directory / shard for shard in sorted(shards)]), config
    for weight_file in WEIGHT_FILES:
        if (directory / weight_file).is_file():
            return Checkpoint([directory / weight_file]), config
    raise InputError(f"{directory}: has no weights; looked for {', '.join((*INDEX_FILES, *WEIGHT_FILES))}")


def convert_checkpoint(name: str, path: str | Path, out: str | Path) -> PreTrainedModel:
    """Convert the checkpoint directory `path` of the source `name` into the directory `out`, with its tokenizer if it
    has one.

    Nothing is written outside `out`, and `out` appears only when it is complete.

    Raises:
        InputError: when names, shapes or fields do not fit, or `out` exists and is not empty.
    """
    out = new_directory(out)
    state_dict, config = open_checkpoint(path)
    model = find_converter(name).convert(state_dict, config, copy=False)
    tokenizer = load_tokenizer(path, find_converter(name).tokenizer_class)
    with complete_directory(out) as unfinished:
        model.save_pretrained(unfinished)
        if tokenizer is not None:
            tokenizer.save_pretrained(unfinished)
    return model


def export_checkpoint(name: str, path: str | Path, out: str | Path) -> None:
    """Write the model of this package at `path` as a checkpoint of the source `name` to the directory `out`.

    Raises:
        InputError: when the source has no equivalent of the model, or `out` exists and is not empty.
    """
    out = new_directory(out)
    state_dict, config = export(name, load_model(path))
    with complete_directory(out) as unfinished:
        save_file(state_dict, unfinished / "model.safetensors", metadata={"format": "pt"})
        (unfinished / "config.json").write_text(json.dumps(config, indent=2) + "\n", "utf-8")
        for file in filter(Path.is_file, (Path(path) / file for file in _TOKENIZER_FILES)):
            shutil.copy(file, unfinished)
        _name_stock_tokenizer(unfinished / "tokenizer_config.json")


def _name_stock_tokenizer(config_file: Path) -> None:
    """Write the name of the stock class that reads the same files: the tokenizer then opens without this package."""
    if config_file.is_file():
        config = json.loads(config_file.read_text("utf-8"))
        config["tokenizer_class"] = _STOCK_TOKENIZERS.get(config["tokenizer_class"], config["tokenizer_class"])
        config_file.write_text(json.dumps(config, indent=2, ensure_ascii=False) + "\n", "utf-8")


def load_model(path: str | Path) -> PreTrainedModel:
    """The model of this package at `path`, with the head it was saved with."""
    try:
        config = AutoConfig.from_pretrained(path)
        (architecture,) = config.architectures or [None]
        return getattr(hf_roformer_lite, architecture).from_pretrained(path)
    except (OSError, ValueError, AttributeError, TypeError) as error:
        raise InputError(f"{path}: holds no model of this package: {error}") from error


def load_tokenizer(path: str | Path, tokenizer_class: type = AutoTokenizer) -> PreTrainedTokenizerBase | None:
    """The tokenizer of a directory; None without one."""
    if not any((Path(path) / file).is_file() for file in _TOKENIZER_FILES):
        return None
    try:
        return tokenizer_class.from_pretrained(path)
    except (OSError, ValueError, ImportError) as error:
        raise InputError(f"{path}: its tokenizer cannot be loaded: {error}") from error


def new_directory(out: str | Path) -> Path:
    """`out` as a path; an `InputError` when it exists and is anything but an empty directory."""
    out = Path(out)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise InputError(f"{out} exists already; choose a new directory")
    return out
