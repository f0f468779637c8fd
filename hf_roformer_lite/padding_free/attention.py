"""Attention of a flat row, in one of three forms.

*By document*: one call for all documents of one length, on views; nothing is gathered or padded.
*Padded inside attention*: queries, keys and values are put into a padded batch or into groups of
padded documents (`groups.py`). *At once*: torch's attention for documents of various lengths.
`form_of` has the rule.
"""

import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.fx.experimental.symbolic_shapes import statically_known_true
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.modeling_utils import AttentionInterface

from .groups import Slots, SortedRows, is_in_window, slots_of_rows
from .masks import HALF_PRECISION, NAME, DocumentMask, FlatMask

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


def padding_free_attention(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | DocumentMask | FlatMask | None,
    **kwargs: Any,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """An attention function of transformers, from `(B, heads, L, head_dim)` to `(B, L, heads,
    head_dim)`. For a flat row, B is 1 and L is the number of all real tokens."""
    if isinstance(attention_mask, FlatMask):
        return attend_to_flat_row(module, query, key, value, attention_mask, **kwargs), None
    if isinstance(attention_mask, DocumentMask):
        attention_mask = attention_mask.dense()
    return attend_to_batch(module, query, key, value, attention_mask, **kwargs)


def attend_to_batch(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    **kwargs: Any,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Attention by sdpa, or by the function in the model's own file if sdpa lacks a feature."""
    if statically_known_true(query.numel() == 0) or statically_known_true(key.numel() == 0):
        # The output is empty or zero. It depends on all three, so that each gets a gradient.
        return (query * 0 + (key.sum() + value.sum()) * 0).transpose(1, 2), None
    if query.device.type == APPLE and query.dtype in HALF_PRECISION:
        attention_mask = mask_for_apple(module, query, key, attention_mask, kwargs.get("is_causal"))
        kwargs["is_causal"] = False  # The mask is already causal.
    attend = attend_eagerly if needs_eager(kwargs) else sdpa_attention_forward
    return attend(module, query, key, value, attention_mask, **kwargs)


def mask_for_apple(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    attention_mask: torch.Tensor | None,
    is_causal: bool | None,
) -> torch.Tensor | None:
    """A mask with which torch's sdpa is correct on an Apple GPU in half precision. There, with
    `is_causal` and no mask, queries attend to later keys (pytorch#195910), and a mask that hides
    all keys gives NaN (pytorch#156707)."""
    if attention_mask is None:
        return causal_mask(module, query, key, is_causal)
    if attention_mask.dtype != torch.bool:
        return attention_mask
    return attention_mask | ~attention_mask.any(dim=-1, keepdim=True)


def causal_mask(
    module: nn.Module, query: torch.Tensor, key: torch.Tensor, is_causal: bool | None
) -> torch.Tensor | None:
    """The mask `(1, 1, Lq, Lk)`, True where a causal query attends to a key; None if it attends to
    all keys.

    Args:
        is_causal: As the layer gives it. Default: the attribute of the module.
    """
    if is_causal is None:
        is_causal = getattr(module, "is_causal", True)
    if not is_causal or query.shape[2] == 1:
        return None
    is_seen = query.new_ones(query.shape[2], key.shape[2], dtype=torch.bool)
    return is_seen.tril()[None, None]


def needs_eager(kwargs: dict[str, Any]) -> bool:
    """Whether probabilities, capped scores or sinks are requested, which sdpa lacks."""
    has_capped_scores = kwargs.get("softcap") is not None
    has_sinks = kwargs.get("s_aux") is not None
    return bool(kwargs.get("output_attentions")) or has_capped_scores or has_sinks


def attend_eagerly(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    is_causal: bool | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The `eager_attention_forward` of the model's own file, with a mask in the form it expects."""
    if attention_mask is None:
        attention_mask = causal_mask(module, query, key, is_causal)
    if attention_mask is not None and attention_mask.dtype == torch.bool:
        lowest = torch.finfo(query.dtype).min
        zeros = query.new_zeros(attention_mask.shape)
        attention_mask = zeros.masked_fill(~attention_mask, lowest)
    eager_attention_forward = sys.modules[type(module).__module__].eager_attention_forward
    return eager_attention_forward(module, query, key, value, attention_mask, **kwargs)


def form_of(query: torch.Tensor, value: torch.Tensor, mask: FlatMask, **kwargs: Any) -> str:
    """How attention of a flat row is computed: "at once", "by document", in "groups" of padded
    documents, or in padded "rows" or "sorted rows" under the model's own mask.

    Rows are the only form that a graph can hold, and the only correct one if the mask is no pattern
    of documents. An exported graph sorts them by length. On a CPU, a call for each length of
    documents costs less than padding; on an accelerator, where a call takes about as long for one
    short document as for many, it is the other way round. A document without keys needs a call of
    its own.
    """
    if mask.pattern is None:
        return "sorted rows" if may_sort_rows(mask, **kwargs) else "rows"
    if takes_varlen(query, value, **kwargs):
        return "at once"
    is_long = mask.pattern.window is not None and mask.keys.longest > MAX_LENGTH_WITH_WINDOW
    if query.device.type == "cpu" or is_long or min(mask.keys.lengths) == 0:
        return "by document"
    return "groups"


def may_sort_rows(mask: FlatMask, position_bias: torch.Tensor | None = None, **kwargs: Any) -> bool:
    """Whether attention in a graph can take the rows in groups. It cannot if each head has a mask
    or a bias of its own, because the columns would have to be collected for every head. Under
    torch.compile, a length that is read from the data would break the graph."""
    is_exported = torch.compiler.is_exporting() and not torch.compiler.is_dynamo_compiling()
    if not is_exported or mask.keys is not mask.queries or position_bias is not None:
        return False
    dense = mask.dense()
    return dense is not None and dense.shape[1] == 1


def attend_to_flat_row(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: FlatMask,
    position_bias: torch.Tensor | None = None,
    is_causal: bool | None = None,
    **kwargs: Any,
) -> torch.Tensor:
    """Attention in a flat row, `(1, heads, N, head_dim)` to `(1, N, heads, head_dim)`.

    Args:
        position_bias: The position bias of T5, `(1, heads, L, L)`, which is the same for every
            document and row.
        is_causal: Used only with the model's own mask. A pattern has this information.
    """
    if mask.is_cross_attention and position_bias is not None:
        # T5's cross-attention has no bias and passes zeros, of the lengths of the flat rows.
        position_bias = position_bias[..., :1, :1] if mask.pattern is None else None
    elif position_bias is not None and mask.pattern is None:
        length = mask.queries.shape[1]
        if not statically_known_true(position_bias.shape[-1] == length):
            # UMT5 has computed it for the flat row, which may be shorter than a row of the batch.
            position_bias = module.compute_bias(length, length, device=query.device)
    slots: tuple[Slots | SortedRows, Slots | SortedRows]
    form = form_of(query, value, mask, position_bias=position_bias, **kwargs)
    if form == "at once":
        return attend_at_once(query, key, value, mask, **kwargs)
    if form == "by document":
        return attend_by_document(module, query, key, value, mask, position_bias, **kwargs)
    if form == "groups":
        groups = mask.groups(query.device)
        slots = (groups.queries, groups.keys)
        masks = groups.masks(query.dtype)
        is_causal = groups.is_causal
    elif form == "sorted rows":
        rows = SortedRows(mask.queries)
        slots = (rows, rows)
        masks = rows.masks(mask.dense_on(query.device))
    else:
        queries = slots_of_rows(mask.queries, query.device)
        keys = queries
        if mask.keys is not mask.queries:
            keys = slots_of_rows(mask.keys, query.device)
        slots = (queries, keys)
        masks = [mask.dense_on(query.device)]
    kwargs |= {"position_bias": position_bias, "is_causal": is_causal}
    return attend_padded(module, query, key, value, slots, masks, **kwargs)


def attend_padded(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    slots: tuple[Slots | SortedRows, Slots | SortedRows],
    masks: list[torch.Tensor | None],
    position_bias: torch.Tensor | None = None,
    **kwargs: Any,
) -> torch.Tensor:
    """Attention in a flat row by one call for each group of padded documents, or for the rows of
    the batch.

    Args:
        slots: The slots of queries and of keys.
        masks: The mask of each group.
    """
    of_queries, of_keys = slots
    parts = zip(
        of_queries.spread(query), of_keys.spread(key), of_keys.spread(value), masks, strict=True
    )
    outputs = []
    for queries, keys, values, mask in parts:
        if position_bias is not None:
            kwargs["position_bias"] = position_bias[:, :, : queries.shape[2], : keys.shape[2]]
        outputs.append(attend_to_batch(module, queries, keys, values, mask, **kwargs)[0])
    return of_queries.collect(outputs)


@torch.compiler.disable  # Each new shape, which depends on the data, would be compiled again.
def attend_by_document(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: FlatMask,
    position_bias: torch.Tensor | None = None,
    **kwargs: Any,
) -> torch.Tensor:
    """Attention in a flat row by one call for all documents of one length. Its arguments are views,
    and the gradient of `split` is one concatenation."""
    assert mask.pattern is not None
    if is_slow_in_half_precision(query, mask):
        with torch.autocast("cpu", enabled=False):
            states = (query.float(), key.float(), value.float())
            if position_bias is not None:
                position_bias = position_bias.float()
            output = attend_by_document(module, *states, mask, position_bias, **kwargs)
        return output.to(query.dtype)
    query_runs = [(count, length) for count, length, _ in mask.runs]
    key_runs = [(count, length) for count, _, length in mask.runs]
    outputs = []
    for queries, keys, values in zip(
        split_runs(query, query_runs),
        split_runs(key, key_runs),
        split_runs(value, key_runs),
        strict=True,
    ):
        if position_bias is not None:
            kwargs["position_bias"] = position_bias[:, :, : queries.shape[2], : keys.shape[2]]
        output = attend(
            module, queries, keys, values, mask.pattern.is_causal, mask.pattern.window, **kwargs
        )
        outputs.append(output.flatten(0, 1))
    output = torch.cat(outputs) if len(outputs) > 1 else outputs[0]  # (N, heads, head_dim)
    return output.unsqueeze(0)


def split_runs(states: torch.Tensor, runs: list[tuple[int, int]]) -> Iterator[torch.Tensor]:
    """Split states `(1, heads, N, head_dim)` into `(count, heads, length, head_dim)` for each run
    of `count` documents of one length."""
    pieces = states.split([count * length for count, length in runs], dim=2)
    for piece, (count, length) in zip(pieces, runs, strict=True):
        if count > 1:
            piece = piece.squeeze(0).unflatten(1, (count, length)).transpose(0, 1)
        yield piece


def attend(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    is_causal: bool,
    window: int | None,
    **kwargs: Any,
) -> torch.Tensor:
    """Attention in documents of one length, `(n, heads, length, head_dim)` to `(n, length, heads,
    head_dim)`.

    With a window, each block of queries gets only the keys within reach, so that the cost is linear
    in the length.
    """
    length = query.shape[2]
    if window is None or length <= window:
        return attend_to_batch(module, query, key, value, None, is_causal=is_causal, **kwargs)[0]
    has_bias = kwargs.get("position_bias") is not None
    size = length if has_bias else WINDOWS_OF_A_BLOCK * window
    places = torch.arange(length, device=query.device)
    outputs = []
    for start in range(0, length, size):
        first = max(start - window, 0)
        last = start + size + (0 if is_causal else window)
        queries = places[start : start + size, None]
        mask = is_in_window(queries, places[first:last], window, is_causal)[None, None]
        output, _ = attend_to_batch(
            module,
            query[:, :, start : start + size],
            key[:, :, first:last],
            value[:, :, first:last],
            mask,
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
    if not is_half or not fits or needs_eager(kwargs):
        return False
    return torch.cuda.get_device_capability(query.device) >= (8, 0)


def attend_at_once(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: FlatMask,
    scaling: float | None = None,
    **kwargs: Any,
) -> torch.Tensor:
    """Attention in a flat row by torch's variable-length attention."""
    assert varlen_attn is not None and mask.pattern is not None
    is_causal, window = mask.pattern[:2]
    reach = -1 if window is None else window - 1  # -1 means the whole document.
    output = varlen_attn(
        query[0].transpose(0, 1),  # (N, heads, head_dim)
        key[0].transpose(0, 1),
        value[0].transpose(0, 1),
        *mask.cu_seq_lens(query.device),
        mask.queries.longest,
        mask.keys.longest,
        scale=scaling,
        window_size=(reach, 0 if is_causal else reach),
        enable_gqa=query.shape[1] != key.shape[1],
    )
    return output.unsqueeze(0)


def is_slow_in_half_precision(query: torch.Tensor, mask: FlatMask) -> bool:
    is_half = query.dtype in HALF_PRECISION
    needs_gradient = query.requires_grad and torch.is_grad_enabled()
    is_short = mask.keys.longest < MIN_HALF_PRECISION_KEYS
    return query.device.type == "cpu" and is_half and needs_gradient and is_short


AttentionInterface.register(NAME, padding_free_attention)
