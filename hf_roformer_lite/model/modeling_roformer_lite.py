"""RoFormerLiteModel: one stack of layers, as an encoder or as a decoder.

Follow `hidden_states` through `RoFormerLiteModel.forward`: the real tokens are found once (`RaggedBatch`), embedded,
carried through the layers as `(N, hidden)`, and restored to `(B, L, hidden)` at the end.
"""

from typing import Any

import torch
from torch import nn
from transformers import initialization as init
from transformers.cache_utils import Cache, DynamicCache, EncoderDecoderCache
from transformers.masking_utils import create_causal_mask, create_sliding_window_causal_mask
from transformers.modeling_outputs import BaseModelOutputWithPoolingAndCrossAttentions
from transformers.modeling_utils import PreTrainedModel
from transformers.processing_utils import Unpack
from transformers.utils.generic import TransformersKwargs, merge_with_config_defaults
from transformers.utils.import_utils import is_tracing
from transformers.utils.output_capturing import OutputRecorder, capture_outputs

from .attention import RoFormerLiteAttention
from .attention_plan import (
    AttentionPlan,
    DensePlan,
    is_flat,
    plan_cross_attention,
    plan_paged_attention,
    plan_self_attention,
)
from .configuration_roformer_lite import RoFormerLiteConfig
from .embeddings import RoFormerLiteEmbeddings
from .fast_linear import rows_to_compute
from .layers import RoFormerLiteAnyLayer, RoFormerLiteLayer, RoFormerLitePooler, make_norm
from .parallel_heads import (
    SLOPE,
    RoFormerLiteParallelHeadsLayer,
    RoFormerLiteStackedLinear,
    RoFormerLiteStackedUnit,
)
from .ragged import RaggedBatch
from .remote_code import RemoteCodeModel
from .rope import RoFormerLiteRotaryEmbedding
from .sharding import ShardedLoadingMixin
from .walkthrough_layer import RoFormerLiteWalkthroughLayer

# How transformers' DataCollatorWithFlattening describes packed documents.
PACKING_ARGUMENTS = ("cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k", "seq_idx")


LAYER_CLASSES: dict[str, type[nn.Module]] = {
    "standard": RoFormerLiteLayer,
    "parallel_heads": RoFormerLiteParallelHeadsLayer,
    "walkthrough": RoFormerLiteWalkthroughLayer,
}


class RoFormerLitePreTrainedModel(RemoteCodeModel, ShardedLoadingMixin, PreTrainedModel):
    """What all models of the package share: initialisation, loading, and what they can do."""

    config: RoFormerLiteConfig
    base_model_prefix = "model"
    _input_embed_layer = "word_embeddings"
    _no_split_modules = ["RoFormerLiteEmbeddings", *(layer.__name__ for layer in LAYER_CLASSES.values())]
    _skip_keys_device_placement = ["past_key_values"]
    supports_gradient_checkpointing = True
    _supports_sdpa = True
    _supports_flash_attn = True
    _supports_flex_attn = True
    _supports_attention_backend = True
    _can_compile_fullgraph = True
    _can_record_outputs = {
        "hidden_states": RoFormerLiteAnyLayer,
        "attentions": OutputRecorder(RoFormerLiteAttention, index=1, layer_name="self_attn"),
        "cross_attentions": OutputRecorder(RoFormerLiteAttention, index=1, layer_name="cross_attn"),
    }

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if isinstance(module, RoFormerLiteStackedLinear | RoFormerLiteStackedUnit):
            module.init_weights(self.config.initializer_range)
        elif isinstance(module, nn.PReLU):
            init.constant_(module.weight, SLOPE)


class RoFormerLiteModel(RoFormerLitePreTrainedModel):
    """The bare stack. With `config.is_decoder` it is causal and keeps a cache; with `config.add_cross_attention` its
    layers attend to `encoder_hidden_states` as well."""

    def __init__(self, config: RoFormerLiteConfig, add_pooling_layer: bool | None = None):
        super().__init__(config)
        self.embeddings = RoFormerLiteEmbeddings(config)
        layer_class = LAYER_CLASSES[config.layer_style]
        self.layers = nn.ModuleList(layer_class(config, i) for i in range(config.num_hidden_layers))
        self.final_norm = make_norm(config) if config.final_norm else nn.Identity()
        self.pooler = None
        if config.add_pooling_layer if add_pooling_layer is None else add_pooling_layer:
            self.pooler = RoFormerLitePooler(config)
        self.rotary_emb = RoFormerLiteRotaryEmbedding(config) if config.position_embedding_type == "rope" else None
        self.gradient_checkpointing = False
        self.post_init()

    def ragged_batch(
        self,
        input_ids: torch.Tensor | None,
        inputs_embeds: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        has_cache: bool = False,
        **kwargs,
    ) -> RaggedBatch:
        """The real tokens of an input of `forward`, in the layout that `forward` will use for it."""
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("Give exactly one of input_ids and inputs_embeds.")
        given = input_ids if inputs_embeds is None else inputs_embeds
        wants_layers = kwargs.get("output_hidden_states", self.config.output_hidden_states) or kwargs.get(
            "output_attentions", self.config.output_attentions
        )
        is_custom_mask = attention_mask is not None and not _is_padding_mask(attention_mask)
        if is_custom_mask or has_cache:  # the mask, not the batch, says what sees what
            if position_ids is None:
                position_ids = torch.arange(given.shape[1], device=given.device).unsqueeze(0)
            batch = RaggedBatch(*given.shape[:2], position_ids)
            if not is_custom_mask and attention_mask is not None and given.shape[1] > 1:
                batch.attention_mask = attention_mask[:, -given.shape[1] :].bool()  # for the zeros at padding
            return batch
        return RaggedBatch.build(
            *given.shape[:2],
            device=given.device,
            attention_mask=attention_mask,
            position_ids=position_ids,
            cu_seq_lens=kwargs.get("cu_seq_lens_q"),
            dense=bool(wants_layers),
            tracing=is_tracing(given),
            rows_to_compute=self._rows_to_compute,
        )

    def _rows_to_compute(self, tokens: int) -> int:
        config, parameter = self.config, next(self.parameters(), None)
        if parameter is None or is_flat(config._attn_implementation):  # nn.DataParallel's replicas have no parameters
            return tokens
        largest = config.hidden_size * config.intermediate_size
        return rows_to_compute(tokens, largest, parameter.device, parameter.dtype)

    @merge_with_config_defaults
    @capture_outputs
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        encoder_hidden_states: torch.Tensor | None = None,
        encoder_attention_mask: torch.Tensor | None = None,
        past_key_values: Cache | None = None,
        use_cache: bool | None = None,
        batch: RaggedBatch | None = None,
        encoder_batch: RaggedBatch | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> BaseModelOutputWithPoolingAndCrossAttentions:
        """Run the stack.

        Args:
            input_ids: Token ids, `(B, L)`; or give `inputs_embeds`, `(B, L, embedding_size)`.
            attention_mask: `(B, L)`, 1 for real tokens, in any pattern; `(B, past + L)` with a cache. A mask of four
                dimensions, or a dict of such by layer type, goes to the attention function as it is.
            token_type_ids: Segments, `(B, L)`; only with `type_vocab_size`.
            position_ids: `(B, L)`. Default: counted over the real tokens of each row. Restarts mark packed documents.
            encoder_hidden_states: `(B, Ls, cross_attention_hidden_size)`, for cross-attention.
            encoder_attention_mask: `(B, Ls)`, 1 for real tokens.
            past_key_values: Cache of a decoder; made here when `use_cache` (default: `config.use_cache`) asks for
                one. In training only when given; packed documents have none.
            batch, encoder_batch: What `ragged_batch` says of this input and of the encoder's, for callers that
                know it already.
            kwargs: `output_hidden_states`, `output_attentions`, `cu_seq_lens_q` (packed input), and what attention
                functions take.

        Returns:
            `last_hidden_state` `(B, L, hidden)`, zeros at padding; `pooler_output` `(documents, hidden)` with
            `add_pooling_layer`; `past_key_values`; on request `hidden_states`, `attentions`, `cross_attentions`.

        Raises:
            ValueError: when inputs do not fit together.
        """
        config = self.config
        if encoder_hidden_states is not None and not config.add_cross_attention:
            raise ValueError("add_cross_attention=False: this model does not attend to encoder_hidden_states.")
        if kwargs.get("seq_idx") is not None and position_ids is None and kwargs.get("cu_seq_lens_q") is None:
            raise ValueError(
                "seq_idx alone does not tell documents apart here; give position_ids or cu_seq_lens_q too."
            )
        if kwargs.get("cu_seq_lens_q") is not None and past_key_values is not None:
            raise ValueError("cu_seq_lens_q: packed documents have no cache; leave past_key_values out.")
        if past_key_values is None and use_cache and config.is_decoder and position_ids is not None and batch is None:
            batch = self.ragged_batch(input_ids, inputs_embeds, attention_mask, position_ids, **kwargs)
            if not batch.is_packed:
                batch = None  # a cache lays it out its own way
        is_packed = kwargs.get("cu_seq_lens_q") is not None or (batch is not None and batch.is_packed)
        if use_cache and past_key_values is None and config.is_decoder and not self.training and not is_packed:
            past_key_values = DynamicCache(config=config)
            if config.add_cross_attention:
                past_key_values = EncoderDecoderCache(past_key_values, DynamicCache())
        if isinstance(past_key_values, EncoderDecoderCache):
            _keep_whole_encoder(past_key_values)
        is_paged = kwargs.get("cache") is not None  # continuous batching: attention functions keep keys and values
        is_causal = kwargs.pop("is_causal", None)
        if is_causal is not None and is_causal != config.is_decoder and not is_paged:
            raise ValueError(
                f"is_causal={is_causal}: this stack has is_decoder={config.is_decoder}, which decides it."
            )
        has_cache = past_key_values is not None
        if has_cache and position_ids is None:
            given = input_ids if inputs_embeds is None else inputs_embeds
            position_ids = _cached_positions(given, attention_mask, past_key_values)
        if batch is None:
            by_mask = has_cache or is_paged
            batch = self.ragged_batch(input_ids, inputs_embeds, attention_mask, position_ids, by_mask, **kwargs)
        table = self.embeddings.word_embeddings
        if inputs_embeds is None and table is not None and table._forward_hooks:  # NEFTune's wants (B, L, width)
            input_ids, inputs_embeds = None, table(input_ids)
        hidden_states = self.embeddings(
            None if input_ids is None else batch.gather(input_ids),
            None if inputs_embeds is None else batch.gather(inputs_embeds),
            None if token_type_ids is None else batch.gather(token_type_ids),
            batch.position_ids,
        )  # (N, hidden) or (B, L, hidden)
        if not is_paged:
            for name in PACKING_ARGUMENTS:  # the plans speak for them from here on
                kwargs.pop(name, None)
        plans = self._self_attention_plans(batch, hidden_states, attention_mask, past_key_values, is_paged)
        cross_plan = None
        if config.add_cross_attention:
            if encoder_hidden_states is None:
                raise ValueError("add_cross_attention=True needs encoder_hidden_states (or an encoder to make them).")
            is_dense = batch.is_dense and not batch.lengths
            if encoder_batch is None or (is_dense and not encoder_batch.is_dense):  # a cache holds keys by rows
                encoder_batch = RaggedBatch.build(
                    *encoder_hidden_states.shape[:2],
                    device=encoder_hidden_states.device,
                    attention_mask=encoder_attention_mask,
                    dense=is_dense,
                    rows_to_compute=self._rows_to_compute,
                )
            encoder_hidden_states = encoder_batch.gather(encoder_hidden_states)
            cross_plan = plan_cross_attention(batch, encoder_batch, config._attn_implementation)
        position_embeddings = None
        if self.rotary_emb is not None:
            any_positions = batch.position_ids if batch.position_ids.numel() else batch.position_ids.new_zeros(1)
            position_embeddings = self.rotary_emb(hidden_states, any_positions)
            if cross_plan is not None and config.layer_style == "parallel_heads":  # the only one to rotate them
                kwargs["encoder_position_embeddings"] = self.rotary_emb(hidden_states, encoder_batch.position_ids)
        for layer in self.layers:
            hidden_states = layer(
                hidden_states,
                encoder_hidden_states,
                plans=plans,
                cross_plan=cross_plan,
                position_embeddings=position_embeddings,
                past_key_values=past_key_values,
                **kwargs,
            )
        last_hidden_state = batch.restore(self.final_norm(hidden_states))  # (B, L, hidden)
        return BaseModelOutputWithPoolingAndCrossAttentions(
            last_hidden_state=last_hidden_state,
            pooler_output=None if self.pooler is None else self.pooler(batch, last_hidden_state),
            past_key_values=past_key_values,
        )

    def _self_attention_plans(
        self,
        batch: RaggedBatch,
        hidden_states: torch.Tensor,
        attention_mask: torch.Tensor | dict | None,
        past_key_values: Cache | None,
        is_paged: bool,
    ) -> dict[str, AttentionPlan]:
        """One plan for each kind of layer the stack has."""
        config = self.config
        windows = {kind: config.sliding_window if kind == "sliding_attention" else None for kind in config.layer_types}
        if is_paged:
            return {kind: plan_paged_attention(attention_mask, kind, window) for kind, window in windows.items()}
        if isinstance(attention_mask, dict):
            return {kind: DensePlan(attention_mask[kind], config.is_decoder) for kind in windows}
        if attention_mask is not None and not _is_padding_mask(attention_mask):
            return {kind: DensePlan(attention_mask, config.is_decoder) for kind in windows}
        if past_key_values is None:
            backend = config._attn_implementation
            return {
                kind: plan_self_attention(batch, backend, config.is_decoder, window)
                for kind, window in windows.items()
            }
        if isinstance(past_key_values, EncoderDecoderCache):
            past_key_values = past_key_values.self_attention_cache
        plans: dict[str, AttentionPlan] = {}
        for kind, window in windows.items():
            make_mask = create_causal_mask if window is None else create_sliding_window_causal_mask
            mask = make_mask(
                config=config,
                inputs_embeds=hidden_states,
                attention_mask=attention_mask,
                past_key_values=past_key_values,
            )
            options = {} if window is None else {"sliding_window": window}
            plans[kind] = DensePlan(mask, config.is_decoder, options)
        return plans


def _is_padding_mask(attention_mask: Any) -> bool:
    """Whether a mask is the ordinary `(B, L)` one, and not one prepared for the attention function."""
    return isinstance(attention_mask, torch.Tensor) and attention_mask.ndim == 2


def _keep_whole_encoder(cache: EncoderDecoderCache) -> None:
    """`generate` makes the cross-attention's cache by the decoder's sliding windows too, and would drop the
    encoder's states outside them."""
    if any(cache.cross_attention_cache.is_sliding) and not any(cache.is_updated.values()):
        cache.cross_attention_cache = DynamicCache()


def _cached_positions(
    given: torch.Tensor, attention_mask: torch.Tensor | dict | None, past_key_values: Cache
) -> torch.Tensor:
    """Positions `(B, L)` or `(1, L)` of tokens that come after those in the cache; padding counts for nothing."""
    length = given.shape[1]
    if _is_padding_mask(attention_mask):
        return (attention_mask.cumsum(-1) - 1).clamp(min=0)[:, -length:]
    return (torch.arange(length, device=given.device) + past_key_values.get_seq_length()).unsqueeze(0)


__all__ = ["RoFormerLiteModel", "RoFormerLitePreTrainedModel"]
