"""RoFormerLiteModel: one stack of layers, as an encoder or as a decoder.

Follow `hidden_states` through `RoFormerLiteModel.forward`: the real tokens are found once (`lay_out`), embedded,
carried through the layers as `(N, hidden)`, and restored to `(B, L, hidden)` at the end.
"""

from typing import Any

import torch
from torch import nn
from transformers import initialization as init
from transformers.cache_utils import Cache
from transformers.modeling_outputs import BaseModelOutputWithPoolingAndCrossAttentions
from transformers.modeling_utils import PreTrainedModel
from transformers.processing_utils import Unpack
from transformers.utils.generic import TransformersKwargs, merge_with_config_defaults
from transformers.utils.import_utils import is_tracing
from transformers.utils.output_capturing import OutputRecorder, capture_outputs

from .attention import RoFormerLiteAttention
from .configuration_roformer_lite import RoFormerLiteConfig
from .decoding import decoding_step
from .embeddings import RoFormerLiteEmbeddings
from .input_checks import refuse_misspelt
from .input_layout import InputLayout, lay_out
from .layers import RoFormerLiteBaseLayer, RoFormerLiteLayer, RoFormerLitePooler, make_norm
from .parallel_heads import (
    SLOPE,
    RoFormerLiteParallelHeadsLayer,
    RoFormerLiteStackedLinear,
    RoFormerLiteStackedUnit,
)
from .remote_code import RemoteCodeModel
from .rope import RoFormerLiteRotaryEmbedding, make_rotary_embedding
from .sharding import ShardedLoadingMixin
from .walkthrough_layer import RoFormerLiteWalkthroughLayer

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
        "hidden_states": RoFormerLiteBaseLayer,
        "attentions": OutputRecorder(RoFormerLiteAttention, index=1, layer_name="self_attn"),
        "cross_attentions": OutputRecorder(RoFormerLiteAttention, index=1, layer_name="cross_attn"),
    }

    def stacks(self) -> list["RoFormerLiteModel"]:
        """The stack, or encoder and decoder."""
        return [module for module in self.modules() if isinstance(module, RoFormerLiteModel)]

    def get_position_embeddings(self) -> nn.Embedding | tuple[nn.Embedding, ...]:
        """The table of learned positions, or those of encoder and decoder.

        Raises:
            ValueError: for other positions, which have no table.
        """
        tables = tuple(getattr(stack.embeddings, "position_embeddings", None) for stack in self.stacks())
        if None in tables:
            raise ValueError("get_position_embeddings: only position_embedding_type='learned' has a table.")
        return tables if len(tables) > 1 else tables[0]

    def resize_position_embeddings(self, new_num_position_embeddings: int) -> None:
        """Resize the tables of learned positions; new rows are drawn as at the start.

        Raises:
            ValueError: for other positions, which have no table, and for a number that is not positive.
        """
        self.get_position_embeddings()
        for stack in self.stacks():
            stack.embeddings.resize_positions(new_num_position_embeddings)
        self.config.max_position_embeddings = new_num_position_embeddings

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if isinstance(module, RoFormerLiteStackedLinear | RoFormerLiteStackedUnit):
            module.init_weights(self.config.initializer_range)
        elif isinstance(module, nn.PReLU):
            init.constant_(module.weight, SLOPE)


class RoFormerLiteModel(RoFormerLitePreTrainedModel):
    """The bare stack. With `config.is_decoder` it is causal and keeps a cache; with `config.add_cross_attention` its
    layers attend to `encoder_hidden_states` as well.

    Args of `forward`:
        input_ids: Token ids, `(B, L)`; or give `inputs_embeds`, `(B, L, embedding_size)`.
        attention_mask: `(B, L)`, 1 for real tokens, in any pattern; `(B, past + L)` with a cache. A mask of four
            dimensions, or a dict of such masks by layer type, goes to the attention function as it is.
        token_type_ids: Segments, `(B, L)`; only with `type_vocab_size`.
        position_ids: `(B, L)`. Default: counted over the real tokens of each row. Restarts mark packed documents.
        encoder_hidden_states: `(B, Ls, cross_attention_hidden_size)`, for cross-attention.
        encoder_attention_mask: `(B, Ls)`, 1 for real tokens.
        past_key_values: Cache of a decoder; made here when `use_cache` (default: `config.use_cache`) asks for one.
            In training only when given; packed documents have none.
        layout: What `lay_out` returned for these arguments. It then stands for all that describe the batch: masks,
            positions, cache and `use_cache` are not looked at again.
        kwargs: `output_hidden_states`, `output_attentions`, `cu_seq_lens_q` (packed input), and what attention
            functions take.

    Returns of `forward`:
        `last_hidden_state` `(B, L, hidden)`, zeros at padding; `pooler_output` `(documents, hidden)` with
        `add_pooling_layer`; `past_key_values`; on request `hidden_states`, `attentions`, `cross_attentions`.

    Raises:
        ValueError: when inputs do not fit together.
    """

    def __init__(self, config: RoFormerLiteConfig, add_pooling_layer: bool | None = None):
        super().__init__(config)
        self.embeddings = RoFormerLiteEmbeddings(config)
        layer_class = LAYER_CLASSES[config.layer_style]
        self.layers = nn.ModuleList(layer_class(config, i) for i in range(config.num_hidden_layers))
        self.final_norm = make_norm(config) if config.final_norm else nn.Identity()
        self.pooler = None
        if config.add_pooling_layer if add_pooling_layer is None else add_pooling_layer:
            self.pooler = RoFormerLitePooler(config)
        self.rotary_emb = make_rotary_embedding(config) if config.position_embedding_type == "rope" else None
        self.gradient_checkpointing = False
        self.post_init()

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
        layout: InputLayout | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> BaseModelOutputWithPoolingAndCrossAttentions:
        """Run the stack; the class describes the arguments and what comes back."""
        refuse_misspelt(type(self), kwargs)
        if layout is None:
            layout = self.lay_out(
                input_ids=input_ids,
                inputs_embeds=inputs_embeds,
                attention_mask=attention_mask,
                position_ids=position_ids,
                encoder_hidden_states=encoder_hidden_states,
                encoder_attention_mask=encoder_attention_mask,
                past_key_values=past_key_values,
                use_cache=use_cache,
                token_type_ids=token_type_ids,
                **kwargs,
            )
        hidden_states = self.embeddings(layout.tokens, input_ids, inputs_embeds, token_type_ids)  # (N, hidden)
        if encoder_hidden_states is not None:
            encoder_hidden_states = layout.encoder_tokens.gather(encoder_hidden_states)  # (Ns, encoder's hidden)
        rotary_tables = self._rotary_tables(hidden_states, layout)
        step = decoding_step(self, layout, hidden_states)
        if step is not None:
            hidden_states = step(hidden_states, rotary_tables, layout)
        for layer in () if step is not None else self.layers:
            hidden_states = layer(
                hidden_states,
                encoder_hidden_states,
                layout=layout,
                past_key_values=layout.past_key_values,
                **rotary_tables[layer.layer_type],
                **layout.attention_options,
            )
        last_hidden_state = layout.tokens.restore(self.final_norm(hidden_states))  # (B, L, hidden)
        return BaseModelOutputWithPoolingAndCrossAttentions(
            last_hidden_state=last_hidden_state,
            pooler_output=None if self.pooler is None else self.pooler(layout.tokens, last_hidden_state),
            past_key_values=layout.past_key_values,
        )

    def lay_out(self, **inputs: Any) -> InputLayout:
        """The layout that `forward` uses for the same arguments. Heads that pool by document, and encoder–decoders,
        call this first and pass the layout to `forward`."""
        return lay_out(self.config, next(self.parameters(), None), self.training, **inputs)

    def _rotary_tables(
        self, hidden_states: torch.Tensor, layout: InputLayout
    ) -> dict[str, dict[str, tuple[torch.Tensor, torch.Tensor] | None]]:
        """Cosines and sines of all positions by the type of layer, shared by its layers."""
        kinds = set(self.config.layer_types)
        if isinstance(self.rotary_emb, nn.ModuleDict):
            return {kind: self._tables_of(self.rotary_emb[kind], hidden_states, layout) for kind in kinds}
        return dict.fromkeys(kinds, self._tables_of(self.rotary_emb, hidden_states, layout))

    def _tables_of(
        self, rotary_emb: RoFormerLiteRotaryEmbedding | None, hidden_states: torch.Tensor, layout: InputLayout
    ) -> dict[str, tuple[torch.Tensor, torch.Tensor] | None]:
        if rotary_emb is None:
            return {"position_embeddings": None}
        position_ids = layout.tokens.position_ids
        if (
            not is_tracing(position_ids) and not position_ids.numel()
        ):  # a batch of padding alone: RoPE scalings ask for the largest position
            position_ids = position_ids.new_zeros(1)
        tables = {"position_embeddings": rotary_emb(hidden_states, position_ids)}
        scaling = rotary_emb.attention_scaling  # sharpens the scores (yarn, longrope); values have none
        if self.config.rotary_value and scaling != 1:
            cos, sin = tables["position_embeddings"]
            tables["value_position_embeddings"] = cos / scaling, sin / scaling
        if layout.encoder_tokens is not None and self.config.layer_style == "parallel_heads":  # no other rotates them
            tables["encoder_position_embeddings"] = rotary_emb(hidden_states, layout.encoder_tokens.position_ids)
        return tables


__all__ = ["RoFormerLiteModel", "RoFormerLitePreTrainedModel"]
