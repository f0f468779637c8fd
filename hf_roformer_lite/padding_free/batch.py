"""The real tokens of a batch, and how to make them one flat row and a padded batch again.

A *document* is a run of tokens that attend to each other: a row of the batch without its padding,
or one of several texts packed into a row. In the flat row, `(1, N, ...)`, the tokens of a document
are contiguous. (Removing padding before the layers goes back to Zeng et al. 2022,
arXiv:2208.08124.)
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from weakref import ReferenceType, ref

import torch
from torch import nn


class RealTokens:
    """The real tokens of a batch `(B, L)`, in the order of the flat row.

    Args:
        shape: B and L.
        lengths: The number of tokens of each document.
        index: `(N,)`, the places of the tokens among the B * L of the batch. None: the flat row has
            all tokens of the batch in their order.
        row_axis: 1 if states are `(L, B, ...)`; then `shape` is L and B, and the flat row is
            `(N, 1, ...)`.
    """

    def __init__(
        self,
        shape: tuple[int, int],
        lengths: list[int],
        index: torch.Tensor | None = None,
        row_axis: int = 0,
    ):
        self.shape = shape
        self.lengths = lengths
        self.index = index
        self.row_axis = row_axis
        self.longest = max(lengths, default=0)
        self._known: dict[int, FlatForm] = {}
        self._last_output: FlatForm | None = None

    @classmethod
    def of_documents(cls, numbers: torch.Tensor, count: int, row_axis: int = 0) -> "RealTokens":
        """The tokens of numbered documents.

        Args:
            numbers: `(B, L)`, the place of each token's document in the flat row, from 1; 0 at
                padding.
            count: The number of documents, some of which may be empty.
            row_axis: 1 if states are `(L, B, ...)`.
        """
        numbers = numbers.transpose(0, row_axis)
        shape = (numbers.shape[0], numbers.shape[1])
        numbers = numbers.flatten()
        num_padding, *lengths = numbers.bincount(minlength=count + 1).tolist()
        index = numbers.argsort(stable=True)[num_padding:]
        if torch.equal(index, torch.arange(len(numbers), device=index.device)):
            return cls(shape=shape, lengths=lengths, row_axis=row_axis)
        return cls(shape=shape, lengths=lengths, index=index, row_axis=row_axis)

    def equals(self, other: "RealTokens") -> bool:
        """Whether both give the same flat row."""
        if self.shape != other.shape or self.lengths != other.lengths:
            return False
        if self.row_axis != other.row_axis:
            return False
        if self.index is None or other.index is None:
            return self.index is other.index
        is_on_same_device = self.index.device == other.index.device
        return is_on_same_device and torch.equal(self.index, other.index)

    def flatten(self, states: torch.Tensor) -> torch.Tensor:
        """`(B, L, ...)`, or `(1, L, ...)` if all rows are the same, to `(1, N, ...)`.

        If a tensor has been flattened before or was restored from a flat one, that flat tensor is
        returned again: all layers share positions and encoder states, and the output of one layer
        is the input of the next. In inference mode torch does not count the changes of a tensor, so
        each layer flattens its tensors anew, and nothing is kept.
        """
        for known in (self._last_output, self._known.get(id(states))):
            if known is not None and known.is_current(states):
                return known.flat
        flat = states.expand(*self.shape, *states.shape[2:]).flatten(0, 1).unsqueeze(self.row_axis)
        if self.index is not None:
            flat = Gather.apply(flat, self.index.to(flat.device), 1 - self.row_axis)
        # Tell torch.compile that the number of tokens changes from batch to batch.
        torch._dynamo.maybe_mark_dynamic(flat, 1 - self.row_axis)
        if not states.is_inference():
            self._known[id(states)] = FlatForm(states, flat)
        return flat

    def restore(self, states: torch.Tensor) -> torch.Tensor:
        """`(1, N, ...)` to `(B, L, ...)`, with zeros at padding."""
        batch_size, length = self.shape
        tokens = states.select(self.row_axis, 0)
        if self.index is not None:
            zeros = tokens.new_zeros(batch_size * length, *tokens.shape[1:])
            tokens = zeros.index_copy_(0, self.index.to(tokens.device), tokens)
        return tokens.view(batch_size, length, *tokens.shape[1:])

    def restore_output(self, states: torch.Tensor) -> torch.Tensor:
        """Like `restore`, for the output of a layer, whose flat form the next layer may use
        again."""
        restored = self.restore(states)
        self._last_output = FlatForm(restored, states)
        return restored


class FlatForm:
    """A batch and its flat row. The batch is kept so that no other tensor can get its id."""

    def __init__(self, states: torch.Tensor, flat: torch.Tensor):
        self.states = states
        self.flat = flat
        self.version = None if states.is_inference() else states._version

    def is_current(self, states: torch.Tensor) -> bool:
        """Whether the flat row may be used instead of the batch.

        It may not if a hook has changed the batch in place or observes its gradient, nor if the
        flat row was computed without a gradient, as in reentrant checkpointing. (torch has no
        public names for the version of a tensor and for its hooks.)
        """
        if self.version is None or states is not self.states:
            return False
        is_watched = states.retains_grad or bool(states._backward_hooks)
        has_gradient = self.flat.requires_grad or not states.requires_grad
        return states._version == self.version and not is_watched and has_gradient


class Gather(torch.autograd.Function):
    """`states.index_select(axis, index)` for an index without repetitions. It saves no tensor for
    the backward pass: a checkpointed layer must save the same number of tensors whether it gathers
    a flat row or reuses one."""

    @staticmethod
    def forward(ctx: Any, states: torch.Tensor, index: torch.Tensor, axis: int) -> torch.Tensor:
        ctx.index = index
        ctx.axis = axis
        ctx.shape = states.shape
        return states.index_select(axis, index)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        zeros = grad.new_zeros(ctx.shape)
        return zeros.index_copy(ctx.axis, ctx.index, grad), None, None


class State(threading.local):
    """Per-thread state. (torch.compile can read such attributes, but not context variables.)

    Attributes:
        computes_padding: Whether models under "padding_free" compute padding, as under "sdpa".
        running_base: The base model of the model whose `forward` is running. What this model has
            decided holds for its base model, too.
        is_trial: Whether a trial is running, in which warnings are suppressed.
        stack: The module whose states the head of a language model reads.
        labelled: The places `(n,)` of the labelled tokens among those states.
        last_found: The real tokens that were found last.
    """

    computes_padding: bool = False
    running_base: nn.Module | None = None
    is_trial: bool = False
    stack: nn.Module | None = None
    labelled: torch.Tensor | None = None
    last_found: ReferenceType[RealTokens] | None = None


state = State()


@contextmanager
def changed_state(**values: Any) -> Iterator[None]:
    """Change values of `state` within this context."""
    before = {name: getattr(state, name) for name in values}
    vars(state).update(values)
    try:
        yield
    finally:
        vars(state).update(before)


def shared(found: RealTokens) -> RealTokens:
    """The real tokens that this thread found last, if they equal `found` and are still in use;
    otherwise `found`.

    Layers with and without a sliding window have separate masks. If these define the same
    documents, they share one `RealTokens`, so that the flat row passes from one kind of layer to
    the other.
    """
    reference = state.last_found
    last = None if reference is None else reference()
    if last is not None and last.equals(found):
        return last
    state.last_found = ref(found)
    return found
