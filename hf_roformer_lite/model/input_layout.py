"""What a stack decides about an input before its first layer: which tokens are real, and which attend to which.

`lay_out` is called once for each input of a stack, by `RoFormerLiteModel.forward` or by a head that needs the answer
itself. Everything special ends here: packed documents, caches, the paged cache of continuous batching, masks that a
caller prepared, and inputs that are traced.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import torch
from transformers.cache_utils import Cache, DynamicCache, EncoderDecoderCache
from transformers.masking_utils import create_causal_mask, create_sliding_window_causal_mask
from transformers.utils.import_utils import is_tracing

from .attention_documents import document_backend
from .attention_plan import (
    AttentionPlan,
    DensePlan,
    is_flat,
    plan_cross_attention,
    plan_paged_attention,
    plan_self_attention,
)
from .configuration_roformer_lite import RoFormerLiteConfig
from .fast_linear import choose_num_rows
from .host_side import move_together
from .input_checks import check_inputs
from .operators import is_in_graph
from .ragged import RaggedBatch
from .torch_internals import version_of

# How transformers' DataCollatorWithFlattening describes packed documents.
PACKING_ARGUMENTS = ("cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k", "seq_idx")

# The encoder's mask, the shapes, and what `_lay_out_cross_attention` returned for them. These are no attributes of the
# cache, since exporters take caches apart.
_cross_attention_of_cache: WeakKeyDictionary[Cache, tuple] = WeakKeyDictionary()


@dataclass
class InputLayout:
    """How one input goes through a stack. Made by `lay_out`."""

    tokens: RaggedBatch
    self_attention: dict[str, AttentionPlan]  # by layer type
    cross_attention: AttentionPlan | None = None
    encoder_tokens: RaggedBatch | None = None  # what cross-attention reads
    past_key_values: Cache | None = None  # the caller's cache or a new one
    attention_options: dict[str, Any] = field(default_factory=dict)  # for the attention functions

    def to(self, device: torch.device | str | int, non_blocking: bool = False) -> InputLayout:
        """The same on `device`, for layers on another one (accelerate's hooks call this). The cache stays."""
        names = "tokens", "self_attention", "cross_attention", "encoder_tokens"
        return replace(self, **move_together({name: getattr(self, name) for name in names}, device))


def lay_out(
    config: RoFormerLiteConfig,
    weight: torch.Tensor | None,
    is_training: bool,
    input_ids: torch.Tensor | None = None,
    inputs_embeds: torch.Tensor | None = None,
    attention_mask: torch.Tensor | dict[str, torch.Tensor] | None = None,
    position_ids: torch.Tensor | None = None,
    encoder_hidden_states: torch.Tensor | None = None,
    encoder_attention_mask: torch.Tensor | None = None,
    encoder_tokens: RaggedBatch | None = None,
    past_key_values: Cache | None = None,
    use_cache: bool | None = None,
    prefix: str = "",
    **options: Any,
) -> InputLayout:
    """Lay out an input of the stack that `config` describes.

    Args:
        weight: Any weight of the stack, for its dtype and device; None for a replica of `nn.DataParallel`.
        is_training: Whether the stack is in training mode, where no cache is made.
        input_ids … past_key_values, options: As for `RoFormerLiteModel.forward`.
        encoder_tokens: The layout of the encoder's own tokens, if it ran in the same call.
        use_cache: Whether to make a cache where none is given (default: `config.use_cache`); packed documents have
            none.
        prefix: What the names of the arguments begin with in messages, such as `decoder_`.

    Raises:
        ValueError, TypeError: when inputs do not fit together.
    """
    check_inputs(
        config,
        input_ids,
        inputs_embeds,
        attention_mask,
        position_ids,
        encoder_hidden_states,
        encoder_attention_mask,
        past_key_values,
        options,
        prefix,
    )
    if position_ids is not None and position_ids.ndim == 1:
        position_ids = position_ids.unsqueeze(0)  # (1, L)
    given = input_ids if inputs_embeds is None else inputs_embeds  # (B, L) or (B, L, width)
    is_paged = options.get("cache") is not None
    is_prepared_mask = attention_mask is not None and not is_padding_mask(attention_mask)
    use_cache = config.use_cache if use_cache is None else use_cache
    wants_cache = use_cache and past_key_values is None and config.is_decoder and not is_training and not is_paged
    may_be_packed = position_ids is not None or options.get("cu_seq_lens_q") is not None
    tokens, choose_rows = None, _row_chooser(config, weight)
    dtype = torch.float32 if weight is None else weight.dtype
    backend = document_backend(config, given.device, dtype, is_training)
    attention_options = _attention_options(options, is_paged)
    compiling = is_in_graph(backend) and _is_plain_attention(config, is_training, attention_options)
    # With a cache or a prepared mask, the mask says what sees what, and all places stay where they are.
    if past_key_values is None and not is_prepared_mask and not is_paged and (may_be_packed or not wants_cache):
        tokens = _find_tokens(config, given, attention_mask, position_ids, choose_rows, compiling, options)
    if wants_cache and (tokens is None or not tokens.is_packed):
        tokens, past_key_values = None, _new_cache(config)
    if tokens is None:
        tokens = _keep_places(given, attention_mask, position_ids, past_key_values)
    layout = InputLayout(
        tokens,
        _plan_layer_types(config, backend, tokens, given, attention_mask, past_key_values, is_paged, dtype),
        past_key_values=past_key_values,
        attention_options=attention_options,
    )
    if config.add_cross_attention:
        layout.encoder_tokens, layout.cross_attention = _lay_out_cross_attention(
            backend, layout, encoder_hidden_states, encoder_attention_mask, encoder_tokens, choose_rows
        )
    return layout if given.device.type == "cpu" or is_tracing(given) else layout.to(given.device)


def _find_tokens(
    config: RoFormerLiteConfig,
    given: torch.Tensor,
    attention_mask: torch.Tensor | None,
    position_ids: torch.Tensor | None,
    choose_rows: Callable[[int], int],
    compiling: bool,
    options: dict[str, Any],
) -> RaggedBatch:
    """The real tokens alone, unless shapes must not depend on the data or the outputs of every layer are wanted."""
    wants_layers = any(
        options.get(name, getattr(config, name)) for name in ("output_hidden_states", "output_attentions")
    )
    return RaggedBatch.build(
        *given.shape[:2],
        device=given.device,
        attention_mask=attention_mask,
        position_ids=position_ids,
        cu_seq_lens=options.get("cu_seq_lens_q"),
        dense=wants_layers,
        tracing=is_tracing(given),
        compiling=compiling and not wants_layers,
        choose_num_rows=choose_rows,
    )


def _keep_places(
    given: torch.Tensor,
    attention_mask: torch.Tensor | dict[str, torch.Tensor] | None,
    position_ids: torch.Tensor | None,
    past_key_values: Cache | None,
) -> RaggedBatch:
    """All places as they are, behind those in the cache; positions count the real tokens."""
    length = given.shape[1]
    if position_ids is None and is_padding_mask(attention_mask):
        position_ids = (attention_mask.bool().cumsum(-1) - 1).clamp(min=0)[:, -length:]  # (B, L)
    elif position_ids is None:
        past_length = 0 if past_key_values is None else past_key_values.get_seq_length()
        position_ids = (torch.arange(length, device=given.device) + past_length).unsqueeze(0)  # (1, L)
    tokens = RaggedBatch(*given.shape[:2], position_ids)
    if length > 1 and is_padding_mask(attention_mask):
        tokens.attention_mask = attention_mask[:, -length:].bool()  # for the zeros at padding
    return tokens


def _plan_layer_types(
    config: RoFormerLiteConfig,
    backend: str,
    tokens: RaggedBatch,
    given: torch.Tensor,
    attention_mask: torch.Tensor | dict[str, torch.Tensor] | None,
    past_key_values: Cache | None,
    is_paged: bool,
    dtype: torch.dtype,
) -> dict[str, AttentionPlan]:
    """One plan of self-attention for each type of layer that the stack has."""
    windows = {kind: config.sliding_window if kind == "sliding_attention" else None for kind in config.layer_types}
    if is_paged:
        return {kind: plan_paged_attention(attention_mask, kind, window) for kind, window in windows.items()}
    if isinstance(attention_mask, dict):
        return {kind: DensePlan(attention_mask[kind], config.is_decoder) for kind in windows}
    if attention_mask is not None and not is_padding_mask(attention_mask):
        return {kind: DensePlan(attention_mask, config.is_decoder) for kind in windows}
    if past_key_values is None:
        plan = partial(plan_self_attention, tokens, backend, config.is_decoder)
        return {kind: plan(window) for kind, window in windows.items()}
    if isinstance(past_key_values, EncoderDecoderCache):
        past_key_values = past_key_values.self_attention_cache
    shape_and_dtype = torch.empty(*given.shape[:2], 0, dtype=dtype, device=given.device)  # all that is read of it
    plans: dict[str, AttentionPlan] = {}
    is_whole = attention_mask is None and not past_key_values.is_compileable and not is_tracing(given)
    sees_all = is_whole and given.shape[1] == 1
    for kind, window in windows.items():
        if sees_all and window is None and not is_flat(backend):
            plans[kind] = DensePlan()
            continue
        make_mask = create_causal_mask if window is None else create_sliding_window_causal_mask
        mask = make_mask(
            config=config,
            inputs_embeds=shape_and_dtype,
            attention_mask=attention_mask,
            past_key_values=past_key_values,
        )
        plans[kind] = DensePlan(mask, config.is_decoder, {} if window is None else {"sliding_window": window})
    return plans


def _attention_options(options: dict[str, Any], is_paged: bool) -> dict[str, Any]:
    """What is left for the attention functions when the plans speak for the rest."""
    settled = {"is_causal", "token_type_ids", *(() if is_paged else PACKING_ARGUMENTS)}
    return {name: value for name, value in options.items() if name not in settled}


def _is_plain_attention(config: RoFormerLiteConfig, is_training: bool, options: dict[str, Any]) -> bool:
    """Whether attention is nothing but what the operator of compiled graphs computes."""
    has_options = any(value is not None and value is not False for value in options.values())
    return not has_options and not (is_training and config.attention_dropout)


def _lay_out_cross_attention(
    backend: str,
    layout: InputLayout,
    encoder_hidden_states: torch.Tensor,
    encoder_attention_mask: torch.Tensor | None,
    encoder_tokens: RaggedBatch | None,
    choose_rows: Callable[[int], int],
) -> tuple[RaggedBatch, AttentionPlan]:
    """The encoder's tokens and how the decoder's attend to them.

    While a text is generated both depend on the encoder's mask alone, so they stay with the cache from step to step.
    """
    tokens, cache = layout.tokens, layout.past_key_values
    if isinstance(cache, EncoderDecoderCache):
        _keep_whole_encoder(cache)
    can_reuse = isinstance(cache, EncoderDecoderCache) and not is_tracing(encoder_hidden_states)
    states = encoder_hidden_states
    if can_reuse:
        key = backend, tokens.seq_len, states.shape[:2], states.device, version_of(encoder_attention_mask)
        mask, key_then, result = _cross_attention_of_cache.get(cache, (None, None, None))
        if mask is encoder_attention_mask and key_then == key:
            return result
    keeps_rows = tokens.is_dense and not tokens.lengths  # as the keys in a cache do, and where lengths are unknown
    compiling = tokens.row_lengths is not None
    is_other = encoder_tokens is None or (keeps_rows and not encoder_tokens.is_dense)
    if is_other or (compiling and encoder_tokens.row_lengths is None and not encoder_tokens.is_packed):
        encoder_tokens = RaggedBatch.build(
            *encoder_hidden_states.shape[:2],
            device=encoder_hidden_states.device,
            attention_mask=encoder_attention_mask,
            dense=keeps_rows,
            compiling=compiling,
            tracing=is_tracing(encoder_hidden_states),
            choose_num_rows=choose_rows,
        )
    result = encoder_tokens, plan_cross_attention(tokens, encoder_tokens, backend)
    if can_reuse:
        _cross_attention_of_cache[cache] = encoder_attention_mask, key, result
    return result


def _row_chooser(config: RoFormerLiteConfig, weight: torch.Tensor | None) -> Callable[[int], int]:
    """From the number of real tokens to the number of rows to compute, by what products are fastest."""
    if weight is None or is_flat(config._attn_implementation):
        return int
    largest = config.hidden_size * config.intermediate_size
    return partial(choose_num_rows, weights=largest, device=weight.device, dtype=weight.dtype)


def is_padding_mask(attention_mask: Any) -> bool:
    """Whether a mask is the ordinary `(B, L)` one, and not one prepared for the attention function."""
    return isinstance(attention_mask, torch.Tensor) and attention_mask.ndim == 2


def _new_cache(config: RoFormerLiteConfig) -> Cache:
    cache = DynamicCache(config=config)
    return EncoderDecoderCache(cache, DynamicCache()) if config.add_cross_attention else cache


def _keep_whole_encoder(cache: EncoderDecoderCache) -> None:
    """`generate` gives the cross-attention's cache the decoder's sliding windows too, and would drop the encoder's
    states outside them."""
    if any(cache.cross_attention_cache.is_sliding) and not any(cache.is_updated.values()):
        cache.cross_attention_cache = DynamicCache()
