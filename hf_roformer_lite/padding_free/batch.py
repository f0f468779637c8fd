"""The tokens of a batch that the layers compute, as one flat row and as a padded batch.

A *document* is a run of tokens that attend to each other: a row of the batch without its padding,
or one of several texts packed into a row. In the flat row, `(1, N, ...)`, the tokens of a document
are contiguous. (Removing padding before the layers goes back to Zeng et al. 2022,
arXiv:2208.08124.)
"""

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import torch
from transformers.utils.import_utils import is_tracing


class FlatTokens:
    """The computed tokens of a batch `(B, L)`, in the order of the flat row.

    Args:
        numbers: `(B, L)`, the place of each token's document in the flat row, from 1; 0 at tokens
            that are not computed. Each row has a computed token. The tensor is on the CPU, because
            reading a value from an accelerator means waiting for it. In a traced graph, whose
            values cannot be read, it has ones and zeros, and the flat row is in the order of the
            batch.
        count: The number of documents, some of which may be empty.
        are_documents: Whether all computed tokens are real, and no padding stands between those of
            a document.
    """

    def __init__(self, numbers: torch.Tensor, count: int = 1, are_documents: bool = False):
        self.numbers = numbers
        self.shape = (numbers.shape[0], numbers.shape[1])
        self.is_traced = is_tracing(numbers)
        self.are_documents = are_documents and not self.is_traced
        self.lengths: list[int] = []
        self.longest = 0
        # The places of the tokens among the B * L of the batch, `(N,)`. None: the flat row has all
        # tokens of the batch in their order.
        self.index: torch.Tensor | None
        # What has been moved to a device. It is empty until a flat row is made.
        self.tables: dict[tuple[str, torch.device], torch.Tensor] = {}
        if self.is_traced:
            self.index = places_in_graph(numbers.flatten() != 0)
            self.num_tokens = self.index.shape[0]  # It is symbolic.
            places = (numbers != 0).flatten().long().cumsum(0).view(self.shape) - 1
            self.tables["index", numbers.device] = self.index
            self.tables["filled", numbers.device] = self._fill(places)
            return
        flat_numbers = numbers.flatten()
        num_padding, *self.lengths = flat_numbers.bincount(minlength=count + 1).tolist()
        self.longest = max(self.lengths, default=0)
        self.num_tokens = numbers.numel() - num_padding
        is_whole = num_padding == 0 and bool((flat_numbers.diff() >= 0).all())
        self.index = None if is_whole else flat_numbers.argsort(stable=True)[num_padding:]

    def equals(self, other: "FlatTokens") -> bool:
        """Whether both give the same flat row, for masks of the same kind."""
        is_same_kind = self.are_documents == other.are_documents
        return is_same_kind and torch.equal(self.numbers, other.numbers)

    def index_on(self, device: torch.device) -> torch.Tensor | None:
        """`index` on a device."""
        if self.index is not None and ("index", device) not in self.tables:
            self.tables["index", device] = self.index.to(device)
        return self.tables.get(("index", device))

    def filled_on(self, device: torch.device) -> torch.Tensor:
        """The place in the flat row of each position of the batch, `(B * L,)`, on a device.

        A position that is not computed has the place of the first token of its row: a token of
        another row could be NaN, and 0 * NaN is NaN.
        """
        if ("filled", device) not in self.tables:
            places = torch.zeros_like(self.numbers)
            places.view(-1)[self.index] = torch.arange(self.num_tokens, device="cpu")
            self.tables["filled", device] = self._fill(places).to(device)
        return self.tables["filled", device]

    def _fill(self, places: torch.Tensor) -> torch.Tensor:
        is_kept = self.numbers != 0
        first = places.gather(1, is_kept.long().argmax(dim=1, keepdim=True))
        return places.where(is_kept, first).flatten()

    def flatten(self, states: torch.Tensor) -> torch.Tensor:
        """`(B, L, ...)`, or `(1, L, ...)` if all rows are the same, to `(1, N, ...)`.

        A tensor that has been flattened before, or was restored from a flat row, knows this flat
        row, which is returned again: all layers share positions and encoder states, and the output
        of one layer is the input of the next. In inference mode torch does not count the changes of
        a tensor, so each layer flattens its tensors anew, and nothing is kept.
        """
        known = flat_form_of(states)
        if known is not None and known.tokens is self:
            return known.flat[:, : self.num_tokens] if known.padding == "last" else known.flat
        flat = self.collect(states.expand(*self.shape, *states.shape[2:]))
        if not self.is_traced:
            # Tell torch.compile that the number of tokens changes from batch to batch.
            torch._dynamo.maybe_mark_dynamic(flat, 1)
        if self.index is not None and not (states.is_leaf and states.requires_grad):
            # In the other cases the flat row is a view of the batch, or autograd links it to the
            # batch, so it would keep the batch alive.
            remember(states, self, flat, padding="other")
        return flat

    def collect(self, states: torch.Tensor) -> torch.Tensor:
        """`(B, L, ...)` to `(1, N, ...)`."""
        flat = states.flatten(0, 1).unsqueeze(0)
        index = self.index_on(flat.device)
        return flat if index is None else Select.apply(flat, index, None)

    def spread(self, states: torch.Tensor) -> torch.Tensor:
        """`(1, N, ...)` to `(B, L, ...)`, with copies of tokens of the same row at the other
        positions."""
        index = self.index_on(states.device)
        if index is not None:
            states = Select.apply(states, self.filled_on(states.device), index)
        return states.squeeze(0).unflatten(0, self.shape)

    def restore(self, states: torch.Tensor, padding: str = "zeros") -> torch.Tensor:
        """`(1, N, ...)` to `(B, L, ...)`. The batch knows the flat row, which the next module may
        use again.

        Args:
            padding: What the batch gets at the other positions: "zeros", or "last", a last token
                after the N others.
        """
        index = self.index_on(states.device)
        is_last = padding == "last"
        tokens = states[:, :-1] if is_last else states
        if index is None:
            restored = tokens.squeeze(0).unflatten(0, self.shape)
        elif self.is_traced:
            # Exporters translate an operation that writes to places badly.
            is_padding = (self.numbers == 0).view(*self.shape, *[1] * (states.ndim - 2))
            restored = self.spread(tokens)
            if is_last:
                restored = states[0, -1:].where(is_padding, restored)
            else:
                restored = restored.masked_fill(is_padding, 0)
        else:
            size = (self.numbers.numel(), *states.shape[2:])
            everywhere = states[0, -1:].expand(size).clone() if is_last else states.new_zeros(size)
            restored = everywhere.index_copy_(0, index, tokens[0]).unflatten(0, self.shape)
        remember(restored, self, states, padding)
        return restored


def map_states(change: Callable[[torch.Tensor], torch.Tensor], output: Any) -> Any:
    """What a module returns, with `change` applied to its states, which are all tensors of three
    dimensions."""
    if isinstance(output, tuple | list):
        return type(output)(map_states(change, part) for part in output)
    is_states = isinstance(output, torch.Tensor) and output.ndim == 3
    return change(output) if is_states else output


@torch.library.custom_op("hf_roformer_lite::places_of", mutates_args=())
def places_of(is_kept: torch.Tensor) -> torch.Tensor:
    """The places `(N,)` of the computed tokens among all."""
    return is_kept.nonzero().squeeze(1)


@places_of.register_fake
def places_of_fake(is_kept: torch.Tensor) -> torch.Tensor:
    # torch.compile breaks a graph at each of its own operations whose result has as many elements
    # as the values say, unless `fullgraph` is set. An operation of ours may ask for a size itself;
    # torch has no public way to do so regardless of that setting.
    num_tokens = is_kept.fake_mode.shape_env.create_unbacked_symint()  # type: ignore[attr-defined]
    torch._check(num_tokens >= 1)
    return is_kept.new_empty(num_tokens, dtype=torch.long)


def places_in_graph(is_kept: torch.Tensor) -> torch.Tensor:
    """`places_of` in a traced graph. An exported one must contain only torch's own operations."""
    if torch.compiler.is_dynamo_compiling():
        return places_of(is_kept)
    index = is_kept.nonzero().squeeze(1)
    torch._check(index.shape[0] >= 1)
    return index


class FlatForm:
    """The flat row of a batch, which the batch holds as an attribute.

    Args:
        padding: What the batch has at padding: "zeros"; "last", the last token of the row, which
            stands for all padding; or "other" values.
    """

    def __init__(self, tokens: FlatTokens, flat: torch.Tensor, states: torch.Tensor, padding: str):
        self.tokens = tokens
        self.flat = flat
        self.padding = padding
        self.version = 0 if tokens.is_traced else states._version

    def __reduce__(self) -> tuple[Any, ...]:
        # A tensor that is saved or copied forgets its flat row. torch.load accepts this class.
        return OrderedDict, ()


def remember(
    states: torch.Tensor, tokens: FlatTokens, flat: torch.Tensor, padding: str = "zeros"
) -> None:
    """Let a batch know its flat row."""
    if tokens.is_traced or not states.is_inference():
        states.flat_form = FlatForm(tokens, flat, states, padding)  # type: ignore[attr-defined]


def share_flat_row(source: torch.Tensor, other: torch.Tensor) -> None:
    """Let `other`, which has zeros at padding, know a flat row of the tokens that `source` has in
    its own."""
    form = flat_form_of(source)
    if form is not None and form.tokens.index is not None:
        remember(other, form.tokens, form.tokens.flatten(other))


def flat_form_of(states: Any) -> FlatForm | None:
    """The flat row of a batch if it is known and may be used instead of the batch.

    It may not if the batch was changed in place, nor if the flat row was computed without a
    gradient, as in reentrant checkpointing. (torch has no public name for the version of a tensor.)
    """
    form = getattr(states, "flat_form", None)
    # A graph may not use a flat row that was made outside of it.
    if not isinstance(form, FlatForm) or form.tokens.is_traced != is_tracing(states):
        return None
    has_gradient = form.flat.requires_grad or not states.requires_grad
    is_current = form.tokens.is_traced or (states._version == form.version and has_gradient)
    return form if is_current else None


class Select(torch.autograd.Function):
    """`states.index_select(1, places)`, whose gradient has nothing to add up.

    It saves no tensor for the backward pass: a checkpointed layer must save the same number of
    tensors whether it gathers a flat row or reuses one.

    The result is no view, of which torch.compile would make another graph.

    Args:
        places: The places of the selected states, without repetitions unless `index` is given.
        index: The places in the output that have a gradient, one for each of `states`; None: all.
    """

    @staticmethod
    def forward(
        states: torch.Tensor, places: torch.Tensor, index: torch.Tensor | None
    ) -> torch.Tensor:
        return states.index_select(1, places)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
        states, ctx.places, ctx.index = inputs
        ctx.shape = states.shape

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        if ctx.index is None:
            return grad.new_zeros(ctx.shape).index_copy(1, ctx.places, grad), None, None
        return grad.index_select(1, ctx.index), None, None
