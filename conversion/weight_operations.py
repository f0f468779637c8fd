"""What happens to tensors between a checkpoint and our model: joined, cut, permuted, scaled.

Each operation works in both directions: `to_ours` when a checkpoint is converted, `to_theirs` when a model of this
package is exported. `count` is the number of tensors expected on the other side.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from roformer_lite.errors import InputError


class Operation:
    """Tensors are taken over unchanged; subclasses change them."""

    def to_ours(self, theirs: Sequence[torch.Tensor], count: int) -> Sequence[torch.Tensor]:
        """Our tensors from those of the checkpoint."""
        return theirs

    def to_theirs(self, ours: Sequence[torch.Tensor], count: int) -> Sequence[torch.Tensor]:
        """The checkpoint's tensors from ours."""
        return ours


class Concatenate(Operation):
    """Several of their tensors, concatenated along dimension 0, make one of ours."""

    def to_ours(self, theirs: Sequence[torch.Tensor], count: int) -> Sequence[torch.Tensor]:
        return [torch.cat(list(theirs))]

    def to_theirs(self, ours: Sequence[torch.Tensor], count: int) -> Sequence[torch.Tensor]:
        return ours[0].chunk(count)


class Stack(Operation):
    """Several of their tensors, stacked along a new dimension 0, make one of ours."""

    def to_ours(self, theirs: Sequence[torch.Tensor], count: int) -> Sequence[torch.Tensor]:
        return [torch.stack(list(theirs))]

    def to_theirs(self, ours: Sequence[torch.Tensor], count: int) -> Sequence[torch.Tensor]:
        return ours[0].unbind()


class Chunk(Operation):
    """One of their tensors, cut into equal parts along dimension 0, makes several of ours."""

    def to_ours(self, theirs: Sequence[torch.Tensor], count: int) -> Sequence[torch.Tensor]:
        return theirs[0].chunk(count)

    def to_theirs(self, ours: Sequence[torch.Tensor], count: int) -> Sequence[torch.Tensor]:
        return [torch.cat(list(ours))]


class Duplicates(Operation):
    """Their tensors are equal to one another: the first is read, and an export writes it under every name."""

    def to_ours(self, theirs: Sequence[torch.Tensor], count: int) -> Sequence[torch.Tensor]:
        return theirs[:1]

    def to_theirs(self, ours: Sequence[torch.Tensor], count: int) -> Sequence[torch.Tensor]:
        return [ours[0]] * count


class Transpose(Operation):
    """Their matrix is stored as `(in, out)`, ours as `(out, in)`."""

    def to_ours(self, theirs: Sequence[torch.Tensor], count: int) -> Sequence[torch.Tensor]:
        return [tensor.T for tensor in theirs]

    to_theirs = to_ours


@dataclass(frozen=True)
class Scale(Operation):
    """Our tensor is theirs times `factor`."""

    factor: float

    def to_ours(self, theirs: Sequence[torch.Tensor], count: int) -> Sequence[torch.Tensor]:
        return [tensor * self.factor for tensor in theirs]

    def to_theirs(self, ours: Sequence[torch.Tensor], count: int) -> Sequence[torch.Tensor]:
        return [tensor / self.factor for tensor in ours]


@dataclass(frozen=True)
class Constant(Operation):
    """Our tensor is a vector of `size` entries `value`, which the checkpoint does not store."""

    value: float
    size: int

    def to_ours(self, theirs: Sequence[torch.Tensor], count: int) -> Sequence[torch.Tensor]:
        return [torch.full((self.size,), self.value, dtype=torch.float64)]

    def to_theirs(self, ours: Sequence[torch.Tensor], count: int) -> Sequence[torch.Tensor]:
        if any(bool((tensor != self.value).any()) for tensor in ours):
            raise InputError(f"a vector that the other system does not have must be {self.value:g} in every entry")
        return []


@dataclass(frozen=True)
class DropRows(Operation):
    """Their table begins with `rows` rows that no token uses."""

    rows: int

    def to_ours(self, theirs: Sequence[torch.Tensor], count: int) -> Sequence[torch.Tensor]:
        return [tensor[self.rows :] for tensor in theirs]

    def to_theirs(self, ours: Sequence[torch.Tensor], count: int) -> Sequence[torch.Tensor]:
        return [torch.cat((tensor.new_zeros(self.rows, tensor.shape[1]), tensor)) for tensor in ours]


class OneRow(Operation):
    """Their vector is a matrix of one row."""

    def to_ours(self, theirs: Sequence[torch.Tensor], count: int) -> Sequence[torch.Tensor]:
        return [tensor.squeeze(0) for tensor in theirs]

    def to_theirs(self, ours: Sequence[torch.Tensor], count: int) -> Sequence[torch.Tensor]:
        return [tensor.unsqueeze(0) for tensor in ours]


class Repeat(Operation):
    """One of their tensors serves several layers, which have a copy each here."""

    def to_ours(self, theirs: Sequence[torch.Tensor], count: int) -> Sequence[torch.Tensor]:
        return [theirs[0].clone() for _ in range(count)]

    def to_theirs(self, ours: Sequence[torch.Tensor], count: int) -> Sequence[torch.Tensor]:
        if not all(torch.equal(tensor, ours[0]) for tensor in ours):
            raise InputError("layers that share their weights in the other system differ here, as after a training")
        return ours[:1]


class SumOfRows(Operation):
    """The first row of their second table is added to every row of the first: it goes with every token."""

    def to_ours(self, theirs: Sequence[torch.Tensor], count: int) -> Sequence[torch.Tensor]:
        return [theirs[0] + theirs[1][:1]]

    def to_theirs(self, ours: Sequence[torch.Tensor], count: int) -> Sequence[torch.Tensor]:
        raise InputError("a table that was added to another cannot be told from it again")


@dataclass(frozen=True)
class SplitHeads(Operation):
    """Their matrix holds queries, keys and values head by head: the rows of all three for each of `num_heads`."""

    num_heads: int

    def to_ours(self, theirs: Sequence[torch.Tensor], count: int) -> Sequence[torch.Tensor]:
        by_head = theirs[0].unflatten(0, (self.num_heads, count, -1))
        return [part.flatten(0, 1) for part in by_head.unbind(1)]

    def to_theirs(self, ours: Sequence[torch.Tensor], count: int) -> Sequence[torch.Tensor]:
        return [torch.stack([part.unflatten(0, (self.num_heads, -1)) for part in ours], 1).flatten(0, 2)]


@dataclass(frozen=True)
class PermuteForRope(Operation):
    """Their rotation pairs the channels (2j, 2j + 1) of each of `num_heads` heads, ours (j, j + head_dim / 2).

    A permutation of the rows of a projection (`dim` 0), or of the columns that read its output (`dim` 1): no number
    changes.
    """

    num_heads: int
    dim: int = 0

    def to_ours(self, theirs: Sequence[torch.Tensor], count: int) -> Sequence[torch.Tensor]:
        return [self._exchange(tensor, (self.num_heads, -1, 2)) for tensor in theirs]

    def to_theirs(self, ours: Sequence[torch.Tensor], count: int) -> Sequence[torch.Tensor]:
        return [self._exchange(tensor, (self.num_heads, 2, -1)) for tensor in ours]

    def _exchange(self, tensor: torch.Tensor, shape: tuple[int, int, int]) -> torch.Tensor:
        pairs = tensor.unflatten(self.dim, shape)
        return pairs.transpose(self.dim + 1, self.dim + 2).flatten(self.dim, self.dim + 2)


@dataclass(frozen=True)
class InTurn(Operation):
    """`first` makes our tensors; then each is changed by its own one of `parts`."""

    first: Operation
    parts: tuple[Operation, ...]

    def to_ours(self, theirs: Sequence[torch.Tensor], count: int) -> Sequence[torch.Tensor]:
        made = self.first.to_ours(theirs, count)
        return [tensor for part, one in zip(self.parts, made, strict=True) for tensor in part.to_ours([one], 1)]

    def to_theirs(self, ours: Sequence[torch.Tensor], count: int) -> Sequence[torch.Tensor]:
        back = [tensor for part, one in zip(self.parts, ours, strict=True) for tensor in part.to_theirs([one], 1)]
        return self.first.to_theirs(back, count)


UNCHANGED = Operation()
