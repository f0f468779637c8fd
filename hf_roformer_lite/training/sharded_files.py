"""Directories of torch.distributed.checkpoint, checked before it reads them, because it unpickles what is there."""

import io
import pickle
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.metadata import BytesStorageMetadata, Metadata

# All that the description of a checkpoint is made of, besides types of numbers.
_KNOWN = {
    ("pathlib", "PosixPath"),
    ("pathlib", "WindowsPath"),
    ("torch", "Size"),
    ("torch.serialization", "_get_layout"),
    ("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
    *(
        ("torch.distributed.checkpoint.metadata", name)
        for name in (
            "BytesStorageMetadata ChunkStorageMetadata Metadata MetadataIndex StorageMeta TensorProperties "
            "TensorStorageMetadata _MEM_FORMAT_ENCODING"
        ).split()
    ),
}


class _Description(pickle.Unpickler):
    """Reads a description, and refuses what is none."""

    def find_class(self, module: str, name: str) -> Any:
        is_dtype = module == "torch" and isinstance(getattr(torch, name, None), torch.dtype)
        if not is_dtype and (module, name) not in _KNOWN:
            raise pickle.UnpicklingError(f"it names {module}.{name}, which no checkpoint needs")
        return super().find_class(module, name)


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
