"""One stack of layers, as an encoder or as a decoder.

Follow `hidden_states` through `RoFormerLiteModel.forward`. A batch goes through the layers in one
of two forms:

* flat, `(1, N, hidden)`: the real tokens of the batch alone (`padding.py`), so that padding costs
  nothing outside attention; `cu_seq_lens_*` say to attention which of them belong together
  (`attention_functions.py`);
* as it is, `(B, L, hidden)`, with masks: after the tokens of a key-value cache, for the outputs of
  all layers, with eager and flex attention, with masks of four dimensions, and while a graph is
  traced or exported.
"""

import copy
import difflib
from collections.abc import Callable
from functools import lru_cache, wraps
from typing import Any

import torch
from torch import nn
from transformers.activations import ACT2FN
from transformers.cache_utils import Cache, DynamicCache, DynamicLayer, EncoderDecoderCache
from transformers.masking_utils import (
    create_bidirectional_mask,
    create_bidirectional_sliding_window_mask,
    create_causal_mask,
    create_sliding_window_causal_mask,
)
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import BaseModelOutputWithPoolingAndCrossAttentions
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS, dynamic_rope_update
from transformers.modeling_utils import PreTrainedModel
from transformers.processing_utils import Unpack
from transformers.utils.generic import TransformersKwargs, merge_with_config_defaults
from transformers.utils.import_utils import is_tracing
from transformers.utils.output_capturing import OutputRecorder, capture_outputs

from .attention_functions import (
    ALL_ATTENTION_FUNCTIONS,
    SERVERS,
    WRITE_PAGED_CACHE,
    check_vllm,
    eager_attention_forward,
)
from .configuration_roformer_lite import RemoteCode, RoFormerLiteConfig
from .padding import (
    Documents,
    FlatCache,
    FlatTokens,
    find_documents,
    has_padding_after_tokens,
    is_padding_mask,
    packed_documents,
    pool,
    positions_of_real_tokens,
)

# attention functions that take any mask beside the borders
TAKE_MASKS = ("sdpa", "eager", "flex_attention")
# By the type of layer, and whether it is causal.
MAKE_MASK = {
    ("full_attention", False): create_bidirectional_mask,
    ("full_attention", True): create_causal_mask,
    ("sliding_attention", False): create_bidirectional_sliding_window_mask,
    ("sliding_attention", True): create_sliding_window_causal_mask,
}
KEPT_IN_TRAINING = 1 - 0.15 * 0.8  # share of the tokens that BERT's rule does not mask


def accepts_cache(forward: Callable[..., Any]) -> Callable[..., Any]:
    """Let `forward` take its `past_key_values` as `cache` too, as transformers 5.24 and later name
    and pass it. The paged cache of continuous batching has that name in all versions; it is no
    `Cache`, and attention reads it."""

    @wraps(forward)
    def renamed(*args: Any, **kwargs: Any) -> Any:
        if isinstance(kwargs.get("cache"), Cache):
            kwargs["past_key_values"] = kwargs.pop("cache")
        return forward(*args, **kwargs)

    return renamed


def make_norm(
    config: RoFormerLiteConfig, width: int | None = None, eps: float | None = None
) -> nn.Module:
    """The norm that `config` asks for, over the last dimension."""
    width, eps = width or config.hidden_size, config.norm_eps if eps is None else eps
    return (
        nn.RMSNorm(width, eps)
        if config.norm_type == "rmsnorm"
        else nn.LayerNorm(width, eps, bias=config.norm_bias)
    )


class RoFormerLiteRotaryEmbedding(nn.Module):
    """Cosines and sines of positions (Su et al. 2021, arXiv:2104.09864), for all layers at once.

    Pairs of channels of queries and keys are turned by an angle that grows with the position, so
    that their product depends on the distance alone. As in Llama, channel j turns with channel j +
    rotary_dim / 2. The names of the class and of its buffers are those by which transformers fills
    rotary tables after loading; the buffers are never saved.
    """

    def __init__(self, config: RoFormerLiteConfig):
        super().__init__()
        self.config = config
        self.rope_type: str = config.rope_parameters["rope_type"]
        self.max_seq_len_cached = self.original_max_seq_len = config.max_position_embeddings
        compute = ROPE_INIT_FUNCTIONS.get(self.rope_type, self.compute_default_rope_parameters)
        inv_freq, self.attention_scaling = compute(config)
        self.inv_freq = nn.Buffer(inv_freq, persistent=False)
        self.original_inv_freq = nn.Buffer(inv_freq.clone(), persistent=False)

    @staticmethod
    def compute_default_rope_parameters(
        config: RoFormerLiteConfig,
        device: torch.device | None = None,
        dtype: torch.dtype = torch.float32,
        **kwargs: Any,
    ) -> tuple[torch.Tensor, float]:
        """The angle of each pair for one step of the position, theta^(-2j / rotary_dim), and a
        scaling of 1."""
        rotary_dim = int(config.head_dim * config.rope_parameters.get("partial_rotary_factor", 1.0))
        exponents = torch.arange(0, rotary_dim, 2, dtype=dtype, device=device) / rotary_dim
        return config.rope_parameters["rope_theta"] ** -exponents, 1.0

    def _apply(self, fn: Any, recurse: bool = True) -> nn.Module:
        # A private name of torch, which every conversion calls: `model.to(torch.bfloat16)` moves
        # the frequencies but must not round them.
        return super()._apply(
            lambda tensor: fn(tensor) if tensor.is_meta else tensor.to(fn(tensor).device), recurse
        )

    @torch.no_grad()
    @dynamic_rope_update
    def forward(
        self, hidden_states: torch.Tensor, position_ids: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Tables `(B, L, 1, rotary_dim)` in the dtype of queries and keys. The first half of the
        sines is negated, so that `rotate` need not negate half of the states."""
        # At least float32, whatever the model's dtype: bfloat16 cannot tell neighbouring positions
        # apart.
        exact = torch.promote_types(hidden_states.dtype, torch.float32)
        inv_freq = self.inv_freq.to(position_ids.device)
        if exact == torch.float64 and self.rope_type == "default":
            inv_freq, _ = self.compute_default_rope_parameters(
                self.config, position_ids.device, exact
            )
        angles = position_ids[..., None, None].to(exact) * torch.cat((-inv_freq, inv_freq)).to(
            exact
        )
        cos, sin = angles.cos(), angles.sin()
        if self.attention_scaling != 1:
            cos, sin = cos * self.attention_scaling, sin * self.attention_scaling
        # under autocast, tables of float32 would make float32 of queries again
        kind = hidden_states.device.type
        dtype = (
            torch.get_autocast_dtype(kind)
            if torch.is_autocast_enabled(kind)
            else hidden_states.dtype
        )
        return cos.to(dtype), sin.to(dtype)


def rotate(states: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotate the first rotary_dim channels of `(..., heads, head_dim)` by tables `(..., 1,
    rotary_dim)`.

    Channels j and j + rotary_dim / 2, called x and y, become x cos - y sin and y cos + x sin. The
    minus is already in the table of sines.
    """
    rotary_dim = cos.shape[-1]
    if rotary_dim < states.shape[-1]:
        return torch.cat(
            (rotate(states[..., :rotary_dim], cos, sin), states[..., rotary_dim:]), dim=-1
        )
    first, second = states.chunk(2, dim=-1)
    return torch.cat((second, first), dim=-1).mul_(sin).addcmul_(states, cos)


def sinusoidal_positions(
    position_ids: torch.Tensor, width: int, dtype: torch.dtype
) -> torch.Tensor:
    """Vectors of Vaswani et al. 2017, section 3.5, `(*position_ids.shape, width)`: channel 2i is
    the sine of p · 10000^(-2i / width), channel 2i + 1 its cosine."""
    exact = torch.promote_types(dtype, torch.float32)
    exponents = torch.arange(0, width, 2, device=position_ids.device, dtype=exact) / width
    angles = position_ids[..., None].to(exact) * 10000.0**-exponents  # (..., width / 2)
    return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(-2).to(dtype)


class RoFormerLiteEmbeddings(nn.Module):
    """Token, segment and absolute position embeddings, with norm, dropout and projection."""

    def __init__(self, config: RoFormerLiteConfig):
        super().__init__()
        width = config.embedding_size
        self.scale = width**0.5 if config.scale_embeddings else None
        self.position_type, self.token_dropout_mask_id = (
            config.position_embedding_type,
            config.token_dropout_mask_id,
        )
        # a stack that takes vectors has none
        self.word_embeddings = self.token_type_embeddings = None
        if config.vocab_size:
            self.word_embeddings = nn.Embedding(
                config.vocab_size, width, padding_idx=config.pad_token_id
            )
        if config.type_vocab_size:
            self.token_type_embeddings = nn.Embedding(config.type_vocab_size, width)
        if config.position_embedding_type == "learned":
            self.position_embeddings = nn.Embedding(config.max_position_embeddings, width)
        self.norm = (
            make_norm(config, width, config.embedding_norm_eps) if config.embedding_norm else None
        )
        self.dropout = nn.Dropout(
            config.hidden_dropout_at("embeddings") if config.vocab_size else 0.0
        )
        self.projection = (
            None if width == config.hidden_size else nn.Linear(width, config.hidden_size)
        )

    def forward(
        self,
        input_ids: torch.Tensor | None,
        position_ids: torch.Tensor,
        token_type_ids: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        documents: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """`(B, L)` to `(B, L, hidden)`; `documents` `(B, L)` is read for token dropout alone."""
        if inputs_embeds is None and self.word_embeddings is None:
            raise ValueError(
                "vocab_size=0: this model takes vectors; give inputs_embeds in place of input_ids."
            )
        states = self.word_embeddings(input_ids) if inputs_embeds is None else inputs_embeds
        if self.scale is not None:
            states = states * self.scale
        if self.token_dropout_mask_id is not None and input_ids is not None:
            states = states * self._token_dropout(input_ids, documents, states.dtype)
        if self.token_type_embeddings is not None:
            token_type_ids = (
                torch.zeros_like(position_ids) if token_type_ids is None else token_type_ids
            )
            states = states + self.token_type_embeddings(token_type_ids)
        elif token_type_ids is not None and not is_tracing(token_type_ids) and token_type_ids.any():
            raise ValueError(
                "token_type_ids: this model has no segments (type_vocab_size=0); leave them out."
            )
        if self.position_type in ("learned", "sinusoidal"):
            states = states + self._absolute_positions(position_ids, states)
        if self.norm is not None:
            states = self.norm(states)
        if self.training:
            states = self.dropout(states)
        return states if self.projection is None else self.projection(states)

    def _absolute_positions(self, position_ids: torch.Tensor, states: torch.Tensor) -> torch.Tensor:
        """Vectors of positions, in the shape of the embedded tokens, `(B, L, embedding_size)`."""
        if self.position_type == "sinusoidal":
            return sinusoidal_positions(position_ids, states.shape[-1], states.dtype)
        try:
            return self.position_embeddings(position_ids)
        except IndexError as error:  # on a CPU; torch does not say of which table
            rows = self.position_embeddings.num_embeddings
            raise ValueError(
                f"Texts are longer than max_position_embeddings={rows}; truncate them."
            ) from error

    def _token_dropout(
        self, input_ids: torch.Tensor, documents: torch.Tensor | None, dtype: torch.dtype
    ) -> torch.Tensor:
        """Factors `(B, L, 1)`: 0 for mask tokens, for others of a document 0.88 / (1 - its share of
        mask tokens)."""
        exact = torch.promote_types(dtype, torch.float32)  # which can count
        kept = (input_ids != self.token_dropout_mask_id).to(exact).flatten()
        if documents is None:  # beside a mask that is no padding mask
            documents = torch.arange(len(input_ids), device=kept.device)[:, None].expand_as(
                input_ids
            )
        places = documents.flatten()
        zeros = kept.new_zeros(len(kept) + 2)  # as many documents as a graph may have
        if not is_tracing(places) and len(places):
            zeros = kept.new_zeros(int(places.max()) + 1)
        shares = zeros.index_add(0, places, kept) / zeros.index_add(
            0, places, torch.ones_like(kept)
        ).clamp(min=1)
        factors = kept * KEPT_IN_TRAINING / shares[places].clamp(min=1e-9)
        return factors.view(*input_ids.shape, 1).to(dtype)


class RoFormerLiteAttention(nn.Module):
    """Attention to the tokens themselves or, without rotation, to an encoder's states.

    With `num_key_value_heads` < `num_attention_heads` each key-value head serves a group of query
    heads.

    Args of `forward`:
        hidden_states: `(B, L, hidden)`, or a flat row `(1, N, hidden)`.
        key_value_states: The encoder's states of cross-attention.
        position_embeddings: Cosines and sines, each `(B, L, 1, rotary_dim)`; None does not rotate.
        value_position_embeddings: The same for values; None does not rotate them.
        attention_mask: What the attention function takes; None in a flat row, where `cu_seq_lens_*`
            are in kwargs.
        past_key_values: Cache to extend and read.
    """

    def __init__(
        self, config: RoFormerLiteConfig, layer_idx: int, is_cross_attention: bool = False
    ):
        super().__init__()
        self.config = config
        self.layer_idx = layer_idx
        self.head_dim = config.head_dim
        self.num_key_value_groups = config.num_attention_heads // config.num_key_value_heads
        self.scaling = config.head_dim**-0.5
        self.is_cross_attention = is_cross_attention
        self.is_causal = config.is_decoder and not is_cross_attention
        self.sliding_window = None
        if not is_cross_attention and config.layer_types[layer_idx] == "sliding_attention":
            # Attention functions count the token itself as part of the window, on both sides of it.
            self.sliding_window = config.sliding_window + (0 if self.is_causal else 1)
        self.make_projections(config)

    def make_projections(self, config: RoFormerLiteConfig) -> None:
        source_size = (
            self.is_cross_attention and config.cross_attention_hidden_size
        ) or config.hidden_size
        query_size, key_size = (
            heads * config.head_dim
            for heads in (config.num_attention_heads, config.num_key_value_heads)
        )
        self.q_proj = nn.Linear(
            config.hidden_size, query_size, bias=config.has_bias("attention_bias", "q")
        )
        self.k_proj = nn.Linear(source_size, key_size, bias=config.has_bias("attention_bias", "k"))
        self.v_proj = nn.Linear(source_size, key_size, bias=config.has_bias("attention_bias", "v"))
        self.o_proj = nn.Linear(
            query_size, config.hidden_size, bias=config.has_bias("attention_bias", "o")
        )

    def forward(
        self,
        hidden_states: torch.Tensor,
        key_value_states: torch.Tensor | None = None,
        position_embeddings: tuple[torch.Tensor, torch.Tensor] | None = None,
        value_position_embeddings: tuple[torch.Tensor, torch.Tensor] | None = None,
        attention_mask: torch.Tensor | None = None,
        past_key_values: Cache | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """`(B, L, hidden)` or `(1, N, hidden)` to the same, and probabilities `(B, heads, Lq, Lk)`
        if any."""
        query = self._split_heads(self.q_proj(hidden_states))  # (B, L, heads, head_dim)
        cache = past_key_values
        if isinstance(cache, EncoderDecoderCache):
            cache = (
                cache.cross_attention_cache
                if self.is_cross_attention
                else cache.self_attention_cache
            )
        if (
            self.is_cross_attention
            and cache is not None
            and past_key_values.is_updated.get(self.layer_idx)
        ):
            key, value = cache.layers[self.layer_idx].keys, cache.layers[self.layer_idx].values
        else:
            source = key_value_states if self.is_cross_attention else hidden_states
            key, value = (
                self._split_heads(self.k_proj(source)),
                self._split_heads(self.v_proj(source)),
            )
            if position_embeddings is not None:
                query, key = rotate(query, *position_embeddings), rotate(key, *position_embeddings)
            if value_position_embeddings is not None:
                value = rotate(value, *value_position_embeddings)
            # (B, key_value_heads, L, head_dim)
            key, value = key.transpose(1, 2), value.transpose(1, 2)
            if cache is not None:
                key, value = cache.update(key, value, self.layer_idx)
                if self.is_cross_attention:
                    past_key_values.is_updated[self.layer_idx] = True
            elif (paged := kwargs.get("cache")) is not None and not WRITE_PAGED_CACHE:
                # and changes kwargs
                key, value = paged.update(key, value, self.layer_idx, kwargs=kwargs)
        attention_interface = ALL_ATTENTION_FUNCTIONS.get_interface(
            self.config._attn_implementation, eager_attention_forward
        )
        output, weights = attention_interface(
            self,
            query.transpose(1, 2),
            key,
            value,
            attention_mask,
            dropout=self.config.attention_dropout if self.training else 0.0,
            scaling=self.scaling,
            sliding_window=self.sliding_window,
            **kwargs,
        )
        # servers return (N, width)
        output = output.reshape(*hidden_states.shape[:-1], query.shape[2] * self.head_dim)
        return self.o_proj(output), weights

    def _split_heads(self, states: torch.Tensor) -> torch.Tensor:
        # Of a matrix that is cut among processes there are fewer heads here.
        return states.unflatten(-1, (states.shape[-1] // self.head_dim, self.head_dim))


class RoFormerLiteMLP(nn.Module):
    """`down(act(up(x)))`, or gated `down(act(gate(x)) * up(x))` (Shazeer 2020,
    arXiv:2002.05202)."""

    def __init__(self, config: RoFormerLiteConfig):
        super().__init__()
        hidden, inner = config.hidden_size, config.intermediate_size
        self.gate_proj = None
        if config.gated_mlp:
            self.gate_proj = nn.Linear(hidden, inner, bias=config.has_bias("mlp_bias", "gate"))
        self.up_proj = nn.Linear(hidden, inner, bias=config.has_bias("mlp_bias", "up"))
        self.down_proj = nn.Linear(inner, hidden, bias=config.has_bias("mlp_bias", "down"))
        self.act_fn = ACT2FN[config.hidden_act]
        self.dropout = nn.Dropout(config.mlp_dropout)
        self.chunk_size = config.chunk_size_feed_forward

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """`(B, L, hidden)` to the same."""
        if self.chunk_size and hidden_states.shape[1] > self.chunk_size:
            return torch.cat(
                [self(piece) for piece in hidden_states.split(self.chunk_size, dim=1)], dim=1
            )
        inner = self.up_proj(hidden_states)  # (B, L, intermediate)
        inner = (
            self.act_fn(inner)
            if self.gate_proj is None
            else self.act_fn(self.gate_proj(hidden_states)) * inner
        )
        return self.down_proj(self.dropout(inner) if self.training else inner)


class RoFormerLiteLayer(GradientCheckpointingLayer):
    """Self-attention, cross-attention if the config has it, and a feed-forward; each in a residual
    branch.

    `norm_placement="pre"`: x + dropout(branch(norm(x))); `"post"`: norm(x + dropout(branch(x))).
    """

    def __init__(self, config: RoFormerLiteConfig, layer_idx: int):
        super().__init__()
        self.is_pre_norm = config.norm_placement == "pre"
        self.self_attn_norm = (
            make_norm(config) if layer_idx > 0 or config.first_attention_norm else None
        )
        self.self_attn = RoFormerLiteAttention(config, layer_idx)
        if config.add_cross_attention:
            self.cross_attn_norm = make_norm(config)
            self.cross_attn = RoFormerLiteAttention(config, layer_idx, is_cross_attention=True)
        self.mlp_norm = make_norm(config)
        self.mlp = RoFormerLiteMLP(config)
        self.attn_branch_dropout = nn.Dropout(config.hidden_dropout_at("attention"))
        self.mlp_branch_dropout = nn.Dropout(config.hidden_dropout_at("mlp"))

    def forward(
        self,
        hidden_states: torch.Tensor,
        encoder_hidden_states: torch.Tensor | None = None,
        past_key_values: Cache | None = None,
        cross_attention: dict[str, Any] | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> torch.Tensor:
        """`(B, L, hidden)` to the same. `cross_attention` holds the arguments that only this
        attention gets, kwargs those of self-attention. (Tensors that need gradients are positional,
        for reentrant checkpointing.)"""
        branch = self._before(self.self_attn_norm, hidden_states)
        branch, _ = self.self_attn(branch, past_key_values=past_key_values, **kwargs)
        hidden_states = self._after(
            self.self_attn_norm, hidden_states, branch, self.attn_branch_dropout
        )
        if encoder_hidden_states is not None:
            branch = self._before(self.cross_attn_norm, hidden_states)
            branch, _ = self.cross_attn(
                branch, encoder_hidden_states, past_key_values=past_key_values, **cross_attention
            )
            hidden_states = self._after(
                self.cross_attn_norm, hidden_states, branch, self.attn_branch_dropout
            )
        branch = self.mlp(self._before(self.mlp_norm, hidden_states))
        return self._after(self.mlp_norm, hidden_states, branch, self.mlp_branch_dropout)

    def _before(self, norm: nn.Module | None, states: torch.Tensor) -> torch.Tensor:
        return norm(states) if self.is_pre_norm and norm is not None else states

    def _after(
        self,
        norm: nn.Module | None,
        residual: torch.Tensor,
        branch: torch.Tensor,
        dropout: nn.Module,
    ) -> torch.Tensor:
        total = residual + (dropout(branch) if self.training else branch)
        return total if self.is_pre_norm else norm(total)


# By `layer_style`. `reference_layers.py`, which few models need, adds its own.
LAYERS: dict[str, type[nn.Module]] = {"standard": RoFormerLiteLayer}


class RoFormerLitePooler(nn.Module):
    """BERT's pooler (Devlin et al. 2018): dense and tanh over the first token of each document."""

    def __init__(self, config: RoFormerLiteConfig):
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)

    def forward(self, first_tokens: torch.Tensor) -> torch.Tensor:
        """`(documents, hidden)` to the same."""
        return self.dense(first_tokens).tanh()


class RoFormerLitePreTrainedModel(RemoteCode, PreTrainedModel):
    """What all models of the package share: initialisation, loading, and what they can do."""

    config: RoFormerLiteConfig
    base_model_prefix = "model"
    _input_embed_layer = "word_embeddings"
    _no_split_modules = [
        "RoFormerLiteEmbeddings",
        "RoFormerLiteLayer",
        "RoFormerLiteParallelHeadsLayer",
        "RoFormerLiteWalkthroughLayer",
    ]
    _skip_keys_device_placement = ["past_key_values", "cache"]
    supports_gradient_checkpointing = True
    _supports_sdpa = True
    _supports_flash_attn = True
    _supports_flex_attn = True
    _supports_attention_backend = True
    _can_compile_fullgraph = True
    _can_record_outputs = {
        "hidden_states": GradientCheckpointingLayer,
        "attentions": OutputRecorder(RoFormerLiteAttention, index=1, layer_name="self_attn"),
        "cross_attentions": OutputRecorder(RoFormerLiteAttention, index=1, layer_name="cross_attn"),
    }

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        # of text features and of the layers of reference systems
        if hasattr(module, "initialize_own_weights"):
            module.initialize_own_weights(self.config.initializer_range)

    def stacks(self) -> list["RoFormerLiteModel"]:
        """The stack, or encoder and decoder."""
        return [module for module in self.modules() if isinstance(module, RoFormerLiteModel)]

    def get_position_embeddings(self) -> nn.Embedding | tuple[nn.Embedding, ...]:
        """The table of learned positions, or those of encoder and decoder; `ValueError` where there
        is none."""
        tables = tuple(
            getattr(stack.embeddings, "position_embeddings", None) for stack in self.stacks()
        )
        if None in tables:
            raise ValueError(
                "get_position_embeddings: only position_embedding_type='learned' has a table."
            )
        return tables if len(tables) > 1 else tables[0]

    def resize_position_embeddings(self, new_num_position_embeddings: int) -> None:
        """Resize the tables of learned positions; new rows are drawn as at the start."""
        self.get_position_embeddings()
        if new_num_position_embeddings < 1:
            raise ValueError(
                f"new_num_position_embeddings={new_num_position_embeddings} must be a positive number."
            )
        for stack in self.stacks():
            old = stack.embeddings.position_embeddings.weight
            new = old.new_empty(new_num_position_embeddings, old.shape[1]).normal_(
                0.0, stack.config.initializer_range
            )
            new[: len(old)] = old.detach()[:new_num_position_embeddings]
            table = nn.Embedding.from_pretrained(new, freeze=not old.requires_grad)
            stack.embeddings.position_embeddings = table
            stack.config.max_position_embeddings = new_num_position_embeddings
        self.config.max_position_embeddings = new_num_position_embeddings

    @classmethod
    def maybe_distribute_model(
        cls, model: PreTrainedModel, distributed_config: Any, mesh: Any
    ) -> PreTrainedModel:
        """Called by `from_pretrained` between making the model and loading its weights.

        FSDP2 keeps a flat copy of every weight whose rows do not divide by the number of processes.
        Weights that are tied only afterwards, or that lie in two groups, then have two such copies,
        of which one is never updated. Hence they are tied before and stay in the root's group.
        `generate` of an encoder–decoder calls the encoder directly, so it has to gather the root's
        group itself.

        Raises:
            ValueError: for `pp_size`, as transformers cuts models whose parts have the names of
                Llama.
        """
        if distributed_config is not None and distributed_config.pp_size not in (None, 1):
            raise ValueError(
                f"DistributedConfig(pp_size={distributed_config.pp_size}): transformers cannot cut these."
            )
        if distributed_config is None or distributed_config.fsdp_size in (None, 1):
            return super().maybe_distribute_model(model, distributed_config, mesh)
        # tensor parallelism wants to cut tied weights one by one
        if distributed_config.tp_size in (None, 1):
            model.tie_weights()
        for name in {name for pair in model.all_tied_weights_keys.items() for name in pair}:
            model.fsdp_plan.pop(name.rpartition(".")[0], None)
        model = super().maybe_distribute_model(model, distributed_config, mesh)
        if model.can_generate():
            # not in every build of torch
            from torch.distributed.fsdp import register_fsdp_forward_method

            register_fsdp_forward_method(model, "generate")
        return model


class RoFormerLiteModel(RoFormerLitePreTrainedModel):
    """The bare stack. With `config.is_decoder` it is causal and keeps a cache; with
    `config.add_cross_attention` its layers attend to `encoder_hidden_states` as well.

    Args of `forward`:
        input_ids: Token ids, `(B, L)`; or give `inputs_embeds`, `(B, L, embedding_size)`.
        attention_mask: `(B, L)`, nonzero for real tokens, in any pattern; `(B, past + L)` with a
            cache. A mask of four dimensions, or a dict of such masks by layer type, goes to the
            attention function as it is.
        token_type_ids: Segments, `(B, L)`; only with `type_vocab_size`.
        position_ids: `(B, L)`. Default: counted over the real tokens of each row. Restarts begin
            packed documents.
        encoder_hidden_states: `(B, Ls, cross_attention_hidden_size)`, for cross-attention.
        encoder_attention_mask, encoder_position_ids: `(B, Ls)`, of these states.
        past_key_values: Cache of a decoder; made here when `use_cache` (default:
            `config.use_cache`) asks for one. In training only when given; packed documents have
            none.
        kwargs: `output_hidden_states`, `output_attentions` (with eager attention), `cu_seq_lens_q`
            (packed input), and what attention functions take.

    Returns of `forward`:
        `last_hidden_state` `(B, L, hidden)`, zeros at padding; `pooler_output` `(documents,
        hidden)` with `add_pooling_layer`; `past_key_values`; on request `hidden_states`,
        `attentions`, `cross_attentions`.

    Raises:
        ValueError, TypeError: when inputs do not fit together.
    """

    def __init__(self, config: RoFormerLiteConfig, add_pooling_layer: bool | None = None):
        if config._attn_implementation == "vllm":
            check_vllm(config)
        super().__init__(config)
        self.embeddings = RoFormerLiteEmbeddings(config)
        layer_class = LAYERS[config.layer_style]
        self.layers = nn.ModuleList(layer_class(config, i) for i in range(config.num_hidden_layers))
        self.final_norm = make_norm(config) if config.final_norm else None
        has_pooler = config.add_pooling_layer if add_pooling_layer is None else add_pooling_layer
        self.pooler = RoFormerLitePooler(config) if has_pooler else None
        self.rotary_emb = (
            self._make_rotary_embedding() if config.position_embedding_type == "rope" else None
        )
        # Read once: a field of a config of transformers takes microseconds, which is much beside a
        # step of generation.
        self.layer_types, self.is_decoder = list(config.layer_types), config.is_decoder
        self.rotates_values, self.rotates_source = (
            config.rotary_value,
            config.layer_style == "parallel_heads",
        )
        self.has_cross_attention = config.add_cross_attention
        self.gradient_checkpointing = False
        self.post_init()

    def _make_rotary_embedding(self) -> RoFormerLiteRotaryEmbedding | nn.ModuleDict:
        """The tables of the stack, by the type of layer where `rope_parameters` are."""
        by_type = self.config.rope_parameters_of_layers()
        if None in by_type:
            return RoFormerLiteRotaryEmbedding(self.config)
        tables = nn.ModuleDict()
        for kind, parameters in by_type.items():
            config = copy.copy(self.config)
            config.rope_parameters = parameters
            tables[kind] = RoFormerLiteRotaryEmbedding(config)
        return tables

    @accepts_cache
    @merge_with_config_defaults
    @capture_outputs
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | dict[str, torch.Tensor] | None = None,
        token_type_ids: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        encoder_hidden_states: torch.Tensor | None = None,
        encoder_attention_mask: torch.Tensor | None = None,
        past_key_values: Cache | None = None,
        use_cache: bool | None = None,
        encoder_position_ids: torch.Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> BaseModelOutputWithPoolingAndCrossAttentions:
        """Run the stack; the class describes the arguments and what comes back."""
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("Give exactly one of input_ids and inputs_embeds.")
        given = input_ids if inputs_embeds is None else inputs_embeds  # (B, L) or (B, L, width)
        self._check_inputs(given, attention_mask, past_key_values, encoder_hidden_states, kwargs)
        if position_ids is not None and position_ids.ndim == 1:
            position_ids = position_ids.unsqueeze(0)  # (1, L)
        if token_type_ids is not None:
            token_type_ids = token_type_ids.expand(given.shape[:2])
        # what says who belongs together
        packing = (attention_mask, position_ids, kwargs.get("cu_seq_lens_q"))
        if kwargs.get("seq_idx") is not None and packing[1:] == (None, None):
            raise ValueError(
                "seq_idx alone does not tell documents apart here; give position_ids or cu_seq_lens_q."
            )
        documents, past_key_values = self._find_documents(
            given, *packing, past_key_values, use_cache, kwargs
        )
        flat = None
        if documents is not None and not is_tracing(given) and self._may_be_flat(kwargs):
            # Neighbours of equal length are one call of sdpa; other functions need the caller's
            # order.
            flat = documents.flatten(
                "length" if self.config._attn_implementation == "sdpa" else "batch"
            )
            # NEFTune's need (B, L, width)
            if inputs_embeds is None and has_hooks(self.embeddings.word_embeddings):
                inputs_embeds = self.embeddings.word_embeddings(input_ids)
            # (1, N), (1, N, width)
            input_ids, inputs_embeds = flat.flatten(input_ids), flat.flatten(inputs_embeds)
            token_type_ids, position_ids = flat.flatten(token_type_ids), flat.position_ids
            kwargs |= flat.attention_kwargs(flat, given.device, self.config._attn_implementation)
        elif documents is not None:
            position_ids = documents.position_ids
        elif position_ids is None:
            position_ids = self._positions_after(past_key_values, given, attention_mask)
        numbers = None
        if self.embeddings.token_dropout_mask_id is not None and documents is not None:
            numbers = documents.numbers if flat is None else flat.documents()
        hidden_states = self.embeddings(
            input_ids, position_ids, token_type_ids, inputs_embeds, numbers
        )

        # in a flat row the borders say it all
        masks: dict[str, Any] = dict.fromkeys(self.layer_types)
        has_tokens = flat is not None or is_tracing(given) or given.numel() > 0
        if flat is None and has_tokens:
            masks = self._masks(hidden_states, attention_mask, documents, past_key_values, kwargs)
        cross_attention: dict[str, Any] = {}
        if encoder_hidden_states is not None and has_tokens:
            source = (encoder_hidden_states, encoder_attention_mask, encoder_position_ids)
            encoder_hidden_states, cross_attention = self._cross_attention(
                hidden_states, documents, flat, *source, past_key_values
            )
            # the decoder's
            borders = ("cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k")
            cross_attention = {
                key: kwargs[key] for key in kwargs if key not in borders
            } | cross_attention
        tables = self._rotary_tables(hidden_states, position_ids)
        cache = (
            past_key_values
            if flat is None or past_key_values is None
            else FlatCache(past_key_values, flat)
        )
        layers = self.layers if has_tokens else ()  # of which a user may have cut off the last
        for kind, layer in zip(self.layer_types, layers, strict=False):
            hidden_states = layer(
                hidden_states,
                encoder_hidden_states,
                past_key_values=cache,
                cross_attention=cross_attention,
                attention_mask=masks[kind],
                **tables[kind],
                **kwargs,
            )
        if self.final_norm is not None:
            hidden_states = self.final_norm(hidden_states)
        if flat is not None:
            hidden_states = flat.restore(hidden_states)  # (B, L, hidden)
        elif is_padding_mask(attention_mask) and (past_key_values is None or given.shape[1] > 1):
            padding = attention_mask[:, -given.shape[1] :, None].to(hidden_states.device) == 0
            hidden_states = hidden_states.masked_fill(padding, 0.0)
        pooled = None
        # servers pool by themselves
        if self.pooler is not None and not self._attends_elsewhere(kwargs):
            pooled = self.pooler(
                pool(hidden_states, "cls", packed_documents(given, *packing), attention_mask)
            )
        return BaseModelOutputWithPoolingAndCrossAttentions(
            last_hidden_state=hidden_states, pooler_output=pooled, past_key_values=past_key_values
        )

    def _check_inputs(
        self, given: torch.Tensor, mask: Any, cache: Any, source: Any, kwargs: dict[str, Any]
    ) -> None:
        """Refuse what torch would take and compute something else from."""
        if (source is not None) != self.has_cross_attention:
            verb = "needs" if self.has_cross_attention else "does not attend to"
            raise ValueError(
                f"add_cross_attention={self.has_cross_attention}: it {verb} encoder_hidden_states."
            )
        is_causal = kwargs.pop("is_causal", None)  # of no concern to cross-attention
        if is_causal not in (None, self.is_decoder) and kwargs.get("cache") is None:
            raise ValueError(f"is_causal={is_causal}: this stack has is_decoder={self.is_decoder}.")
        if isinstance(mask, torch.Tensor) and not is_tracing(given):
            _check_mask(mask, tuple(given.shape[:2]), cache)
        for name, value in kwargs.items():
            if value is not None and (meant := _meant(name)):
                raise TypeError(
                    f"forward got an unexpected argument {name!r}; did you mean {meant!r}?"
                )

    def _find_documents(
        self,
        given: torch.Tensor,
        attention_mask: Any,
        position_ids: torch.Tensor | None,
        cu_seq_lens: torch.Tensor | None,
        cache: Cache | None,
        use_cache: bool | None,
        kwargs: dict[str, Any],
    ) -> tuple[Documents | None, Cache | None]:
        """The documents of the batch, None where a cache with tokens or a prepared mask says who
        sees whom; and the cache, a new one where the caller wants one and the input is not
        packed."""
        is_paged, documents = self._attends_elsewhere(kwargs), None
        if isinstance(cache, Cache) and cu_seq_lens is not None and not is_paged:
            raise ValueError(
                "cu_seq_lens_q can't be combined with past_key_values: a cache knows no documents."
            )
        begins = cache is None or isinstance(cache, DynamicCache) and not cache.get_seq_length()
        if begins and not is_paged and (attention_mask is None or is_padding_mask(attention_mask)):
            shape = tuple(given.shape[:2])
            documents = find_documents(
                shape, given.device, attention_mask, position_ids, cu_seq_lens
            )
        is_packed = documents is not None and documents.is_packed
        if (
            use_cache
            and self.is_decoder
            and cache is None
            and not (self.training or is_paged or is_packed)
        ):
            cache = DynamicCache(config=self.config)
        # a prompt, of which the padding can be left out
        if cache is not None and documents is not None:
            stays = self.has_cross_attention or is_packed or documents.is_full or is_tracing(given)
            # `_masks` chooses layers for a cache in which windows meet padding.
            stays = (
                stays
                or "sliding_attention" in self.layer_types
                and has_padding_after_tokens(attention_mask)
            )
            documents = documents if self._may_be_flat(kwargs) and not stays else None
        if (
            self.has_cross_attention
            and cache is not None
            and not isinstance(cache, EncoderDecoderCache)
        ):
            cache = EncoderDecoderCache(cache, DynamicCache())
        return documents, cache

    def _attends_elsewhere(self, kwargs: dict[str, Any]) -> bool:
        """Whether a server knows who sees whom: vLLM, or transformers' continuous batching."""
        return self.config._attn_implementation in SERVERS or kwargs.get("cache") is not None

    def _may_be_flat(self, kwargs: dict[str, Any]) -> bool:
        """Whether the layers may see a flat row: not where their outputs are asked for in the shape
        `(B, L, …)`, nor with the functions that take masks alone."""
        flags = ("output_hidden_states", "output_attentions")
        wants_layers = any(kwargs.get(flag, getattr(self.config, flag, False)) for flag in flags)
        return not wants_layers and self.config._attn_implementation not in (
            "eager",
            "flex_attention",
        )

    def _positions_after(
        self, cache: Cache | None, given: torch.Tensor, attention_mask: Any
    ) -> torch.Tensor:
        """Positions of new tokens, counted over the real ones of a padding mask, else on from those
        in the cache."""
        length = given.shape[1]
        if is_padding_mask(attention_mask):
            return positions_of_real_tokens(attention_mask)[:, -length:]
        past = 0 if cache is None else cache.get_seq_length()
        return (torch.arange(length, device=given.device) + past).unsqueeze(0)

    def _masks(
        self,
        hidden_states: torch.Tensor,
        attention_mask: Any,
        documents: Documents | None,
        cache: Cache | None,
        kwargs: dict[str, Any],
    ) -> dict[str, Any]:
        """What the attention function gets as its mask in the form `(B, L)`, by the type of
        layer."""
        config, kinds = self.config, set(self.layer_types)
        if isinstance(attention_mask, dict):
            return {kind: attention_mask[kind] for kind in kinds}
        if self._attends_elsewhere(kwargs) or not (
            attention_mask is None or is_padding_mask(attention_mask)
        ):
            return dict.fromkeys(kinds, attention_mask)
        cache = cache.self_attention_cache if isinstance(cache, EncoderDecoderCache) else cache
        # By place: since transformers 5.24 the cache has another name. Bidirectional masks have a
        # source before it.
        options = (
            config,
            hidden_states,
            attention_mask,
            *(() if self.is_decoder else (None,)),
            cache,
        )
        is_packed = documents is not None and documents.is_packed
        if (
            is_packed
            and config._attn_implementation not in TAKE_MASKS
            and not is_tracing(hidden_states)
        ):
            raise ValueError(
                f"attn_implementation={config._attn_implementation!r} can't be combined with packed input and the "
                "outputs of all layers; take sdpa or eager attention for them."
            )
        masks, real = {}, None
        if (
            documents is None
            and "sliding_attention" in kinds
            and has_padding_after_tokens(attention_mask)
        ):
            real = (attention_mask != 0).to(hidden_states.device)
            # layers that forget by place, while windows count real tokens
            if any(cache.is_sliding):
                if not isinstance(cache, DynamicCache) or cache.get_seq_length():
                    raise ValueError(
                        "attention_mask has padding after tokens, and the cache forgets tokens that windows still "
                        "reach: pad on the left, or give past_key_values=DynamicCache()."
                    )
                cache.layers = [DynamicLayer() for _ in cache.layers]
        for kind in kinds:
            make_mask, sees = MAKE_MASK["full_attention", self.is_decoder], None
            if kind == "sliding_attention" and real is not None:
                # flash attention counts real tokens itself
                if config._attn_implementation in TAKE_MASKS:
                    sees = _same_document(real, None, real.cumsum(1), config.sliding_window - 1)
            # the cache's layers know their window
            elif kind == "sliding_attention" and documents is None:
                make_mask = MAKE_MASK[kind, self.is_decoder]
            # counts real tokens, as in a flat row; if causal, the token itself too
            elif kind == "sliding_attention":
                counts = (documents.numbers != 0).cumsum(1)
                sees = _same_document(
                    documents.numbers, None, counts, config.sliding_window - self.is_decoder
                )
            elif is_packed:
                sees = _same_document(documents.numbers)
            masks[kind] = make_mask(*options, and_mask_function=sees)
        return masks

    def _cross_attention(
        self,
        hidden_states: torch.Tensor,
        documents: Documents | None,
        flat: FlatTokens | None,
        encoder_hidden_states: torch.Tensor,
        encoder_attention_mask: torch.Tensor | None,
        encoder_position_ids: torch.Tensor | None,
        cache: EncoderDecoderCache | None,
    ) -> tuple[torch.Tensor, dict[str, Any]]:
        """The encoder's states in the form of the decoder's, and what tells its attention who sees
        whom."""
        source = positions = None
        shape, device = tuple(encoder_hidden_states.shape[:2]), encoder_hidden_states.device
        if encoder_attention_mask is not None and tuple(encoder_attention_mask.shape) != shape:
            raise ValueError(
                f"encoder_attention_mask has shape {tuple(encoder_attention_mask.shape)}, not {shape}."
            )
        if documents is not None or self.rotates_source or encoder_position_ids is not None:
            source = find_documents(shape, device, encoder_attention_mask, encoder_position_ids)
            positions = source.position_ids
        if source is not None and not is_tracing(hidden_states):
            count = len(hidden_states) if documents is None else documents.count
            if source.count != count:
                raise ValueError(
                    f"the decoder has {count} documents and its encoder {source.count}; each needs one."
                )
        if flat is not None:
            keys = source.flatten(flat.order)
            options = flat.attention_kwargs(
                keys, hidden_states.device, self.config._attn_implementation
            )
            encoder_hidden_states, positions = (
                keys.flatten(encoder_hidden_states),
                keys.position_ids,
            )
        else:
            is_new = isinstance(cache, EncoderDecoderCache) and not any(cache.is_updated.values())
            # `generate` gives it the decoder's windows
            if is_new and any(cache.cross_attention_cache.is_sliding):
                cache.cross_attention_cache = DynamicCache()
            sees = None
            if documents is not None and documents.is_packed and source.is_packed:
                sees = _same_document(documents.numbers, source.numbers)
            mask = create_bidirectional_mask(
                config=self.config,
                inputs_embeds=hidden_states,
                attention_mask=encoder_attention_mask,
                encoder_hidden_states=encoder_hidden_states,
                and_mask_function=sees,
            )
            options = {"attention_mask": mask}
        if self.rotates_source and self.rotary_emb is not None:
            tables = self._rotary_tables(encoder_hidden_states, positions)
            options["key_position_embeddings"] = tables[self.layer_types[0]]["position_embeddings"]
        return encoder_hidden_states, options

    def _rotary_tables(
        self, hidden_states: torch.Tensor, position_ids: torch.Tensor
    ) -> dict[str, dict[str, tuple[torch.Tensor, torch.Tensor]]]:
        """Cosines and sines of all positions as arguments of attention, by the type of layer."""
        if not is_tracing(position_ids) and not position_ids.numel():
            # RoPE scalings ask for the largest position
            position_ids = position_ids.new_zeros(1, 1)
        tables: dict[Any, Any] = {None: {}}
        by_type = (
            self.rotary_emb
            if isinstance(self.rotary_emb, nn.ModuleDict)
            else {None: self.rotary_emb}
        )
        for kind, rotary_emb in by_type.items() if self.rotary_emb is not None else ():
            cos, sin = rotary_emb(hidden_states, position_ids)
            tables[kind] = {"position_embeddings": (cos, sin)}
            # without the scaling of yarn and longrope, which sharpens scores
            if self.rotates_values:
                scaling = rotary_emb.attention_scaling
                tables[kind]["value_position_embeddings"] = (cos / scaling, sin / scaling)
        return {kind: tables.get(kind, tables[None]) for kind in self.layer_types}


def has_hooks(module: nn.Module | None) -> bool:
    """Whether somebody watches or changes the calls of a module: torch keeps hooks in dictionaries
    of the module."""
    return module is not None and any(
        held and name.endswith("hooks") for name, held in vars(module).items()
    )


def _same_document(
    documents: torch.Tensor,
    key_documents: torch.Tensor | None = None,
    counts: torch.Tensor | None = None,
    reach: int | None = None,
) -> Any:
    """A mask function of transformers: a query sees the keys of its document; with `reach`, those
    that are so near by `counts`, the number of real tokens up to each place."""
    keys = documents if key_documents is None else key_documents

    def sees(batch_idx: Any, head_idx: Any, q_idx: Any, kv_idx: Any) -> Any:
        same = documents[batch_idx, q_idx] == keys[batch_idx, kv_idx]
        if reach is None:
            return same
        distance = counts[batch_idx, q_idx] - counts[batch_idx, kv_idx]
        return same & (distance <= reach) & (distance >= -reach)

    return sees


def _check_mask(mask: torch.Tensor, shape: tuple[int, int], cache: Cache | None) -> None:
    """A padding mask has a column for each token, those in the cache included, and says which are
    real, no more."""
    fits = mask.ndim == 4 and (mask.is_floating_point() or mask.dtype == torch.bool)
    if mask.ndim == 2:
        past = 0 if cache is None else int(cache.get_seq_length())
        says_no_more = not mask.is_floating_point() or bool(((mask == 0) | (mask == 1)).all())
        fits = tuple(mask.shape) == (shape[0], past + shape[1]) and says_no_more
    if not fits:
        raise ValueError(
            f"attention_mask has shape {tuple(mask.shape)}; it must be (batch, length) = {shape}, longer by the "
            "tokens of a cache, of 1 and 0 for padding; or of four dimensions, floating point or boolean."
        )


@lru_cache(maxsize=1000)
def _meant(name: str) -> str | None:
    """The argument of `forward` that an unknown `name` looks like a misspelling of: a `**kwargs`
    takes any."""
    known = [
        *RoFormerLiteModel.forward.__wrapped__.__annotations__,
        "labels",
        "encoder_outputs",
        "decoder_input_ids",
    ]
    if name in known or name in TransformersKwargs.__annotations__:
        return None
    swapped = [other for other in known if sorted(other) == sorted(name)]
    return next(iter(swapped or difflib.get_close_matches(name, known, n=1, cutoff=0.92)), None)


__all__ = [
    "LAYERS",
    "RoFormerLiteModel",
    "RoFormerLitePreTrainedModel",
    "make_norm",
    "rotate",
    "sinusoidal_positions",
]
