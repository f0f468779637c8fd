"""Which queries attend to which keys, when documents have different lengths, on any backend of transformers.

A plan is made once in a forward pass for each type of layer, and shared by all layers of that type. It takes queries,
keys and values as the layers compute them, `(N, heads, head_dim)` or `(B, L, heads, head_dim)`, and passes them to the
attention function (`ALL_ATTENTION_FUNCTIONS`) in the form which that function expects:

* `DensePlan`: the batch as it is, with a mask if one is needed.
* `RowsPlan` (sdpa, eager): rows of similar length, padded to the longest of their group; long rows of a sliding-window
  layer are cut into blocks of queries, each with the band of keys it can see, so that the cost is linear in length.
* `VarlenPlan` (sdpa on a GPU in half precision): the tokens and the borders of documents, by torch's own kernel.
* `OperatorPlan` (sdpa in a compiled graph): whichever of the last two it is, found out when the graph runs.
* `FlatPlan` (flash and flex attention): all tokens in one row, the documents told apart by the backend itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from transformers.utils import is_torch_flex_attn_available

from .attention_documents import VarlenPlan, plan_documents
from .attention_rows import AttentionFunction, RowsPlan, nothing_attended, within_window
from .host_side import Movable
from .operators import OperatorPlan
from .ragged import RaggedBatch

if is_torch_flex_attn_available():
    from torch.nn.attention.flex_attention import BlockMask, create_block_mask


def eager_attention_forward(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float,
    dropout: float = 0.0,
    is_causal: bool | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention written out (Vaswani et al. 2017, section 3.2.1), the only backend that returns its probabilities.

    Args:
        query: `(B, heads, Lq, head_dim)`.
        key, value: `(B, key_value_heads, Lk, head_dim)`.
        attention_mask: Broadcastable to `(B, heads, Lq, Lk)`; boolean with True to see, or a float to add. A query
            that a boolean mask leaves without keys gets zeros.
        scaling: Factor of the products.
        is_causal: Without a mask, whether query i sees keys up to i only.

    Returns:
        Output `(B, Lq, heads, head_dim)` and probabilities `(B, heads, Lq, Lk)`.
    """
    groups = query.shape[1] // key.shape[1]
    if groups > 1:
        key, value = key.repeat_interleave(groups, dim=1), value.repeat_interleave(groups, dim=1)
    scores = query @ key.transpose(-1, -2) * scaling  # (B, heads, Lq, Lk)
    if attention_mask is None and is_causal and query.shape[2] > 1:
        attention_mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
    visible = attention_mask if attention_mask is not None and attention_mask.dtype == torch.bool else None
    if visible is not None:
        scores = scores.masked_fill(~visible, torch.finfo(scores.dtype).min)
    elif attention_mask is not None:
        scores = scores + attention_mask
    softmax_dtype = torch.promote_types(query.dtype, torch.float32)
    probabilities = scores.softmax(dim=-1, dtype=softmax_dtype).to(query.dtype)
    if visible is not None:
        probabilities = probabilities.masked_fill(~visible, 0.0)
    probabilities = nn.functional.dropout(probabilities, p=dropout, training=module.training)
    return (probabilities @ value).transpose(1, 2).contiguous(), probabilities


class FlexMask:
    """A BlockMask of flex attention for each device that asks: it cannot be moved, as its function holds tensors."""

    def __init__(self, make: Callable[[torch.device], BlockMask]):
        self._make, self._masks = make, {}

    def on(self, device: torch.device) -> BlockMask:
        if device not in self._masks:
            self._masks[device] = self._make(device)
        return self._masks[device]


@dataclass
class _MaskedPlan(Movable):
    """A mask and options of the backend, on the device of the layers."""

    mask: Any = None
    is_causal: bool = False
    options: dict[str, Any] = field(default_factory=dict)

    def mask_on(self, device: torch.device) -> Any:
        """What the backend gets as its mask."""
        return self.mask.on(device) if isinstance(self.mask, FlexMask) else self.mask


@dataclass
class DensePlan(_MaskedPlan):
    """The whole batch in one call. Keys may be longer than queries (a cache).

    `mask` is what the backend takes: bool or float `(B, 1, Lq | 1, Lk)`, FlexMask, 2-D for flash, or None.
    """

    def attend(
        self,
        function: AttentionFunction,
        module: nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        **kwargs: Any,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """`(B, Lq, heads, head_dim)` and `(B, Lk, key_value_heads, head_dim)` to `(B, Lq, heads * head_dim)`."""
        if function is not eager_attention_forward and _is_empty(query, key):
            return nothing_attended(query, key, value), None
        query, key, value = query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2)
        mask = self.mask_on(query.device)
        output, weights = function(module, query, key, value, mask, is_causal=self.is_causal, **self.options, **kwargs)
        return output.flatten(-2), weights


@dataclass
class FlatPlan(_MaskedPlan):
    """All tokens as one row; the documents are in `options` (flash: cu_seq_lens) or in `mask` (FlexMask)."""

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
        flat = [states.reshape(1, -1, *states.shape[-2:]).transpose(1, 2) for states in (query, key, value)]
        mask = self.mask_on(query.device)
        output, _ = function(module, *flat, mask, is_causal=self.is_causal, **self.options, **kwargs)
        return output.reshape(*query.shape[:-2], -1), None


def _is_empty(query: torch.Tensor, key: torch.Tensor) -> bool:
    """Whether there is nothing to attend, as in a batch of no rows, which transformers' functions cannot take."""
    return not (torch.compiler.is_compiling() or torch.jit.is_tracing()) and not (query.numel() and key.numel())


AttentionPlan = DensePlan | FlatPlan | RowsPlan | VarlenPlan | OperatorPlan


def plan_self_attention(batch: RaggedBatch, backend: str, is_causal: bool, window: int | None) -> AttentionPlan:
    """The plan of the layers of one type over `batch`, without a cache.

    Args:
        batch: The tokens.
        backend: What `document_backend` returned.
        is_causal: Whether a token sees only itself and what comes before it.
        window: Reach of a sliding-window layer; None sees the whole document.
    """
    if batch.row_lengths is not None:
        return OperatorPlan(batch.row_lengths, batch.row_lengths, backend, is_causal, window)
    if batch.is_dense and (window is None or not batch.lengths or is_flat(backend)):
        return _dense_plan(batch, backend, is_causal, window)
    if is_flat(backend):
        return _flat_plan(batch, batch, backend, is_causal, window)
    return plan_documents(batch.lengths, batch.lengths, batch.num_rows, batch.num_rows, backend, is_causal, window)


def plan_cross_attention(queries: RaggedBatch, keys: RaggedBatch, backend: str) -> AttentionPlan:
    """The plan by which each document of `queries` attends to the document of `keys` with the same number.

    Raises:
        ValueError: when the two sides have different numbers of documents.
    """
    knows_no_lengths = queries.row_lengths is not None
    if (knows_no_lengths or queries.is_dense and keys.is_dense) and (queries.is_packed or keys.is_packed):
        raise ValueError("Packed input to an encoder–decoder cannot be traced or return hidden states; pad it.")
    if knows_no_lengths:
        return OperatorPlan(queries.row_lengths, _row_lengths(keys), backend)
    if queries.is_dense and keys.is_dense:
        if keys.attention_mask is None:
            return DensePlan()
        return _masked_dense_plan(keys, backend, queries.seq_len, False, None, {})
    if len(queries.lengths) != len(keys.lengths):
        raise ValueError(
            f"The decoder has {len(queries.lengths)} documents and the encoder {len(keys.lengths)}; each document of "
            "the decoder needs its own in the encoder."
        )
    if is_flat(backend):
        return _flat_plan(queries, keys, backend, False, None)
    return plan_documents(queries.lengths, keys.lengths, queries.num_rows, keys.num_rows, backend, False, None)


def _row_lengths(batch: RaggedBatch) -> torch.Tensor:
    if batch.row_lengths is not None:
        return batch.row_lengths
    return torch.full((batch.batch_size,), batch.seq_len, device="cpu")


def plan_paged_attention(
    masks: torch.Tensor | dict[str, torch.Tensor] | None, kind: str, window: int | None
) -> DensePlan:
    """The plan of the layers of type `kind` in continuous batching: all requests in one row, `(1, N)`.

    The attention function fetches their keys and values from the paged cache among its arguments. Which tokens attend
    to which is given by masks, one for each type of layer or one for all, or for flash attention by `cu_seq_lens_*`.
    """
    mask = masks[kind] if isinstance(masks, dict) else masks
    return DensePlan(mask, is_causal=mask is None, options={} if window is None else {"sliding_window": window})


def is_flat(backend: str) -> bool:
    """Whether a backend takes all tokens in one row, and so no row without a document."""
    return _is_flash(backend) or _is_flex(backend)


def _is_flash(backend: str) -> bool:
    return "flash" in backend


def _is_flex(backend: str) -> bool:
    return backend == "flex_attention"


def _flash_window(is_causal: bool, window: int | None) -> dict[str, int]:
    """For flash attention transformers counts the token itself as part of the window, on both sides."""
    return {} if window is None else {"sliding_window": window if is_causal else window + 1}


def _flat_plan(queries: RaggedBatch, keys: RaggedBatch, backend: str, is_causal: bool, window: int | None) -> FlatPlan:
    if _is_flash(backend):
        options = {
            "cu_seq_lens_q": queries.cu_seqlens(),
            "cu_seq_lens_k": keys.cu_seqlens(),
            "max_length_q": max(queries.lengths),
            "max_length_k": max(keys.lengths),
        }
        return FlatPlan(None, is_causal, options | _flash_window(is_causal, window))

    def block_mask(device: torch.device) -> BlockMask:
        query_document, key_document = (side.document_of_token().to(device) for side in (queries, keys))

        def sees(b: torch.Tensor, h: torch.Tensor, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
            same = query_document[q] == key_document[k]
            if window is not None:
                return same & within_window(q - k, is_causal, window)
            return same & (q >= k) if is_causal else same

        return create_block_mask(sees, None, None, len(query_document), len(key_document), device)

    return FlatPlan(FlexMask(block_mask), is_causal)


def _dense_plan(batch: RaggedBatch, backend: str, is_causal: bool, window: int | None) -> DensePlan:
    options = _flash_window(is_causal, window) if _is_flash(backend) else {}
    if batch.attention_mask is None and batch.document_ids is None and (window is None or _is_flash(backend)):
        if not (_is_flex(backend) and is_causal):
            return DensePlan(None, is_causal, options)
    return _masked_dense_plan(batch, backend, batch.seq_len, is_causal, window, options)


def _masked_dense_plan(
    keys: RaggedBatch, backend: str, query_len: int, is_causal: bool, window: int | None, options: dict[str, Any]
) -> DensePlan:
    if _is_flex(backend):
        return DensePlan(
            FlexMask(lambda device: _block_mask(keys.to(device), query_len, is_causal, window)), is_causal, options
        )
    return DensePlan(_dense_mask(keys, backend, query_len, is_causal, window), is_causal, options)


def _block_mask(keys: RaggedBatch, query_len: int, is_causal: bool, window: int | None) -> BlockMask:
    """The mask of a dense batch for flex attention."""
    real, document_ids = keys.attention_mask, keys.document_ids

    def sees(b: torch.Tensor, h: torch.Tensor, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        seen = (q >= k) if is_causal else (k >= 0)
        if real is not None:
            seen = seen & real[b, k]
        if document_ids is not None:
            seen = seen & (document_ids[b, q] == document_ids[b, k])
        if window is not None:
            place = _places(keys)
            seen = seen & within_window(place[b, q] - place[b, k], is_causal, window)
        return seen

    return create_block_mask(sees, keys.batch_size, None, query_len, keys.seq_len, keys.position_ids.device)


def _dense_mask(
    keys: RaggedBatch, backend: str, query_len: int, is_causal: bool, window: int | None
) -> torch.Tensor | None:
    """The mask of a dense batch for sdpa and eager, `(B | 1, 1, L | 1, L)`, or for flash attention, `(B, L)`."""
    real, document_ids = keys.attention_mask, keys.document_ids
    if _is_flash(backend):
        if document_ids is not None:
            raise ValueError(f"{backend} cannot keep packed documents apart while tracing; pad them or use sdpa.")
        return real
    parts = []
    if real is not None:
        parts.append(real[:, None, None, :])  # (B, 1, 1, L)
    if document_ids is not None:
        parts.append((document_ids[:, :, None] == document_ids[:, None, :])[:, None])  # (B, 1, L, L)
    if window is not None:
        place = _places(keys)
        parts.append(within_window(place[:, :, None] - place[:, None, :], is_causal, window)[:, None])
    elif is_causal:
        parts.append(torch.ones(query_len, keys.seq_len, dtype=torch.bool, device=keys.position_ids.device).tril())
    mask = parts[0]
    for part in parts[1:]:
        mask = mask & part
    return mask


def _places(batch: RaggedBatch) -> torch.Tensor:
    """Place of each token among the real tokens of its row, `(B, L)`: distances count no padding."""
    if batch.attention_mask is None:
        return torch.arange(batch.seq_len, device=batch.position_ids.device).expand(batch.batch_size, -1)
    return batch.attention_mask.cumsum(-1) - 1


__all__ = [
    "AttentionPlan",
    "BlockMask",
    "eager_attention_forward",
    "is_flat",
    "plan_cross_attention",
    "plan_paged_attention",
    "plan_self_attention",
]
