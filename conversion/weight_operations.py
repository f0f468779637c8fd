"""What happens to tensors between a checkpoint and our model: joined, cut, permuted, scaled.

Each operation works in both directions: `to_ours` when a checkpoint is converted, `to_theirs` when a model of this
package is exported. `count` is the number of tensors expected on the other side.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch


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
        return []


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


UNCHANGED = Operation()
