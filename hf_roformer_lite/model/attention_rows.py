"""Attention over documents of different lengths on backends that take rows: groups of similar length, padded.

In a sliding-window layer a long document is cut into blocks of queries, each with the band of keys it can see, so that
the cost is linear in its length.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import nn

from .torch_internals import is_transformed

AttentionFunction = Callable[..., tuple[torch.Tensor, torch.Tensor | None]]

# A row shorter than this share of the longest row in its group begins a new group. Padding adds to the cost of
# attention by the square of the length; a group adds the launch of a few kernels.
GROUP_SHORTEST = 0.7


class Span(NamedTuple):
    """A run of queries and the run of keys it may see, as places among the real tokens."""

    query_start: int
    query_len: int
    key_start: int
    key_len: int


class _MoveRows(torch.autograd.Function):
    """`states[index]`, whose gradient is a gather as well: `grad[inverse]`.

    The gradient of `index_select` adds row by row, which on a CPU takes several times as long as the matrix products
    of a whole layer. Here each row with a gradient is read exactly once, so nothing needs to be added.
    """

    @staticmethod
    def forward(
        ctx: Any,
        states: torch.Tensor,
        index: torch.Tensor,
        inverse: torch.Tensor,
        zeroed: torch.Tensor,
        zeroed_grad: torch.Tensor,
    ) -> torch.Tensor:
        ctx.save_for_backward(index, inverse, zeroed, zeroed_grad)
        return states.index_select(0, index).index_fill_(0, zeroed, 0.0)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None, None, None, None]:
        index, inverse, zeroed, zeroed_grad = ctx.saved_tensors
        return _MoveRows.apply(grad, inverse, index, zeroed_grad, zeroed), None, None, None, None


def _move_rows(
    states: torch.Tensor, index: torch.Tensor, inverse: torch.Tensor, zeroed: torch.Tensor, zeroed_grad: torch.Tensor
) -> torch.Tensor:
    """`_MoveRows`, or torch's own operations where functions are transformed (`torch.func`)."""
    if not torch.compiler.is_compiling() and is_transformed():
        return states.index_select(0, index).index_fill(0, zeroed, 0.0)
    return _MoveRows.apply(states, index, inverse, zeroed, zeroed_grad)


@dataclass
class RowSide:
    """Where the tokens of one side, queries or keys, stand among the padded rows of all groups."""

    token_of_row: torch.Tensor  # (M,) padding repeats the last token of its span
    row_of_token: torch.Tensor  # (N,)
    padding: torch.Tensor  # rows that are padding
    absent: torch.Tensor  # tokens that stand in no row
    shapes: list[tuple[int, int]]  # rows and length of each group
    is_repeated: bool  # whether a token may stand in several rows (keys of a sliding window)

    def to(self, device: torch.device | str | int) -> RowSide:
        """The same on `device`; itself if it is there."""
        token_of_row = self.token_of_row.to(device)
        if token_of_row is self.token_of_row:
            return self
        others = (self.row_of_token.to(device), self.padding.to(device), self.absent.to(device))
        return RowSide(token_of_row, *others, self.shapes, self.is_repeated)

    def to_rows(self, states: torch.Tensor) -> list[torch.Tensor]:
        """`(N, heads, head_dim)` to one `(b, heads, l, head_dim)` a group."""
        if self.is_repeated:
            rows = states.index_select(0, self.token_of_row)
        else:
            no_row = self.padding[:0]
            rows = _move_rows(states, self.token_of_row, self.row_of_token, no_row, self.absent)
        pieces = rows.split([b * length for b, length in self.shapes])
        return [piece.unflatten(0, shape).transpose(1, 2) for piece, shape in zip(pieces, self.shapes, strict=True)]

    def to_tokens(self, rows: torch.Tensor) -> torch.Tensor:
        """`(M, width)` to `(N, width)`, zeros for absent tokens."""
        return _move_rows(rows, self.row_of_token, self.token_of_row, self.absent, self.padding)


def _row_side(groups: list[list[tuple[int, int]]], tokens: int, device: torch.device, is_repeated: bool) -> RowSide:
    """The places of the runs `(start, length)` of each group, of `tokens` tokens in all."""
    index, is_real = [], []
    for runs in groups:
        start, length = torch.tensor(runs, device=device).unsqueeze(-1).unbind(1)  # each (b, 1)
        place = torch.arange(max(length for _, length in runs), device=device)  # (l,)
        index.append((start + place.minimum(length - 1)).flatten())
        is_real.append((place < length).flatten())
    token_of_row, is_real = torch.cat(index), torch.cat(is_real)
    row_of_token = torch.full((tokens + 1,), -1, device=device)
    row_of_token.scatter_(0, token_of_row.where(is_real, tokens), torch.arange(len(token_of_row), device=device))
    row_of_token = row_of_token[:-1]
    shapes = [(len(runs), max(length for _, length in runs)) for runs in groups]
    padding, absent = (~is_real).nonzero().squeeze(-1), (row_of_token < 0).nonzero().squeeze(-1)
    return RowSide(token_of_row, row_of_token.clamp(min=0), padding, absent, shapes, is_repeated)


class RowsPlan:
    """Spans grouped by length, each group one call."""

    def __init__(
        self,
        spans: list[Span],
        query_tokens: int,
        key_tokens: int,
        device: torch.device,
        is_causal: bool,
        window: int | None,
    ):
        groups = _group_by_length([span for span in spans if span.query_len and span.key_len])
        self.is_empty = not groups
        if self.is_empty:
            return
        query_runs = [[(span.query_start, span.query_len) for span in group] for group in groups]
        key_runs = [[(span.key_start, span.key_len) for span in group] for group in groups]
        self.queries = self.keys = _row_side(query_runs, query_tokens, device, is_repeated=False)
        if key_runs != query_runs or key_tokens != query_tokens:
            self.keys = _row_side(key_runs, key_tokens, device, is_repeated=window is not None)
        # Causal rows that begin with their keys need no mask: padded keys stand behind every real query.
        self.is_causal = is_causal and window is None
        self.masks = [None if self.is_causal else _span_mask(group, device, is_causal, window) for group in groups]

    def to(self, device: torch.device | str | int, non_blocking: bool = False) -> RowsPlan:
        """The same on `device`, for layers on another one (accelerate's hooks call this); itself if it is there."""
        if self.is_empty or (queries := self.queries.to(device)) is self.queries:
            return self
        plan = copy.copy(self)
        plan.queries, plan.keys = queries, queries if self.keys is self.queries else self.keys.to(device)
        plan.masks = [None if mask is None else mask.to(device) for mask in self.masks]
        return plan

    def attend(
        self,
        function: AttentionFunction,
        module: nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        **kwargs: Any,
    ) -> tuple[torch.Tensor, None]:
        """`(..., heads, head_dim)`, any leading shape, to `(..., heads * head_dim)`."""
        leading, width = query.shape[:-2], query.shape[-2] * query.shape[-1]
        if self.is_empty:
            return nothing_attended(query, key, value), None
        query, key, value = (states.reshape(-1, *states.shape[-2:]) for states in (query, key, value))  # (N, heads, d)
        keys, values = self.keys.to_rows(key), self.keys.to_rows(value)
        rows = zip(self.queries.to_rows(query), keys, values, self.masks, strict=True)
        outputs = [
            function(module, *states, mask, is_causal=self.is_causal, **kwargs)[0].reshape(-1, width)
            for *states, mask in rows
        ]  # each (b * lq, heads * head_dim)
        return self.queries.to_tokens(torch.cat(outputs)).reshape(*leading, width), None


def nothing_attended(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """What queries `(..., heads, head_dim)` without keys get: zeros `(..., heads * head_dim)`; all get a gradient."""
    return query.flatten(-2) * 0 + (key.sum() + value.sum()) * 0


def _span_mask(spans: list[Span], device: torch.device, is_causal: bool, window: int | None) -> torch.Tensor | None:
    """Which keys the padded rows of `spans` may see, `(b, 1, lq | 1, lk)`; None when all."""
    query_start, query_len, key_start, key_len = torch.tensor(spans, device=device).unsqueeze(-1).unbind(1)  # (b, 1)
    longest = max(span.key_len for span in spans)
    key_place = torch.arange(longest, device=device)  # (lk,)
    mask = None
    if len({span.key_len for span in spans}) > 1:
        mask = (key_place < key_len)[:, None, None]  # (b, 1, 1, lk)
    if window is not None and (is_causal or longest > window + 1):
        query_place = torch.arange(max(span.query_len for span in spans), device=device)  # (lq,)
        query = query_start + query_place.minimum(query_len - 1)
        distance = query[:, None, :, None] - (key_start + key_place)[:, None, None]  # (b, 1, lq, lk)
        within = within_window(distance, is_causal, window)
        mask = within if mask is None else within & mask
    return mask


def within_window(distance: torch.Tensor, is_causal: bool, window: int) -> torch.Tensor:
    """Whether a key is inside the window, for `distance` = query's place - key's place, as transformers defines it."""
    return (distance >= 0) & (distance < window) if is_causal else distance.abs() <= window


def _group_by_length(spans: list[Span]) -> list[list[Span]]:
    groups: list[list[Span]] = []
    for span in sorted(spans, key=lambda span: (span.key_len, span.query_len), reverse=True):
        if not groups or span.key_len < GROUP_SHORTEST * groups[-1][0].key_len:
            groups.append([])
        groups[-1].append(span)
    return groups


def window_blocks(start: int, length: int, is_causal: bool, window: int) -> list[Span]:
    """The spans of one document in a sliding-window layer: blocks of `window` queries with the band they can see."""
    if length <= 3 * window:
        return [Span(start, length, start, length)]
    spans = []
    for first in range(0, length, window):
        end = min(first + window, length)
        key_first = max(0, first - window)
        key_end = end if is_causal else min(length, end + window)
        spans.append(Span(start + first, end - first, start + key_first, key_end - key_first))
    return spans
