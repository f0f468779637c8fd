"""One vector for each document, from the states of its tokens."""

from typing import Any

import torch
from transformers.utils.import_utils import is_tracing

from .packing import is_padding_mask, number_tokens, real_tokens


def pool(
    hidden_states: torch.Tensor,
    how: str,
    attention_mask: Any = None,
    documents: torch.Tensor | None = None,
) -> torch.Tensor:
    """One vector for each document, `(documents, width)`, from states `(B, L, width)`.

    Args:
        how: `mean`, `cls` (the first real token) or `last` (the last one).
        attention_mask: `(B, L)`, nonzero for real tokens. Other masks do not show where padding is.
        documents: `(B, L)`, as `find_packed_documents` numbers them. None: a row is a document.
    """
    if documents is not None and not is_tracing(hidden_states):
        return pool_packed(hidden_states, how, attention_mask, documents)
    if not is_padding_mask(attention_mask):
        if how == "mean":
            return hidden_states.mean(dim=1)
        return hidden_states[:, 0 if how == "cls" else -1]
    # Half precision can't hold long sums.
    exact = torch.promote_types(hidden_states.dtype, torch.float32)
    weights = real_tokens(attention_mask, hidden_states).to(exact)  # (B, L)
    if how == "mean":
        total = (hidden_states * weights[..., None]).sum(dim=1)
        return (total / weights.sum(dim=1, keepdim=True).clamp(min=1)).to(hidden_states.dtype)
    indices = weights.argmax(dim=1)
    if how == "last":
        indices = weights.shape[1] - 1 - weights.flip(1).argmax(dim=1)
    return hidden_states[torch.arange(len(indices), device=indices.device), indices]


def pool_packed(
    hidden_states: torch.Tensor, how: str, attention_mask: Any, documents: torch.Tensor
) -> torch.Tensor:
    """Like `pool`, for sequences that hold several documents. A document without tokens gets
    zeros."""
    count = int(documents[-1, -1])
    documents = number_tokens(hidden_states, attention_mask, documents)
    indices = documents.flatten().nonzero().squeeze(1)  # (N,)
    numbers = documents.flatten()[indices] - 1  # (N,), in rising order
    states = hidden_states.flatten(0, 1)[indices]  # (N, width)
    lengths = torch.bincount(numbers, minlength=count)
    if how == "mean":
        exact = torch.promote_types(states.dtype, torch.float32)
        sums = states.new_zeros(count, states.shape[-1], dtype=exact)
        sums = sums.index_add(0, numbers, states.to(exact))
        return (sums / lengths[:, None].clamp(min=1)).to(states.dtype)
    ends = lengths.cumsum(dim=0)
    chosen = ends - lengths if how == "cls" else ends - 1
    return states[chosen.clamp(min=0, max=len(states) - 1)] * (lengths > 0)[:, None]
