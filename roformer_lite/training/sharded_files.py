"""Directories of torch.distributed.checkpoint, checked before it reads them, because it unpickles what is there."""

import copyreg
import io
import pickle
from dataclasses import is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.metadata import BytesStorageMetadata, Metadata

# All that the description of a checkpoint is made of, besides plain classes of data in the modules of the second set.
_KNOWN = {("pathlib", "PosixPath"), ("pathlib", "WindowsPath"), ("torch", "Size")}
_MODULES_OF_DATA = {f"torch.distributed.checkpoint.{name}" for name in ("metadata", "filesystem")}
_LAYOUT_BY_NAME = copyreg.dispatch_table[torch.layout](torch.strided)[0]  # by which torch pickles `torch.strided`


class _Description(pickle.Unpickler):
    """Reads a description, and refuses what is none."""

    def find_class(self, module: str, name: str) -> Any:
        is_dtype = module == "torch" and isinstance(getattr(torch, name, None), torch.dtype)
        if is_dtype or (module, name) in _KNOWN:
            return super().find_class(module, name)
        if (module, name) == (_LAYOUT_BY_NAME.__module__, _LAYOUT_BY_NAME.__name__):
            return _LAYOUT_BY_NAME
        if module in _MODULES_OF_DATA:
            found = super().find_class(module, name)
            is_class = isinstance(found, type) and found.__module__ == module
            if is_class and (is_dataclass(found) or issubclass(found, Enum)):
                return found
        raise pickle.UnpicklingError(f"it names {module}.{name}, which no checkpoint needs")


def check_nothing_but_data(folder: Path) -> None:
    """Read what torch.distributed.checkpoint would unpickle in `folder`: the description of the whole, and every value
    that is no tensor. Tensors it reads safely itself.

    Raises:
        ValueError: when something else is there, or a file is damaged.
    """
    try:
        with (folder / ".metadata").open("rb") as file:
            description: Metadata = _Description(file).load()
        for index, place in description.storage_data.items():
            if isinstance(description.state_dict_metadata[index.fqn], BytesStorageMetadata):
                with (folder / place.relative_path).open("rb") as file:
                    file.seek(place.offset)
                    torch.load(io.BytesIO(file.read(place.length)), weights_only=True)
    except Exception as error:  # whatever a damaged file makes of a pickle
        raise ValueError(str(error)) from error
