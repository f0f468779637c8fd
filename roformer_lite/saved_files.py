"""The tensors of a checkpoint, for conversion. The other names are those of `saved_model` under their former module,
until nothing imports them.

Nothing here runs code of a file: torch files are read with `weights_only`, and only files that lie in the directory
itself are opened.
"""

import os
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from .errors import InputError
from .saved_model import find_file, read_object, read_optional_object, reason

INDEX_FILES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
_LOADED_WEIGHTS = ("model.safetensors", INDEX_FILES[0], "pytorch_model.bin", INDEX_FILES[1])  # in transformers' order
__all__ = [
    "INDEX_FILES",
    "Checkpoint",
    "find_file",
    "read_object",
    "read_optional_object",
    "reason",
    "shards_of",
    "weight_files",
]


def shards_of(index_file: Path) -> list[str]:
    """The names of the files of weights that an index lists.

    Raises:
        InputError: when the file is not an index, or names anything but files beside it.
    """
    try:
        shards = set(read_object(index_file)["weight_map"].values())
    except (KeyError, AttributeError, TypeError) as error:
        raise InputError(f"{index_file}: is not an index of shards: {reason(error)}") from error
    if not shards or not all(isinstance(shard, str) for shard in shards):
        raise InputError(f"{index_file}: is not an index of shards: weight_map must name a file for every tensor")
    if any(Path(shard).name != shard or shard in ("", ".", "..") for shard in shards):
        raise InputError(f"{index_file}: names files outside its directory")
    suffixes = (".safetensors",) if index_file.name == INDEX_FILES[0] else (".safetensors", ".bin")
    strange = sorted(shard for shard in shards if not shard.endswith(suffixes))
    if strange:
        raise InputError(f"{index_file}: names {strange[0]}, which is no {' or '.join(suffixes)} file")
    return sorted(shards)


def weight_files(name: str | Path) -> list[Path]:
    """The files that hold the weights of a saved model: those that transformers would load.

    Raises:
        InputError: when one is missing, or an index is wrong, be it used or not.
    """
    for file in INDEX_FILES if os.path.isdir(name) else ():
        if (Path(name) / file).is_file():
            shards_of(Path(name) / file)
    for file in _LOADED_WEIGHTS:
        path = find_file(name, file)
        if path is None:
            continue
        if file not in INDEX_FILES:
            return [path]
        shards = {shard: find_file(name, shard) for shard in shards_of(path)}
        missing = [shard for shard, found in shards.items() if found is None]
        if missing:
            raise InputError(f"{path}: names {missing[0]}, which is not there")
        return [found for found in shards.values() if found is not None]
    raise InputError(f"{name}: has no weights; looked for {', '.join(_LOADED_WEIGHTS)}")


class Checkpoint(Mapping[str, torch.Tensor]):
    """The tensors of one or several files by name. Each is read when it is first needed."""

    def __init__(self, files: Sequence[Path]):
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

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a tensor, which is not read for it."""
        opened = self._files[name]
        return tuple(opened[name].shape if isinstance(opened, dict) else opened.get_slice(name).get_shape())

    def is_floating_point(self, name: str) -> bool:
        """Whether a tensor, which is not read for it, holds floating-point numbers."""
        opened = self._files[name]
        if isinstance(opened, dict):
            return opened[name].is_floating_point()
        return opened.get_slice(name).get_dtype().startswith(("F", "BF"))


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
            f"{path}: torch.load(weights_only=True) refuses it; save its state_dict as safetensors: {reason(error)}"
        ) from error
    if not isinstance(loaded, dict) or not all(isinstance(value, torch.Tensor) for value in loaded.values()):
        raise InputError(f"{path}: holds something other than a state_dict, a dictionary of names and tensors")
    return loaded
