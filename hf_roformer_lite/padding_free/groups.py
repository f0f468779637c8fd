"""Padding inside attention: the tokens of a flat row in groups of padded documents or rows.

Queries, keys and values are put into slots `(n, heads, L, head_dim)`, and the output is taken out
of them again. The number of operations does not depend on the lengths, which suits accelerators and
graphs. Under the model's own mask it is correct for any mask. Everything but attention still
computes the flat row.
"""

from itertools import pairwise
from typing import Any

import torch

from .batch import FlatTokens

# A new group begins at a document of at most this share of the longest one in the group, if it
# saves at least so many pairs of tokens. On most GPUs, these take as long as another call.
MAX_SHARE = 2 / 3
MIN_PAIRS = 2**19
# sdpa would copy a mask whose rows have other lengths.
MULTIPLE = 8


class Slots:
    """The slots of groups, and the tokens of the flat row in them.

    Args:
        tokens: `(S,)`, the token in each slot. An empty slot has a token of its own document or
            row.
        slots: `(N,)`, the slot of each token; None: the slots have the tokens in their order.
        runs: The number of documents or rows of each group, and their length.
    """

    def __init__(
        self, tokens: torch.Tensor, slots: torch.Tensor | None, runs: list[tuple[int, int]]
    ):
        self.tokens = tokens
        self.slots = slots
        self.runs = runs

    def spread(self, states: torch.Tensor) -> list[torch.Tensor]:
        """`(1, heads, N, head_dim)` to `(n, heads, L, head_dim)` for each group."""
        rows = states.transpose(1, 2).squeeze(0)  # (N, heads, head_dim)
        if self.slots is not None:
            rows = Spread.apply(rows, self.tokens, self.slots)
        if len(self.runs) == 1:
            return [rows.unflatten(0, self.runs[0]).transpose(1, 2)]
        sizes = [count * length for count, length in self.runs]
        pieces = zip(rows.split(sizes), self.runs, strict=True)
        return [piece.unflatten(0, run).transpose(1, 2) for piece, run in pieces]

    def fill(self, states: torch.Tensor) -> torch.Tensor:
        """`(1, N, ...)` to `(n, L, ...)` of the only group."""
        rows = states.squeeze(0)
        if self.slots is not None:
            rows = Spread.apply(rows, self.tokens, self.slots)
        return rows.unflatten(0, self.runs[0])

    def collect(self, outputs: list[torch.Tensor]) -> torch.Tensor:
        """`(n, L, heads, head_dim)` of each group to `(1, N, heads, head_dim)`."""
        rows = [output.flatten(0, 1) for output in outputs]
        states = rows[0] if len(rows) == 1 else torch.cat(rows)
        if self.slots is not None:
            states = Collect.apply(states, self.slots)
        return states.unsqueeze(0)


class Spread(torch.autograd.Function):
    """`states.index_select(0, tokens)`. Only the `slots` have a gradient, one for each token."""

    @staticmethod
    def forward(
        ctx: Any, states: torch.Tensor, tokens: torch.Tensor, slots: torch.Tensor
    ) -> torch.Tensor:
        ctx.slots = slots
        return states.index_select(0, tokens)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        return grad.index_select(0, ctx.slots), None, None


class Collect(torch.autograd.Function):
    """`states.index_select(0, slots)`. The gradient of all other slots is zero."""

    @staticmethod
    def forward(ctx: Any, states: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
        ctx.slots = slots
        ctx.shape = states.shape
        return states.index_select(0, slots)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        return grad.new_zeros(ctx.shape).index_copy(0, ctx.slots, grad), None


class Groups:
    """Groups of padded documents of similar length.

    Args:
        queries, keys: The tokens of both sides; the same object except in cross-attention.
        is_causal, window: The pattern of attention within a document.
    """

    def __init__(
        self,
        queries: FlatTokens,
        keys: FlatTokens,
        device: torch.device,
        is_causal: bool,
        window: int | None,
    ):
        sizes = sizes_of_groups(queries.lengths)
        self.queries, self.is_real = slots_of_documents(queries, sizes, device)
        self.keys = self.queries
        if keys is not queries:
            self.keys, self.is_real = slots_of_documents(keys, sizes, device)
        self.device = device
        self.is_causal = is_causal
        self.window = window
        self._masks: dict[torch.dtype, list[torch.Tensor | None]] = {}

    def masks(self, dtype: torch.dtype) -> list[torch.Tensor | None]:
        """The mask of each group, which is the same in all layers. It is additive and has the type
        of the queries, so that sdpa has nothing to convert in the layers."""
        if dtype not in self._masks:
            self._masks[dtype] = [
                self.mask_of(is_real, length, dtype)
                for is_real, (_, length) in zip(self.is_real, self.keys.runs, strict=True)
            ]
        return self._masks[dtype]

    def mask_of(
        self, is_real: torch.Tensor | None, length: int, dtype: torch.dtype
    ) -> torch.Tensor | None:
        """The mask of a group, `(n or 1, 1, L or 1, L)`; None if all keys are visible, or all that
        are not later if the mask is causal."""
        if self.window is None or length <= self.window:
            if self.is_causal or is_real is None:  # Empty slots are later than all tokens.
                return None
            is_seen = is_real[:, None, None]
        else:
            places = torch.arange(length, device=self.device)
            is_seen = is_in_window(places[:, None], places, self.window, self.is_causal)[None, None]
            if not self.is_causal and is_real is not None:
                is_seen = is_seen & is_real[:, None, None]
                # Without any key, an empty slot would be NaN.
                is_seen = is_seen | ~is_seen.any(dim=-1, keepdim=True)
        zeros = torch.zeros(is_seen.shape, dtype=dtype, device=self.device)
        return zeros.masked_fill(~is_seen, float("-inf"))


class SortedRows:
    """The rows of the batch in an exported graph, in two groups: the longer and the shorter ones.

    Each group is as long as its longest row. The border between the groups is where they save the
    most pairs of tokens. The tokens of a row take its first slots in their order, so padding has no
    slot even if it stands before or between them, and causal attention remains causal. Runtimes do
    not support a group without rows, so if all rows belong to the second group, the first one has
    two slots of one row, whose output is not used.

    Args:
        side: The tokens of a traced graph.
    """

    def __init__(self, side: FlatTokens):
        assert side.index is not None
        self.shape = side.shape
        self.index = side.index
        is_kept = side.numbers != 0
        counts = is_kept.long().sum(dim=1)
        first = counts.cumsum(0) - counts  # The first token of each row.
        sorted_counts, order = counts.sort(descending=True)
        batch_size = self.shape[0]  # `len` would make the size of the sample a constant.
        ranks = torch.arange(batch_size, device=counts.device)
        squares = sorted_counts * sorted_counts
        border = ((batch_size - ranks) * (squares[:1] - squares)).argmax()
        num_long = symbolic_size(border.clamp(min=1), at_least=1)
        num_short = symbolic_size((ranks >= border).sum(), at_least=1)
        # A trace treats a length of 1 as a constant, so no length is smaller than 2.
        long = symbolic_size((sorted_counts[0] * (border > 0)).clamp(min=2), at_least=2)
        short = symbolic_size(sorted_counts.gather(0, border).clamp(min=2), at_least=2)
        in_short = num_long * long + (ranks - border) * short
        first_slots = in_short.where(ranks >= border, ranks * long)[order.argsort()]
        places = is_kept.long().cumsum(dim=1) - 1
        self.slots = (first_slots[:, None] + places).flatten().index_select(0, self.index)
        self.tokens = []
        self.is_filled = []
        for start, number, length in ((0, num_long, long), (border, num_short, short)):
            rows = order[start + torch.arange(number, device=counts.device)]
            places = torch.arange(length, device=counts.device)
            own = counts[rows][:, None]
            self.tokens.append(first[rows][:, None] + places.minimum(own - 1))
            self.is_filled.append(places < own)

    def spread(self, states: torch.Tensor) -> list[torch.Tensor]:
        """`(1, heads, N, head_dim)` to `(n, heads, L, head_dim)` for each group."""
        rows = states.transpose(1, 2).squeeze(0)
        return [select(rows, tokens).transpose(1, 2) for tokens in self.tokens]

    def collect(self, outputs: list[torch.Tensor]) -> torch.Tensor:
        """`(n, L, heads, head_dim)` of each group to `(1, N, heads, head_dim)`."""
        rows = torch.cat([output.flatten(0, 1) for output in outputs])
        return rows.index_select(0, self.slots).unsqueeze(0)

    def masks(self, dense: torch.Tensor | None) -> list[torch.Tensor | None]:
        """The mask of each group, `(n, 1, L, L)`, from that of the padded batch."""
        assert dense is not None
        batch_size, length = self.shape
        values = dense.expand(batch_size, 1, length, length).flatten()
        hidden = False if dense.dtype == torch.bool else torch.finfo(dense.dtype).min
        masks: list[torch.Tensor | None] = []
        for tokens, is_filled in zip(self.tokens, self.is_filled, strict=True):
            places = select(self.index, tokens)
            columns = places - places // length * length
            mask = select(values, places[:, :, None] * length + columns[:, None])
            masks.append(mask.masked_fill(~is_filled[:, None], hidden)[:, None])
        return masks


def symbolic_size(value: torch.Tensor, at_least: int) -> int:
    """A value of the data as a size in a graph. Unlike a size that is computed from that of the
    batch, it is not taken for the number that it has in the sample."""
    size: Any = value.item()
    torch._check(size >= at_least)
    return size


def select(states: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """`states[index]`, which the exporters would translate to a slower operation."""
    return states.index_select(0, index.flatten()).unflatten(0, index.shape)


def slots_of_rows(side: FlatTokens, device: torch.device) -> Slots:
    """The rows of the batch as one group."""
    return Slots(side.filled_on(device), side.index_on(device), [side.shape])


def sizes_of_groups(lengths: list[int]) -> list[int]:
    """The number of documents in each group, for lengths in falling order."""
    starts = [0]
    for number, length in enumerate(lengths):
        longest = lengths[starts[-1]]
        saved = (len(lengths) - number) * (longest**2 - length**2)
        if length <= MAX_SHARE * longest and saved >= MIN_PAIRS:
            starts.append(number)
    return [end - start for start, end in pairwise([*starts, len(lengths)])]


def slots_of_documents(
    side: FlatTokens, sizes: list[int], device: torch.device
) -> tuple[Slots, list[torch.Tensor | None]]:
    """The slots of groups of `sizes` documents, and whether each slot has a token, `(n, L)` for each
    group; None if all of them have one."""
    lengths = torch.tensor(side.lengths, device="cpu")
    first = lengths.cumsum(0) - lengths
    tokens = []
    is_real = []
    runs = []
    for starts, counts in zip(first.split(sizes), lengths.split(sizes), strict=True):
        longest = min(-(-int(counts.max()) // MULTIPLE) * MULTIPLE, side.shape[1])
        places = torch.arange(longest, device="cpu")
        is_real.append((places < counts[:, None]).flatten())
        tokens.append((starts[:, None] + places.minimum(counts[:, None] - 1)).flatten())
        runs.append((len(counts), longest))
    flags = torch.cat(is_real)
    slots = flags.nonzero().squeeze(1)
    # All tables go to the device in one transfer.
    tables = torch.cat([*tokens, slots, flags.long()]).to(device)
    all_tokens, all_slots, all_flags = tables.split([len(flags), len(slots), len(flags)])
    parts = all_flags.bool().split([count * length for count, length in runs])
    is_real = [
        None if bool(here.all()) else part.view(run)
        for here, part, run in zip(is_real, parts, runs, strict=True)
    ]
    has_gaps = len(slots) < len(flags)
    return Slots(all_tokens, all_slots if has_gaps else None, runs), is_real


def is_in_window(
    queries: torch.Tensor, keys: torch.Tensor, window: int, is_causal: bool
) -> torch.Tensor:
    """Whether keys are less than `window` places away and, if causal, not after the query."""
    distance = queries - keys
    is_near = distance < window
    return is_near & (distance >= 0 if is_causal else distance > -window)
