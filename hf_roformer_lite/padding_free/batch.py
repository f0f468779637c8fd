"""Which tokens of a batch are real, and how they become one flat row and a batch again.

A *document* is a run of tokens that see each other: a row of the batch without its padding, or one
of several texts that are packed into a row. In the flat row, `(1, N, ...)`, every document is one
run. The longest comes first, so that documents of equal length are neighbours and attention can
take them together. (Removing padding before the layers is the idea of Zeng et al. 2022,
arXiv:2208.08124.)
"""

from contextvars import ContextVar
from weakref import ReferenceType, ref

import torch


class RealTokens:
    """The real tokens of a batch `(B, L)`.

    Args:
        shape: B and L.
        lengths: The number of tokens of each document, in the order of the flat row.
        order: `(documents,)`, the numbers of the documents in the batch, in the order of the flat
            row.
        index: `(N,)`, the places of the tokens among the B * L of the batch, in the order of the
            flat row. None: all tokens are real, and the flat row is the batch as it is.
    """

    def __init__(
        self,
        shape: tuple[int, int],
        lengths: list[int],
        order: torch.Tensor,
        index: torch.Tensor | None = None,
    ):
        self.shape = shape
        self.lengths = lengths
        self.order = order
        self.index = index
        self._flattened: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self._last_restored: tuple[torch.Tensor, torch.Tensor] | None = None

    @classmethod
    def of_full_rows(cls, shape: tuple[int, int], device: torch.device) -> "RealTokens":
        """Each row is one document without padding."""
        batch_size, length = shape
        order = torch.arange(batch_size, device=device)
        return cls(shape=shape, lengths=[length] * batch_size, order=order)

    @classmethod
    def of_documents(
        cls, numbers: torch.Tensor, count: int, order: torch.Tensor | None = None
    ) -> "RealTokens":
        """The tokens of numbered documents.

        Args:
            numbers: `(B, L)`, the number of the document of each token, from 1; 0 at padding.
            count: How many documents there are. Some may be without tokens.
            order: The order of the documents in the flat row. Default: the longest first.
        """
        shape = (numbers.shape[0], numbers.shape[1])
        numbers = numbers.flatten()
        index = numbers.nonzero().squeeze(1)  # (N,)
        documents = numbers[index] - 1  # (N,)
        lengths = torch.bincount(documents, minlength=count)
        if order is None:
            order = lengths.argsort(descending=True, stable=True)
        rank = torch.empty_like(order)
        rank[order] = torch.arange(count, device=order.device)
        index = index[rank[documents].argsort(stable=True)]
        return cls(shape=shape, lengths=lengths[order].tolist(), order=order, index=index)

    @property
    def longest(self) -> int:
        return max(self.lengths, default=0)

    def equals(self, other: "RealTokens") -> bool:
        """Whether both make the same flat row."""
        if self.shape != other.shape or self.lengths != other.lengths:
            return False
        if self.index is None or other.index is None:
            return self.index is other.index
        return torch.equal(self.index, other.index)

    def flatten(self, states: torch.Tensor, reuse: bool = True) -> torch.Tensor:
        """`(B, L, ...)`, or `(1, L, ...)` for all rows alike, to `(1, N, ...)`.

        Args:
            reuse: Whether a tensor that was made flat before, or restored from a flat one, gives
                that flat tensor again: all layers share positions and encoder states, and the
                output of one layer is the input of the next.
        """
        if not reuse:
            return self._gather(states)
        last_restored = self._last_restored
        if last_restored is not None and states is last_restored[0]:
            return last_restored[1]
        if id(states) not in self._flattened:
            # The tensor is kept together with its flat form, so that its id stays its own.
            self._flattened[id(states)] = (states, self._gather(states))
        return self._flattened[id(states)][1]

    def _gather(self, states: torch.Tensor) -> torch.Tensor:
        states = states.expand(*self.shape, *states.shape[2:])
        states = states.flatten(0, 1)
        if self.index is not None:
            states = states.index_select(0, self.index.to(states.device))
        return states.unsqueeze(0)

    def restore(self, states: torch.Tensor) -> torch.Tensor:
        """`(1, N, ...)` to `(B, L, ...)`, with zeros at padding."""
        batch_size, length = self.shape
        tokens = states[0]
        if self.index is not None:
            zeros = tokens.new_zeros(batch_size * length, *tokens.shape[1:])
            tokens = zeros.index_copy_(0, self.index.to(tokens.device), tokens)
        restored = tokens.view(batch_size, length, *tokens.shape[1:])
        self._last_restored = (restored, states)
        return restored


_last_found: ContextVar[ReferenceType[RealTokens] | None] = ContextVar("last_found", default=None)


def shared(found: RealTokens) -> RealTokens:
    """The real tokens that this thread found last, if they equal `found` and are still in use.

    Layers with and without a sliding window get masks of their own. If both find the same
    documents, they share one `RealTokens`, and the flat row goes from one layer to the next.
    """
    reference = _last_found.get()
    last = None if reference is None else reference()
    if last is not None and last.equals(found):
        return last
    _last_found.set(ref(found))
    return found
