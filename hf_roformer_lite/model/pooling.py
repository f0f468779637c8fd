"""One vector for each sequence, from the states of its tokens."""

from typing import Any

import torch

from .packing import is_padding_mask, real_tokens


def pool(hidden_states: torch.Tensor, how: str, attention_mask: Any = None) -> torch.Tensor:
    """One vector for each sequence, `(B, width)`, from states `(B, L, width)`.

    Args:
        how: `mean`, `cls` (the first real token) or `last` (the last one).
        attention_mask: `(B, L)`, nonzero for real tokens. Other masks do not show where padding is.
    """
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
    return hidden_states[torch.arange(indices.shape[0], device=indices.device), indices]
