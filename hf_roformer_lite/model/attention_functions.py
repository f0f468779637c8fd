"""Attention functions, with the signature that transformers gives them (`AttentionInterface`).

Queries, keys and values are `(B, heads, L, head_dim)`. In a flat row B is 1, and `cu_seq_lens_q`,
`cu_seq_lens_k` say where documents begin and end. Flash attention takes these as they are; sdpa is
called once for all documents of one length.
"""

from collections.abc import Callable
from contextlib import nullcontext
from importlib import import_module
from inspect import signature
from itertools import groupby
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.modeling_utils import AttentionInterface

try:
    from torch.nn.attention.varlen import varlen_attn
except ImportError:  # before torch 2.10
    varlen_attn = None

# transformers' functions and those that others register, except that "sdpa" knows documents. The
# name is the one that vLLM and SGLang look for in the source of a model.
ALL_ATTENTION_FUNCTIONS = AttentionInterface()
# what servers register: they take the tokens of all requests in one row, and know whose
SERVERS = ("vllm", "sglang")
# Whether the functions write keys and values into the paged cache of continuous batching. Since
# transformers 5.24 the layers do.
WRITE_PAGED_CACHE = "cache" in signature(sdpa_attention_forward).parameters
MIN_HALF_PRECISION_KEYS = 512  # see `_learns_faster_in_float32`


def eager_attention_forward(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float,
    dropout: float = 0.0,
    **kwargs: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention written out (Vaswani et al. 2017, section 3.2.1), the only function that returns
    its probabilities.

    Args:
        module: The attention layer; its mode says whether there is dropout.
        query: `(B, heads, Lq, head_dim)`.
        key, value: `(B, key_value_heads, Lk, head_dim)`; each serves a group of query heads.
        attention_mask: `(B, 1 | heads, Lq, Lk)`, added to the scores, or boolean and True to see.
            None: all is seen.

    Returns:
        The output `(B, Lq, heads, head_dim)` and the probabilities `(B, heads, Lq, Lk)`.
    """
    groups = query.shape[1] // key.shape[1]
    key, value = (states.repeat_interleave(groups, dim=1) for states in (key, value))
    scores = query @ key.transpose(2, 3) * scaling  # (B, heads, Lq, Lk)
    if attention_mask is not None:
        if attention_mask.dtype == torch.bool:
            scores = scores.masked_fill(~attention_mask, torch.finfo(scores.dtype).min)
        else:
            scores = scores + attention_mask
    exact = torch.promote_types(query.dtype, torch.float32)
    weights = F.softmax(scores, dim=-1, dtype=exact).to(query.dtype)
    # who sees nothing, such as a source of padding alone, gets zeros, as from sdpa
    if attention_mask is not None:
        is_seen = attention_mask
        if attention_mask.dtype != torch.bool:
            is_seen = attention_mask > torch.finfo(attention_mask.dtype).min
        weights = weights.masked_fill(~is_seen.any(-1, keepdim=True), 0.0)
    weights = F.dropout(weights, p=dropout, training=module.training)
    return (weights @ value).transpose(1, 2).contiguous(), weights


def sdpa_attention_by_document(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """transformers' `sdpa_attention_forward`, and for a flat row the same, document by document:
    with `cu_seq_lens_q` and `cu_seq_lens_k`, `(documents + 1,)`, and without a mask or a paged
    `cache`, which say more. Python reads the borders: leave them on the host. Arguments and output
    are those of `eager_attention_forward`, less the probabilities."""
    if (
        kwargs.get("cu_seq_lens_q") is None
        or attention_mask is not None
        or kwargs.get("cache") is not None
    ):
        return sdpa_attention_forward(module, query, key, value, attention_mask, **kwargs)
    return _attend_by_document(module, query, key, value, **kwargs), None


# the shapes of its calls depend on the data: a graph for each of them would be no gain
@torch.compiler.disable
def _attend_by_document(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    cu_seq_lens_q: torch.Tensor,
    cu_seq_lens_k: torch.Tensor,
    is_causal: bool | None = None,
    sliding_window: int | None = None,
    **kwargs: Any,
) -> torch.Tensor:
    """Neighbours of equal length are one batch, and every piece is a view: nothing is gathered or
    padded, and the gradient of `split` is one concatenation."""
    is_causal, dtype = module.is_causal if is_causal is None else is_causal, query.dtype
    if _takes_flat_rows(query, value, **kwargs):
        return _attend_at_once(
            query, key, value, cu_seq_lens_q, cu_seq_lens_k, is_causal, sliding_window, **kwargs
        )
    if _learns_faster_in_float32(query, kwargs.get("max_length_k", 0)):
        query, key, value = query.float(), key.float(), value.float()
    lengths = list(
        zip(cu_seq_lens_q.diff().tolist(), cu_seq_lens_k.diff().tolist(), strict=True)
    ) or [(0, 0)]
    # how many documents; queries, keys of each
    runs = [(len(list(run)), *pair) for pair, run in groupby(lengths)]
    queries = query.split([count * length for count, length, _ in runs], dim=2)
    keys, values = (
        states.split([count * length for count, _, length in runs], dim=2)
        for states in (key, value)
    )
    outputs = []
    with torch.autocast("cpu", enabled=False) if query.dtype != dtype else nullcontext():
        for (count, *_), *states in zip(runs, queries, keys, values, strict=True):
            # (1, heads, count * length, head_dim) to (count, heads, length, head_dim)
            if count > 1:
                states = [
                    piece.squeeze(0).unflatten(1, (count, piece.shape[2] // count)).transpose(0, 1)
                    for piece in states
                ]
            output = _attend(module, *states, is_causal=is_causal, window=sliding_window, **kwargs)
            outputs.append(output.flatten(0, 1))
    output = torch.cat(outputs) if len(outputs) > 1 else outputs[0]  # (N, heads, head_dim)
    return output.unsqueeze(0).to(dtype)


def _takes_flat_rows(
    query: torch.Tensor, value: torch.Tensor, dropout: float = 0.0, **kwargs: Any
) -> bool:
    """Whether torch's variable-length attention can be called: in half precision on a GPU from
    Ampere on, without dropout and anything else that only a function of its own knows."""
    if (
        varlen_attn is None
        or dropout
        or "attend" in kwargs
        or query.dtype not in (torch.float16, torch.bfloat16)
    ):
        return False
    fits = query.shape[-1] == value.shape[-1] <= 256 and query.shape[-1] % 8 == 0
    return fits and query.is_cuda and torch.cuda.get_device_capability(query.device) >= (8, 0)


def _attend_at_once(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    cu_seq_lens_q: torch.Tensor,
    cu_seq_lens_k: torch.Tensor,
    is_causal: bool,
    window: int | None,
    max_length_q: int,
    max_length_k: int,
    scaling: float | None = None,
    **kwargs: Any,
) -> torch.Tensor:
    """A flat row by torch's variable-length attention, which takes it as it is."""
    states = [part[0].transpose(0, 1) for part in (query, key, value)]  # (N, heads, head_dim)
    borders = [side.to(query.device, torch.int32) for side in (cu_seq_lens_q, cu_seq_lens_k)]
    reach = -1 if window is None else window - 1  # -1: without end
    options = {
        "window_size": (reach, 0 if is_causal else reach),
        "enable_gqa": query.shape[1] != key.shape[1],
    }
    return varlen_attn(
        *states, *borders, max_length_q, max_length_k, scale=scaling, **options
    ).unsqueeze(0)


def _learns_faster_in_float32(query: torch.Tensor, longest: int) -> bool:
    """On a CPU the gradient of sdpa in half precision takes several times as long as in float32 for
    short keys."""
    is_half = query.device.type == "cpu" and query.dtype in (torch.bfloat16, torch.float16)
    return (
        is_half
        and longest < MIN_HALF_PRECISION_KEYS
        and query.requires_grad
        and torch.is_grad_enabled()
    )


def _attend(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    is_causal: bool,
    window: int | None,
    attend: Callable | None = None,
    **kwargs: Any,
) -> torch.Tensor:
    """Documents of one length, `(n, heads, length, head_dim)` to `(n, length, heads, head_dim)`."""
    length, attend = query.shape[2], attend or sdpa_attention_forward
    # nothing to see, such as a source of padding alone; all get a gradient
    if not length or not key.shape[2]:
        return (query * 0 + (key.sum() + value.sum()) * 0).transpose(1, 2)
    if window is None or length <= window:
        return attend(module, query, key, value, None, is_causal=is_causal, **kwargs)[0]
    if length > 3 * window:
        return _attend_in_blocks(module, query, key, value, is_causal, window, attend, **kwargs)
    places = torch.arange(length, device=query.device)
    mask = _sees(places[:, None], places, window, is_causal)[None, None]
    return attend(module, query, key, value, mask, is_causal=False, **kwargs)[0]


def _attend_in_blocks(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    is_causal: bool,
    window: int,
    attend: Callable,
    **kwargs: Any,
) -> torch.Tensor:
    """As `_attend`, at a cost that is linear in the length: blocks of `window` queries, each with
    the band of keys that it can see. The bands overlap, and `unfold` has one gradient for all of
    them."""
    length = query.shape[2]
    blocks = -(-length // window)
    spare, after = blocks * window - length, 0 if is_causal else window
    query = (
        F.pad(query, (0, 0, 0, spare)).unflatten(2, (blocks, window)).transpose(1, 2).flatten(0, 1)
    )
    key, value = (
        F.pad(states, (0, 0, window, spare + after))
        .unfold(2, 2 * window + after, window)  # (n, heads, blocks, head_dim, band)
        .permute(0, 2, 1, 4, 3)
        .flatten(0, 1)  # (n * blocks, heads, band, head_dim)
        for states in (key, value)
    )
    starts = torch.arange(blocks, device=query.device)[:, None, None] * window
    queries = starts + torch.arange(window, device=query.device)[:, None]  # (blocks, window, 1)
    # (blocks, 1, band)
    keys = starts - window + torch.arange(2 * window + after, device=query.device)
    mask = _sees(queries, keys, window, is_causal) & (keys >= 0) & (keys < length)
    mask |= queries >= length  # which are cut off below, and must see something
    mask = mask.unsqueeze(1).repeat(len(query) // blocks, 1, 1, 1)  # (n * blocks, 1, window, band)
    output, _ = attend(module, query, key, value, mask, is_causal=False, **kwargs)
    return output.unflatten(0, (-1, blocks)).flatten(1, 2)[:, :length]


def _sees(queries: torch.Tensor, keys: torch.Tensor, window: int, is_causal: bool) -> torch.Tensor:
    """Whether keys are less than `window` away, in a causal layer before the query. As in flash
    attention a window counts the token itself."""
    distance = queries - keys
    return (distance < window) & (distance > (-1 if is_causal else -window))


def check_vllm(config: Any) -> None:
    """Refuse a model that vLLM would compute differently in silence: it takes the stack of layers
    alone, and brings its own attention, windows, pooling and LM head.

    Raises:
        ValueError: with what can't be served, and what can be done.
    """
    head = (config.architectures or ["RoFormerLiteModel"])[0].removeprefix("RoFormerLite")
    settings = import_module("vllm.config").get_current_vllm_config().model_config
    generates, served = (
        settings.runner_type == "generate",
        ("Model", "ForCausalLM", "ForSequenceClassification"),
    )
    if head not in served or generates != (head == "ForCausalLM"):
        raise ValueError(
            f"{config.architectures} can't be served by vLLM's runner {settings.runner_type!r}: it takes causal "
            "models to generate, encoders and classifiers of texts for pooling. For embeddings save the encoder: "
            "AutoModel.from_pretrained(DIR).save_pretrained(OUT)."
        )
    unlike: dict[str, object] = {"layer_style": "standard", "token_dropout_mask_id": None}
    if generates:
        unlike |= {"lm_head_transform": False, "embedding_size": config.hidden_size}
    if head == "ForSequenceClassification":
        unlike["classifier_text_features"] = 0
    if not config.is_decoder or "sliding_attention" not in config.layer_types:
        # vLLM's windows are one token shorter to each side, and in all layers where no layer is
        # named.
        unlike["sliding_window"] = None
    for field, value in unlike.items():
        if getattr(config, field) != value:
            raise ValueError(
                f"{field}={getattr(config, field)!r} can't be served by vLLM: it must be {value!r}."
            )
    for parameters in config.rope_parameters_of_layers().values() if config.rope_parameters else ():
        # by the longest text that is computed at the time
        if parameters["rope_type"] in ("dynamic", "longrope"):
            raise ValueError(
                f"rope_type={parameters['rope_type']!r} can't be served by vLLM: answers would depend on others."
            )
    pooling, pooled = (
        config.classifier_pooling,
        None if generates else settings.pooler_config.seq_pooling_type,
    )
    if not generates and pooling.upper() != pooled:
        raise ValueError(
            f"classifier_pooling={pooling!r}, and vLLM would take {pooled}: give it --pooler-config "
            f"""'{{"seq_pooling_type": "{pooling.upper()}"}}'; it has CLS, LAST and MEAN."""
        )


ALL_ATTENTION_FUNCTIONS["sdpa"] = sdpa_attention_by_document

__all__ = [
    "ALL_ATTENTION_FUNCTIONS",
    "SERVERS",
    "check_vllm",
    "eager_attention_forward",
    "sdpa_attention_by_document",
]
