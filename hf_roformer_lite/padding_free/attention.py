"""Attention of a flat row, in one of three forms.

*By document*: one call for all documents of one length, on views; nothing is gathered or padded.
*Padded inside attention*: queries, keys and values are put back into the rows of the batch, and the
model's own mask is applied, so this form is correct for any mask. An exported graph takes the rows
in two groups of similar length (`sorted_rows.py`). *At once*: torch's attention for documents of
various lengths. `attend_to_flat_row` has the rule.
"""

import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.fx.experimental.symbolic_shapes import statically_known_true
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.modeling_utils import AttentionInterface

from .masks import HALF_PRECISION, NAME, DocumentMask, FlatMask, Pattern, Runs, as_additive

varlen_attn: Callable[..., Any] | None
try:
    from torch.nn.attention.varlen import varlen_attn
except ImportError:  # Some builds of torch lack it.
    varlen_attn = None

APPLE = "mps"  # torch's name for an Apple GPU.
# On a CPU, the gradient of sdpa in half precision takes several times as long as in float32, unless
# documents are at least this long.
MIN_HALF_PRECISION_KEYS = 512
# The length of a block of queries, in windows. Blocks should not be small, because the gradient of
# each one is as long as the whole document.
WINDOWS_OF_A_BLOCK = 4
# The longest document with a window whose mask is made as a whole.
MAX_LENGTH_WITH_WINDOW = 2048

# Queries, keys and values, `(B, heads, L, head_dim)` each, or those of a flat row,
# `(1, heads, N, head_dim)`.
QueryKeyValue = tuple[torch.Tensor, ...]


def padding_free_attention(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | DocumentMask | FlatMask | None,
    **kwargs: Any,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """A transformers attention function, from `(B, heads, L, head_dim)` to `(B, L, heads,
    head_dim)`.

    For a flat row, B is 1 and L is the number of all real tokens. For a batch, this is attention by
    sdpa, or by the function in the model's own file if sdpa lacks a feature.
    """
    if isinstance(attention_mask, FlatMask):
        qkv = (query, key, value)
        return attend_to_flat_row(module, qkv, attention_mask, **kwargs), None
    if isinstance(attention_mask, DocumentMask):
        attention_mask = attention_mask.dense
    # In a trace of torch.jit, a size is a tensor.
    if not torch.jit.is_tracing() and statically_known_true(query.numel() * key.numel() == 0):
        # The output is empty or zero. It depends on all three, so that each gets a gradient.
        return (query * 0 + (key.sum() + value.sum()) * 0).transpose(1, 2), None
    attend = attend_eagerly if needs_eager(query, kwargs) else sdpa_attention_forward
    return attend(module, query, key, value, attention_mask, **kwargs)


def needs_eager(query: torch.Tensor, kwargs: dict[str, Any]) -> bool:
    """Whether probabilities, capped scores or sinks are requested, which sdpa lacks, or whether
    sdpa is wrong: on an Apple GPU in half precision, causal queries attend to later keys
    (pytorch#195910), and a mask that hides all keys yields NaN (pytorch#156707)."""
    is_wrong = query.device.type == APPLE and query.dtype in HALF_PRECISION
    has_capped_scores = kwargs.get("softcap") is not None
    has_sinks = kwargs.get("s_aux") is not None
    return bool(kwargs.get("output_attentions")) or has_capped_scores or has_sinks or is_wrong


def attend_eagerly(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    is_causal: bool | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The `eager_attention_forward` of the model's own file, with a mask in the form it expects. A
    subclass that is defined elsewhere uses that of the class it extends.

    Args:
        is_causal: As the layer passes it. Default: the attribute of the module.
    """
    if is_causal is None:
        is_causal = getattr(module, "is_causal", True)
    if attention_mask is None and is_causal and query.shape[2] > 1:
        is_seen = query.new_ones(query.shape[2], key.shape[2], dtype=torch.bool)
        attention_mask = is_seen.tril()[None, None]
    if attention_mask is not None:
        attention_mask = as_additive(attention_mask, query.dtype)
    files = (sys.modules[base.__module__] for base in type(module).__mro__)
    eager_attention_forward = next(
        file.eager_attention_forward for file in files if hasattr(file, "eager_attention_forward")
    )
    return eager_attention_forward(module, query, key, value, attention_mask, **kwargs)


def is_faster_by_document(query: torch.Tensor, mask: FlatMask, pattern: Pattern) -> bool:
    """Whether one call for each length of documents is faster than padded rows.

    On a CPU, such a call costs less than padding; on an accelerator, where a call takes about as
    long for one short document as for many, it is the other way round, unless the mask of packed or
    long rows would be large. A document without keys needs a call of its own.
    """
    is_long = pattern.window is not None and mask.keys.longest > MAX_LENGTH_WITH_WINDOW
    has_large_mask = pattern.documents is not None or is_long
    return query.device.type == "cpu" or has_large_mask or min(mask.keys.lengths) == 0


def attend_to_flat_row(
    module: nn.Module,
    qkv: QueryKeyValue,
    mask: FlatMask,
    position_bias: torch.Tensor | None = None,
    is_causal: bool | None = None,
    **kwargs: Any,
) -> torch.Tensor:
    """Attention in a flat row, to `(1, N, heads, head_dim)`.

    Padded rows under the model's own mask are the only form that a graph can hold, and the only
    correct one if the mask is no pattern of documents.

    Args:
        position_bias: The position bias of T5, `(1, heads, L, L)`, which is the same for every
            document and row; a single zero for its cross-attention, which has no bias.
        is_causal: Used only with the model's own mask. A pattern has this information.
    """
    pattern = mask.pattern
    # Without a pattern the zero counts: a query that sees no key then attends to all of them.
    if pattern is not None and position_bias is not None and position_bias.numel() == 1:
        position_bias = None
    rows = mask.sorted_rows
    if rows is not None and position_bias is None:
        outputs = [
            padding_free_attention(module, *group, is_causal=is_causal, **kwargs)[0]
            for group in zip(*map(rows.spread, qkv), rows.masks, strict=True)
        ]
        return rows.collect(outputs)
    query, _, value = qkv
    if pattern is not None:
        if takes_varlen(query, value, position_bias=position_bias, **kwargs):
            return attend_at_once(qkv, mask, pattern, **kwargs)
        if is_faster_by_document(query, mask, pattern):
            return attend_by_document(module, qkv, mask, pattern, position_bias, **kwargs)
    # If a query sees no key, as it may under a mask without a pattern, sdpa returns zeros only for
    # a mask of True and False.
    dense = mask.dense_on(query.device) if pattern is None else mask.additive_for(query)
    sides = (mask.queries, mask.keys, mask.keys)
    query, key, value = (
        side.spread(states.transpose(1, 2)).transpose(1, 2)
        for side, states in zip(sides, qkv, strict=True)
    )
    output, _ = padding_free_attention(
        module,
        query,
        key,
        value,
        dense,
        position_bias=position_bias,
        is_causal=is_causal,
        **kwargs,
    )
    return mask.queries.collect(output)


@torch.compiler.disable  # Each new shape, which depends on the data, would be compiled again.
def attend_by_document(
    module: nn.Module,
    qkv: QueryKeyValue,
    mask: FlatMask,
    pattern: Pattern,
    position_bias: torch.Tensor | None = None,
    **kwargs: Any,
) -> torch.Tensor:
    """Attention in a flat row by one call for all documents of one length. Its arguments are views,
    and the gradient of `split` is one concatenation."""
    dtype = qkv[0].dtype
    needs_gradient = qkv[0].requires_grad and torch.is_grad_enabled()
    is_short = mask.keys.longest < MIN_HALF_PRECISION_KEYS
    is_slow = dtype in HALF_PRECISION and needs_gradient and is_short
    if is_slow and qkv[0].device.type == "cpu":
        qkv = tuple(each.float() for each in qkv)
        if position_bias is not None:
            position_bias = position_bias.float()
        with torch.autocast("cpu", enabled=False):
            output = attend_by_document(module, qkv, mask, pattern, position_bias, **kwargs)
        return output.to(dtype)
    outputs = []
    for documents in zip(*map(split_runs, qkv, mask.runs), strict=True):
        output = attend(module, documents, pattern, position_bias, **kwargs)
        outputs.append(output.flatten(0, 1))
    output = torch.cat(outputs) if len(outputs) > 1 else outputs[0]  # (N, heads, head_dim)
    return output.unsqueeze(0)


def split_runs(states: torch.Tensor, runs: Runs) -> Iterator[torch.Tensor]:
    """Split states `(1, heads, N, head_dim)` into `(count, heads, length, head_dim)` for each run
    of `count` documents of one length."""
    pieces = states.split([count * length for count, length in runs], dim=2)
    for piece, (count, length) in zip(pieces, runs, strict=True):
        if count > 1:
            piece = piece.squeeze(0).unflatten(1, (count, length)).transpose(0, 1)
        yield piece


def attend(
    module: nn.Module,
    qkv: QueryKeyValue,
    pattern: Pattern,
    position_bias: torch.Tensor | None,
    **kwargs: Any,
) -> torch.Tensor:
    """Attention in n documents of one length, to `(n, length, heads, head_dim)`.

    With a window, each block of queries gets only the keys within reach, so that the cost is linear
    in the length.
    """
    query, key, value = qkv
    length = query.shape[2]
    is_causal, window, _ = pattern
    if position_bias is not None:
        kwargs["position_bias"] = position_bias[:, :, :length, : key.shape[2]]
    if window is None or length <= window:
        return padding_free_attention(
            module, query, key, value, None, is_causal=is_causal, **kwargs
        )[0]
    size = WINDOWS_OF_A_BLOCK * window if position_bias is None else length
    places = torch.arange(length, device=query.device)
    outputs = []
    for start in range(0, length, size):
        first = max(start - window, 0)
        last = start + size + (0 if is_causal else window)
        distance = places[start : start + size, None] - places[first:last]
        is_seen = distance >= 0 if is_causal else distance > -window
        is_seen = is_seen & (distance < window)
        output, _ = padding_free_attention(
            module,
            query[:, :, start : start + size],
            key[:, :, first:last],
            value[:, :, first:last],
            is_seen[None, None],
            is_causal=False,  # The mask is already causal if it must be.
            **kwargs,
        )
        outputs.append(output)
    return torch.cat(outputs, dim=1)


def takes_varlen(
    query: torch.Tensor,
    value: torch.Tensor,
    position_bias: torch.Tensor | None = None,
    dropout: float = 0.0,
    **kwargs: Any,
) -> bool:
    """Whether torch's variable-length attention can compute the flat row in one call. It needs an
    Ampere or newer GPU and half precision, and has neither dropout nor the features that sdpa
    lacks."""
    if varlen_attn is None or not query.is_cuda or dropout or position_bias is not None:
        return False
    is_half = query.dtype in HALF_PRECISION
    fits = query.shape[-1] == value.shape[-1] <= 256 and query.shape[-1] % 8 == 0
    if not is_half or not fits or needs_eager(query, kwargs):
        return False
    return torch.cuda.get_device_capability(query.device) >= (8, 0)


def attend_at_once(
    qkv: QueryKeyValue,
    mask: FlatMask,
    pattern: Pattern,
    scaling: float | None = None,
    **kwargs: Any,
) -> torch.Tensor:
    """Attention in a flat row by torch's variable-length attention."""
    assert varlen_attn is not None
    is_causal, window, _ = pattern
    reach = -1 if window is None else window - 1  # -1 means the whole document.
    query, key, value = (each[0].transpose(0, 1) for each in qkv)  # (N, heads, head_dim)
    output = varlen_attn(
        query,
        key,
        value,
        *mask.cu_seq_lens(query.device),
        mask.queries.longest,
        mask.keys.longest,
        scale=scaling,
        window_size=(reach, 0 if is_causal else reach),
        enable_gqa=query.shape[1] != key.shape[1],
    )
    return output.unsqueeze(0)


AttentionInterface.register(NAME, padding_free_attention)
