"""Attention over documents of different lengths on backends that take rows: groups of similar length, padded.

In a sliding-window layer a long document is cut into blocks of queries, each with the band of keys it can see, so that
the cost is linear in its length.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from .fast_linear import is_traced_or_transformed
from .host_side import Movable
from .torch_internals import is_transformed

ArrayT = TypeVar("ArrayT", np.ndarray, torch.Tensor)
AttentionFunction = Callable[..., tuple[torch.Tensor, torch.Tensor | None]]

# A row shorter than this share of the longest row in its group begins a new group. Padding adds to the cost of
# attention by the square of the length; a group adds the launch of a few kernels.
GROUP_SHORTEST = 0.7

# On a CPU the gradient of sdpa in bfloat16 takes twice as long as in float32 at 128 keys, and less from this many on.
MIN_HALF_PRECISION_KEYS = 512


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
    is_in_order: bool  # whether the rows are the tokens, as those of a batch without padding are

    def to_rows(self, states: torch.Tensor) -> list[torch.Tensor]:
        """`(N, heads, head_dim)` to one `(b, heads, l, head_dim)` a group."""
        if self.is_in_order:
            rows = states
        elif self.is_repeated:
            rows = states.index_select(0, self.token_of_row)
        else:
            no_row = self.padding[:0]
            rows = _move_rows(states, self.token_of_row, self.row_of_token, no_row, self.absent)
        pieces = rows.split([b * length for b, length in self.shapes])
        return [piece.unflatten(0, shape).transpose(1, 2) for piece, shape in zip(pieces, self.shapes, strict=True)]

    def to_tokens(self, rows: torch.Tensor) -> torch.Tensor:
        """`(M, width)` to `(N, width)`, zeros for absent tokens."""
        if self.is_in_order:
            return rows
        return _move_rows(rows, self.row_of_token, self.token_of_row, self.absent, self.padding)


def _row_side(groups: list[list[tuple[int, int]]], tokens: int, is_repeated: bool) -> RowSide:
    """The places of the runs `(start, length)` of each group, of `tokens` tokens in all; on the host."""
    index, is_real, shapes = [], [], []
    for runs in groups:
        start, length = np.array(runs).T[:, :, None]  # each (b, 1)
        place = np.arange(length.max())  # (l,)
        index.append((start + np.minimum(place, length - 1)).ravel())
        is_real.append((place < length).ravel())
        shapes.append((len(runs), len(place)))
    token_of_row, is_real = np.concatenate(index), np.concatenate(is_real)
    rows = np.flatnonzero(is_real)
    row_of_token = np.full(tokens, -1)
    row_of_token[token_of_row[rows]] = rows
    padding, absent = np.flatnonzero(~is_real), np.flatnonzero(row_of_token < 0)
    arrays = token_of_row, row_of_token.clip(min=0), padding, absent
    is_in_order = np.array_equal(token_of_row, np.arange(tokens))
    return RowSide(*map(torch.from_dlpack, arrays), shapes, is_repeated, is_in_order)


@dataclass
class RowsPlan(Movable):
    """Spans grouped by length, each group one call. Made by `plan_rows`."""

    queries: RowSide | None = None  # None: no query has a key
    keys: RowSide | None = None
    masks: list[torch.Tensor | None] = field(default_factory=list)  # of each group
    is_causal: bool = False

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
        if self.queries is None:
            return nothing_attended(query, key, value), None
        attend = partial(self._attend, function, module, **kwargs)
        if self.keys.is_repeated and torch.is_grad_enabled() and not is_traced_or_transformed(query):
            # A key of a sliding window stands in up to three rows: they are made again rather than kept.
            attend = partial(checkpoint, attend, use_reentrant=False)
        return attend(query, key, value), None

    def _attend(
        self,
        function: AttentionFunction,
        module: nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        **kwargs: Any,
    ) -> torch.Tensor:
        leading, width = query.shape[:-2], query.shape[-2] * query.shape[-1]
        given, in_float32 = query.dtype, self._learns_faster_in_float32(query)
        query, key, value = (
            (states.float() if in_float32 else states).reshape(-1, *states.shape[-2:])
            for states in (query, key, value)
        )  # (N, heads, head_dim)
        keys, values = self.keys.to_rows(key), self.keys.to_rows(value)
        rows = zip(self.queries.to_rows(query), keys, values, self.masks, strict=True)
        with torch.autocast("cpu", enabled=False) if in_float32 else nullcontext():
            outputs = [
                function(module, *states, mask, is_causal=self.is_causal, **kwargs)[0].reshape(-1, width)
                for *states, mask in rows
            ]  # each (b * lq, heads * head_dim)
        return self.queries.to_tokens(torch.cat(outputs)).to(given).reshape(*leading, width)

    def _learns_faster_in_float32(self, query: torch.Tensor) -> bool:
        is_half = query.device.type == "cpu" and query.dtype in (torch.bfloat16, torch.float16)
        has_grad = query.requires_grad and torch.is_grad_enabled()
        return is_half and has_grad and max(length for _, length in self.keys.shapes) < MIN_HALF_PRECISION_KEYS


def plan_rows(spans: list[Span], query_tokens: int, key_tokens: int, is_causal: bool, window: int | None) -> RowsPlan:
    """The plan of `spans`, with its index tensors on the host.

    Args:
        query_tokens, key_tokens: Tokens of each side, also those that stand in no span.
        window: Reach of a sliding-window layer, whose spans are `window_blocks`.
    """
    groups = _group_by_length([span for span in spans if span.query_len and span.key_len])
    if not groups:
        return RowsPlan()
    query_runs = [[(span.query_start, span.query_len) for span in group] for group in groups]
    key_runs = [[(span.key_start, span.key_len) for span in group] for group in groups]
    queries = keys = _row_side(query_runs, query_tokens, is_repeated=False)
    if key_runs != query_runs or key_tokens != query_tokens:
        keys = _row_side(key_runs, key_tokens, is_repeated=window is not None)
    # Causal rows that begin with their keys need no mask: padded keys stand behind every real query.
    has_no_mask = is_causal and window is None
    masks = [None if has_no_mask else _span_mask(group, is_causal, window) for group in groups]
    return RowsPlan(queries, keys, masks, has_no_mask)


def nothing_attended(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """What queries `(..., heads, head_dim)` without keys get: zeros `(..., heads * head_dim)`; all get a gradient."""
    return query.flatten(-2) * 0 + (key.sum() + value.sum()) * 0


def _span_mask(spans: list[Span], is_causal: bool, window: int | None) -> torch.Tensor | None:
    """Which keys the padded rows of `spans` may see, `(b, 1, lq | 1, lk)`; None when all."""
    query_start, query_len, key_start, key_len = np.array(spans).T[:, :, None]  # each (b, 1)
    longest = key_len.max()
    key_place = np.arange(longest)  # (lk,)
    mask = None
    if key_len.min() < longest:
        mask = (key_place < key_len)[:, None, None]  # (b, 1, 1, lk)
    if window is not None and (is_causal or longest > window + 1):
        query = query_start + np.minimum(np.arange(query_len.max()), query_len - 1)  # (b, lq)
        distance = query[:, None, :, None] - (key_start + key_place)[:, None, None]  # (b, 1, lq, lk)
        within = within_window(distance, is_causal, window)
        mask = within if mask is None else within & mask
    return None if mask is None else torch.from_dlpack(mask)


def within_window(distance: ArrayT, is_causal: bool, window: int) -> ArrayT:
    """Whether a key is inside the window, for `distance` = query's place - key's place, as transformers defines it."""
    return (distance >= 0) & (distance < window) if is_causal else abs(distance) <= window


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
