"""Tables that say which tensor of a checkpoint becomes which of ours, and how.

A table is data. It is read against the names that the model of this package has, so that every tensor on either side
is accounted for: a name that no row explains, or one that a row asks for and the checkpoint lacks, is an error.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce

import torch

from hf_roformer_lite.errors import InputError

_SHOWN = 6  # names in an error message


class Operation:
    """How tensors change on the way. The default takes them as they are; `count` is how many are to come out."""

    def forward(self, theirs: Sequence[torch.Tensor], count: int) -> Sequence[torch.Tensor]:
        """Tensors of the checkpoint to ours."""
        return theirs

    def backward(self, ours: Sequence[torch.Tensor], count: int) -> Sequence[torch.Tensor]:
        """The way back."""
        return ours


class Join(Operation):
    """Several of theirs, one below the other, are one of ours."""

    def forward(self, theirs: Sequence[torch.Tensor], count: int) -> Sequence[torch.Tensor]:
        return [torch.cat(list(theirs))]

    def backward(self, ours: Sequence[torch.Tensor], count: int) -> Sequence[torch.Tensor]:
        return ours[0].chunk(count)


class Stack(Operation):
    """Several of theirs become one of ours with a first dimension more."""

    def forward(self, theirs: Sequence[torch.Tensor], count: int) -> Sequence[torch.Tensor]:
        return [torch.stack(list(theirs))]

    def backward(self, ours: Sequence[torch.Tensor], count: int) -> Sequence[torch.Tensor]:
        return ours[0].unbind()


class Split(Operation):
    """One of theirs, cut into equal parts, is several of ours."""

    def forward(self, theirs: Sequence[torch.Tensor], count: int) -> Sequence[torch.Tensor]:
        return theirs[0].chunk(count)

    def backward(self, ours: Sequence[torch.Tensor], count: int) -> Sequence[torch.Tensor]:
        return [torch.cat(list(ours))]


class Copies(Operation):
    """Theirs are copies of one another: the first is taken, and written to all."""

    def forward(self, theirs: Sequence[torch.Tensor], count: int) -> Sequence[torch.Tensor]:
        return theirs[:1]

    def backward(self, ours: Sequence[torch.Tensor], count: int) -> Sequence[torch.Tensor]:
        return [ours[0]] * count


class Transpose(Operation):
    """A matrix stored `(in, out)`."""

    def forward(self, theirs: Sequence[torch.Tensor], count: int) -> Sequence[torch.Tensor]:
        return [tensor.T for tensor in theirs]

    backward = forward


@dataclass(frozen=True)
class Scale(Operation):
    """Ours is theirs times `factor`."""

    factor: float

    def forward(self, theirs: Sequence[torch.Tensor], count: int) -> Sequence[torch.Tensor]:
        return [tensor * self.factor for tensor in theirs]

    def backward(self, ours: Sequence[torch.Tensor], count: int) -> Sequence[torch.Tensor]:
        return [tensor / self.factor for tensor in ours]


@dataclass(frozen=True)
class Constant(Operation):
    """A vector of `size` values `value` that the other side does not store."""

    value: float
    size: int

    def forward(self, theirs: Sequence[torch.Tensor], count: int) -> Sequence[torch.Tensor]:
        return [torch.full((self.size,), self.value, dtype=torch.float64)]

    def backward(self, ours: Sequence[torch.Tensor], count: int) -> Sequence[torch.Tensor]:
        return []


@dataclass(frozen=True)
class HalfSplit(Operation):
    """Rotary channels in pairs (2j, 2j + 1) are put into pairs (j, j + head_dim / 2), in each of `heads` heads.

    A permutation of rows (`dim` 0), or of the columns that read them (`dim` 1): the numbers stay what they are.
    """

    heads: int
    dim: int = 0

    def forward(self, theirs: Sequence[torch.Tensor], count: int) -> Sequence[torch.Tensor]:
        return [self._exchange(tensor, (self.heads, -1, 2)) for tensor in theirs]

    def backward(self, ours: Sequence[torch.Tensor], count: int) -> Sequence[torch.Tensor]:
        return [self._exchange(tensor, (self.heads, 2, -1)) for tensor in ours]

    def _exchange(self, tensor: torch.Tensor, shape: tuple[int, int, int]) -> torch.Tensor:
        pairs = tensor.unflatten(self.dim, shape)
        return pairs.transpose(self.dim + 1, self.dim + 2).flatten(self.dim, self.dim + 2)


SAME = Operation()


@dataclass(frozen=True)
class Name:
    """One row: names of the checkpoint, names of ours, and the operation between them.

    `{i}` and `{j}` stand for numbers, `*` for the last part of a name (weight, bias …), the same on both sides; a
    name of theirs with `{h}` stands for one tensor a head.
    """

    theirs: str | tuple[str, ...]
    ours: str | tuple[str, ...]
    operation: Operation = SAME

    @property
    def their_names(self) -> tuple[str, ...]:
        return self.theirs if isinstance(self.theirs, tuple) else (self.theirs,)

    @property
    def our_names(self) -> tuple[str, ...]:
        return self.ours if isinstance(self.ours, tuple) else (self.ours,)


@dataclass(frozen=True)
class Move:
    """A row with every name written out."""

    theirs: tuple[str, ...]
    ours: tuple[str, ...]
    operation: Operation


@dataclass
class NameTable:
    """All rows of a source.

    Args:
        names: The rows.
        dropped: Names of theirs that say nothing the model needs: tables that are computed here, copies of tied
            weights, heads that the model asked for does not have.
        renamed: Parts of names that older checkpoints write differently, and how they are written in `names`.
        heads: Number of heads, for `{h}`.
    """

    names: Sequence[Name]
    dropped: Sequence[str] = ()
    renamed: Mapping[str, str] = field(default_factory=dict)
    heads: int = 0

    def moves(self, our_names: Iterable[str]) -> list[Move]:
        """The rows written out for a model with tensors `our_names`, each of which is explained exactly once."""
        moves, explained, asked = [], set(), set()
        our_names = sorted(our_names)
        for row in self.names:
            pattern = _pattern(row.our_names[0])
            for match in filter(None, map(pattern.fullmatch, our_names)):
                found = match.groupdict()
                written = tuple(name for part in row.their_names for name in self._written(part, found))
                move = Move(written, tuple(_fill(part, found) for part in row.our_names), row.operation)
                if not explained.isdisjoint(move.ours) or not asked.isdisjoint(move.theirs):
                    raise InputError(f"the table has {', '.join(move.theirs)} or {', '.join(move.ours)} twice")
                moves.append(move)
                explained.update(move.ours)
                asked.update(move.theirs)
        unexplained = [name for name in our_names if name not in explained]
        if unexplained:
            raise InputError(f"this source has nothing for {_listed(unexplained)} of the model")
        return moves

    def _written(self, name: str, found: Mapping[str, str]) -> Iterator[str]:
        for head in range(self.heads) if "{h}" in name else ("",):
            yield _fill(name.replace("{h}", str(head)), found)

    def to_ours(
        self, state_dict: Mapping[str, torch.Tensor], our_shapes: Mapping[str, torch.Size]
    ) -> Iterator[tuple[str, torch.Tensor]]:
        """Our names and tensors, one after the other.

        Args:
            state_dict: Tensors of the checkpoint; each is asked for once.
            our_shapes: What the model has.

        Raises:
            InputError: for names that are missing or unknown, before any tensor is read; and for a tensor whose shape
                does not fit the config.
        """
        originals = {self.current(name): name for name in state_dict}
        if len(originals) < len(state_dict):
            twice = sorted(name for name in state_dict if originals[self.current(name)] != name)
            raise InputError(f"the checkpoint has {_listed(twice)} under an older and a newer name")
        moves = self.moves(our_shapes)
        wanted = {name for move in moves for name in move.theirs}
        missing = sorted(wanted - originals.keys())
        unknown = [original for name, original in originals.items() if name not in wanted and not self.drops(name)]
        if missing or unknown:
            faults = [f"lacks {_listed(missing)}"] if missing else []
            faults += [f"has unknown {_listed(unknown)}"] if unknown else []
            raise InputError(f"the checkpoint {' and '.join(faults)}; is it of this source, and does its config fit?")
        dtypes = set()
        for move in sorted(moves, key=lambda move: not move.theirs):  # constants last, in the dtype of all others
            theirs = [state_dict[originals[name]] for name in move.theirs]
            dtypes |= {tensor.dtype for tensor in theirs}
            tensors = move.operation.forward(theirs, len(move.ours))
            if not theirs:
                tensors = [tensor.to(reduce(torch.promote_types, dtypes)) for tensor in tensors]
            for name, tensor in zip(move.ours, tensors, strict=True):
                if tensor.shape != our_shapes[name]:
                    raise InputError(
                        f"{', '.join(move.theirs)}: gives {name} the shape {tuple(tensor.shape)}, but the config "
                        f"says {tuple(our_shapes[name])}"
                    )
                yield name, tensor.contiguous()

    def to_theirs(self, state_dict: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """The way back: their names and tensors from ours."""
        result = {}
        for move in self.moves(state_dict):
            tensors = move.operation.backward([state_dict[name] for name in move.ours], len(move.theirs))
            copies = (tensor.clone(memory_format=torch.contiguous_format) for tensor in tensors)
            result.update(zip(move.theirs, copies, strict=True))
        return result

    def drops(self, name: str) -> bool:
        """Whether a name of theirs says nothing the model needs."""
        return any(_pattern(dropped).fullmatch(name) for dropped in self.dropped)

    def current(self, name: str) -> str:
        """A name of theirs as the rows write it."""
        for old, new in self.renamed.items():
            name = re.sub(rf"(?<=\.){old}(?=\.|$)", new, name)
        return name


def _pattern(name: str) -> re.Pattern:
    escaped = re.escape(name)
    for placeholder in ("i", "j"):
        escaped = escaped.replace(rf"\{{{placeholder}\}}", rf"(?P<{placeholder}>\d+)", 1)
        escaped = escaped.replace(rf"\{{{placeholder}\}}", rf"(?P={placeholder})")
    return re.compile(escaped.replace(r"\*", r"(?P<last>[^.]+)"))


def _fill(name: str, found: Mapping[str, str]) -> str:
    for placeholder in ("i", "j"):
        name = name.replace(f"{{{placeholder}}}", found.get(placeholder, ""))
    return name.replace("*", found.get("last", ""))


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
