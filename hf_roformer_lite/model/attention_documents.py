"""Attention over documents that stand one after the other, `(N, heads, head_dim)`, without a cache.

On a GPU in half precision torch's own kernel for ragged tokens takes them as they are (`VarlenPlan`); everywhere else
they go in padded rows of similar length (`RowsPlan`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from torch import nn

from .attention_rows import AttentionFunction, RowsPlan, Span, plan_rows, window_blocks
from .configuration_roformer_lite import RoFormerLiteConfig
from .fast_linear import autocast_dtype
from .host_side import Movable
from .torch_internals import varlen_attention

VARLEN = "varlen"  # the backend that takes the place of sdpa where its kernel runs
MAX_HEAD_DIM = 256  # of the kernel, which takes multiples of 8
MIN_CAPABILITY = (8, 0)  # of the GPU: Ampere


def document_backend(config: RoFormerLiteConfig, device: torch.device, dtype: torch.dtype, is_training: bool) -> str:
    """`config._attn_implementation`, or `VARLEN` in place of sdpa where torch can.

    Args:
        device: Where the tokens are.
        dtype: Of the weights; under autocast its dtype counts.
        is_training: Whether probabilities are dropped, which the kernel cannot.
    """
    backend = config._attn_implementation
    dtype = autocast_dtype(device) or dtype
    is_possible = (
        backend == "sdpa"
        and device.type == "cuda"
        and dtype in (torch.float16, torch.bfloat16)
        and varlen_attention is not None
        and config.head_dim <= MAX_HEAD_DIM
        and config.head_dim % 8 == 0
        and not (is_training and config.attention_dropout)
        and _has_kernel(device)
    )
    return VARLEN if is_possible else backend


@torch.compiler.assume_constant_result
def _has_kernel(device: torch.device) -> bool:
    is_allowed = torch.backends.cuda.flash_sdp_enabled()  # a user may have switched it off
    is_built = is_allowed and torch.backends.cuda.is_flash_attention_available()
    return is_built and torch.cuda.get_device_capability(device) >= MIN_CAPABILITY


@dataclass
class VarlenPlan(Movable):
    """All tokens in one call of `torch.nn.attention.varlen.varlen_attn`, which knows where documents begin."""

    query_borders: torch.Tensor  # (documents + 1,) int32
    key_borders: torch.Tensor
    longest_query: int
    longest_key: int
    reach: tuple[int, int]  # how far a query sees to the left and to the right; -1 sees all

    def attend(
        self,
        function: AttentionFunction,
        module: nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        *,
        scaling: float,
        **kwargs: Any,
    ) -> tuple[torch.Tensor, None]:
        """`(..., heads, head_dim)`, any leading shape, to `(..., heads * head_dim)`; not by `function`."""
        flat = [states.reshape(-1, *states.shape[-2:]) for states in (query, key, value)]  # (N, heads, head_dim)
        borders = self.query_borders, self.key_borders, self.longest_query, self.longest_key
        is_grouped = query.shape[-2] != key.shape[-2]
        output = varlen_attention(*flat, *borders, scale=scaling, window_size=self.reach, enable_gqa=is_grouped)
        return output.reshape(*query.shape[:-2], -1), None


def plan_documents(
    query_lengths: Sequence[int],
    key_lengths: Sequence[int],
    query_tokens: int,
    key_tokens: int,
    backend: str,
    is_causal: bool,
    window: int | None,
) -> RowsPlan | VarlenPlan:
    """The plan by which each document of the queries attends to that of the keys with the same number.

    Args:
        query_lengths, key_lengths: Tokens of each document.
        query_tokens, key_tokens: Tokens of each side, with those behind the last document.
        backend: What `document_backend` returned.
        is_causal: Whether a token sees only itself and what comes before it; the sides are then the same.
        window: Reach of a sliding-window layer, which attends to its own side; None sees the whole document.
    """
    is_whole = (sum(query_lengths), sum(key_lengths)) == (query_tokens, key_tokens)  # it leaves others unwritten
    if backend == VARLEN and is_whole and min(*query_lengths, *key_lengths, 1) > 0:
        left = -1 if window is None else window - is_causal
        right = 0 if is_causal else left
        borders = (torch.from_dlpack(_borders(lengths)) for lengths in (query_lengths, key_lengths))
        return VarlenPlan(*borders, max(query_lengths, default=0), max(key_lengths, default=0), (left, right))
    query_starts, key_starts = (_borders(lengths)[:-1].tolist() for lengths in (query_lengths, key_lengths))
    documents = zip(query_starts, query_lengths, key_starts, key_lengths, strict=True)
    spans = [Span(*document) for document in documents]
    if window is not None:
        spans = [block for span in spans for block in window_blocks(*span[:2], is_causal, window)]
    return plan_rows(spans, query_tokens, key_tokens, is_causal, window)


def _borders(lengths: Sequence[int]) -> np.ndarray:
    return np.array([0, *accumulate(lengths)], dtype=np.int32)


__all__ = ["VARLEN", "VarlenPlan", "document_backend", "plan_documents"]
