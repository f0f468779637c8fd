"""Attention in an exported graph, with the rows of the batch in two groups of similar length.

A graph cannot make one call for each length, because it has a fixed number of operations. With one
call for the whole batch, attention computes the padding. Two calls, one for the longer and one for
the shorter rows, leave little of it.
"""

from typing import Any

import torch

from .batch import FlatTokens


class SortedRows:
    """The rows of the batch, divided where this saves the most pairs of tokens.

    Each group is as long as its longest row. The tokens of a row take its first slots in their
    order, so padding has no slot even if it stands before or between them, and causal attention
    remains causal. Runtimes do not support a group without rows, so if all rows belong to the
    second group, the first one has two slots of one row, whose output is not used.

    Args:
        tokens: The tokens of the traced graph.
        dense: The ordinary mask, `(B or 1, 1, L, L)`.
    """

    def __init__(self, tokens: FlatTokens, dense: torch.Tensor):
        assert tokens.index is not None
        is_kept = tokens.numbers != 0
        counts = is_kept.long().sum(dim=1)
        first = counts.cumsum(0) - counts  # The first token of each row.
        sorted_counts, order = counts.sort(descending=True)
        batch_size = tokens.shape[0]  # `len` would make the size of the sample a constant.
        ranks = torch.arange(batch_size, device=counts.device)
        squares = sorted_counts * sorted_counts
        border = ((batch_size - ranks) * (squares[:1] - squares)).argmax()
        num_long = size_in_graph(border.clamp(min=1), at_least=1)
        num_short = size_in_graph((ranks >= border).sum(), at_least=1)
        # A trace treats a length of 1 as a constant, so no length is smaller than 2.
        long = size_in_graph((sorted_counts[0] * (border > 0)).clamp(min=2), at_least=2)
        short = size_in_graph(sorted_counts.gather(0, border).clamp(min=2), at_least=2)
        in_short = num_long * long + (ranks - border) * short
        first_slots = in_short.where(ranks >= border, ranks * long)[order.argsort()]
        places = is_kept.long().cumsum(dim=1) - 1
        # The slot of each token, `(N,)`, and the token of each slot, `(n, L)` for each group.
        self.slots = (first_slots[:, None] + places).flatten().index_select(0, tokens.index)
        self.tokens = []
        self.masks = []
        for start, number, length in ((0, num_long, long), (border, num_short, short)):
            rows = order[start + torch.arange(number, device=counts.device)]
            places = torch.arange(length, device=counts.device)
            own_counts = counts[rows][:, None]
            group = first[rows][:, None] + places.minimum(own_counts - 1)
            self.tokens.append(group)
            mask = mask_of_group(dense, tokens, select(tokens.index, group))
            is_filled = (places < own_counts)[:, None]
            if mask.dtype == torch.bool:
                mask = mask & is_filled  # Runtimes lack `masked_fill` of truth values.
            else:
                mask = mask.masked_fill(~is_filled, torch.finfo(mask.dtype).min)
            self.masks.append(mask[:, None])

    def spread(self, states: torch.Tensor) -> list[torch.Tensor]:
        """`(1, heads, N, head_dim)` to `(n, heads, L, head_dim)` for each group."""
        rows = states.transpose(1, 2).squeeze(0)
        return [select(rows, tokens).transpose(1, 2) for tokens in self.tokens]

    def collect(self, outputs: list[torch.Tensor]) -> torch.Tensor:
        """`(n, L, heads, head_dim)` of each group to `(1, N, heads, head_dim)`."""
        rows = torch.cat([output.flatten(0, 1) for output in outputs])
        return rows.index_select(0, self.slots).unsqueeze(0)


def mask_of_group(dense: torch.Tensor, tokens: FlatTokens, index: torch.Tensor) -> torch.Tensor:
    """The mask between the tokens of each row, `(n, L, L)`.

    Args:
        index: `(n, L)`, the places of the tokens among the B * L of the batch.
    """
    batch_size, length = tokens.shape
    values = dense.expand(batch_size, 1, length, length).flatten()
    columns = index - index // length * length
    return select(values, index[:, :, None] * length + columns[:, None])


def select(states: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """`states[index]`, which the exporters would translate to a slower operation."""
    return states.index_select(0, index.flatten()).unflatten(0, index.shape)


def size_in_graph(value: torch.Tensor, at_least: int) -> int:
    """A value of the data as a size in a graph. Unlike a size that is computed from that of the
    batch, it is not taken for the number that it has in the sample."""
    size: Any = value.item()
    torch._check(size >= at_least)
    return size
