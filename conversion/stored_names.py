"""Names of tensors in files, where the classes of transformers have other names since.

transformers renames such tensors while it loads a file, and cuts those that hold several matrices; and it writes files
with the older names again.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import torch


@dataclass(frozen=True)
class StoredNames:
    """How a family's files spell the names of its classes.

    Args:
        renamed: Regular expressions, and what stands for each in the names of the classes. Tried one after the other.
        fused: Parts of names whose tensor holds several, one after the other along dimension 0, and the parts of
            their names.
    """

    renamed: Mapping[str, str] = field(default_factory=dict)
    fused: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def read(self, state_dict: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
        """The same tensors by the names of the classes; each is read from `state_dict` when it is needed."""
        sources = {}
        for stored in state_dict:
            name = stored
            for pattern, replacement in self.renamed.items():
                name = re.sub(pattern, replacement, name)
            parts = next(((whole, parts) for whole, parts in self.fused.items() if f"{whole}." in name), None)
            if parts is None:
                sources[name] = stored, 0, 1
                continue
            for index, part in enumerate(parts[1]):
                sources[name.replace(f"{parts[0]}.", f"{part}.")] = stored, index, len(parts[1])
        return state_dict if sources.keys() == set(state_dict) else _Renamed(state_dict, sources)


class _Renamed(Mapping[str, torch.Tensor]):
    """Tensors of another mapping by other names: the name there, which of its parts, and how many it has."""

    def __init__(self, tensors: Mapping[str, torch.Tensor], sources: Mapping[str, tuple[str, int, int]]):
        self._tensors, self._sources = tensors, sources

    def __getitem__(self, name: str) -> torch.Tensor:
        stored, index, parts = self._sources[name]
        tensor = self._tensors[stored]
        return tensor if parts == 1 else tensor.chunk(parts)[index]

    def __iter__(self) -> Iterator[str]:
        return iter(self._sources)

    def __len__(self) -> int:
        return len(self._sources)
