"""One stack of layers, as an encoder or as a causal decoder.

The classes are in the order in which a batch passes through them: positions, embeddings, attention,
feed-forward, layer, stack. All tensors of a batch are `(B, L, ...)`. The default attention
implementation, "padding_free", makes the layers compute only real tokens; with
`attn_implementation="sdpa"` this is an ordinary padded model.
"""

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from transformers.activations import ACT2FN
from transformers.cache_utils import Cache, DynamicCache, EncoderDecoderCache
from transformers.masking_utils import (
    create_bidirectional_mask,
    create_bidirectional_sliding_window_mask,
    create_causal_mask,
    create_sliding_window_causal_mask,
    packed_sequence_mask_function,
)
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import BaseModelOutputWithPoolingAndCrossAttentions
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS, dynamic_rope_update
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS, PreTrainedModel
from transformers.utils.generic import merge_with_config_defaults
from transformers.utils.import_utils import is_tracing
from transformers.utils.output_capturing import OutputRecorder, capture_outputs

from ..padding_free.attention import NAME as PADDING_FREE
from ..padding_free.batch import share_flat_row
from ..padding_free.layers import hook_layers
from ..padding_free.plan import plans_batch
from .compatibility import CACHE_NAME, accepts_past_key_values, update_cache
from .configuration_roformer_lite import RoFormerLiteConfig, filled
from .hub import RemoteCode
from .packing import (
    check_attention_mask,
    check_shape,
    count_positions,
    find_packed_documents,
    is_padding_mask,
    is_paged,
    last_documents,
    number_tokens,
    real_tokens,
    same_document,
    without_full_mask,
)
from .parallel import DistributedLoading
from .pooling import pool
from .serving import check_vllm

# BERT chooses 15 % of the tokens and masks 80 % of those. This is the share that stays unmasked.
KEPT_IN_TRAINING = 1 - 0.15 * 0.8

RotaryTables = tuple[torch.Tensor, torch.Tensor]


def make_norm(
    config: RoFormerLiteConfig, width: int | None = None, eps: float | None = None
) -> nn.Module:
    """The norm that `config` specifies, over the last dimension.

    Args:
        width: Default: `config.hidden_size`.
        eps: Default: `config.norm_eps`.
    """
    if width is None:
        width = config.hidden_size
    if eps is None:
        eps = config.norm_eps
    if config.norm_type == "rmsnorm":
        return nn.RMSNorm(width, eps=eps)
    return nn.LayerNorm(width, eps=eps, bias=config.norm_bias)


class RoFormerLiteRotaryEmbedding(nn.Module):
    """Cosines and sines of positions (Su et al. 2021, arXiv:2104.09864), for all layers at once.

    Pairs of channels of queries and keys are rotated by an angle that grows with the position, so
    that their product depends on the positions only through their distance. As in Llama, channel j
    is paired with channel j + rotary_dim / 2. Transformers recognises the class and its buffers by
    their names, and fills the buffers after loading; they are never saved.
    """

    def __init__(self, config: RoFormerLiteConfig):
        super().__init__()
        self.config = config
        self.rope_type: str = filled(config.rope_parameters)["rope_type"]
        self.max_seq_len_cached = config.max_position_embeddings
        self.original_max_seq_len = config.max_position_embeddings
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
        """The angle of each pair at position 1, theta^(-2j / rotary_dim), and a scaling of 1."""
        parameters = filled(config.rope_parameters)
        rotary_dim = int(filled(config.head_dim) * parameters.get("partial_rotary_factor", 1.0))
        exponents = torch.arange(0, rotary_dim, 2, dtype=dtype, device=device) / rotary_dim
        return parameters["rope_theta"] ** -exponents, 1.0

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> nn.Module:
        # Every conversion of a module calls this private method of torch. A conversion such as
        # `model.to(torch.bfloat16)` must move the frequencies but not round them.
        def move(tensor: torch.Tensor) -> torch.Tensor:
            if tensor.is_meta:
                return fn(tensor)
            return tensor.to(fn(tensor).device)

        return super()._apply(move, recurse)

    @torch.no_grad()
    @dynamic_rope_update
    def forward(self, hidden_states: torch.Tensor, position_ids: torch.Tensor) -> RotaryTables:
        """Tables `(B, L, 1, rotary_dim)` in the dtype of queries and keys.

        The first half of the sines is negated, so that `rotate` need not negate half of the states.
        """
        # Use at least float32, whatever the dtype of the model, because bfloat16 can't tell
        # neighbouring positions apart.
        exact = torch.promote_types(hidden_states.dtype, torch.float32)
        inv_freq = self.inv_freq.to(position_ids.device)
        if exact == torch.float64 and self.rope_type == "default":
            inv_freq, _ = self.compute_default_rope_parameters(
                self.config, device=position_ids.device, dtype=exact
            )
        signed = torch.cat((-inv_freq, inv_freq)).to(exact)
        angles = position_ids[..., None, None].to(exact) * signed
        cos = angles.cos() * self.attention_scaling
        sin = angles.sin() * self.attention_scaling
        # Under autocast, tables in float32 would turn the queries back into float32.
        device_type = hidden_states.device.type
        dtype = hidden_states.dtype
        if torch.is_autocast_enabled(device_type):
            dtype = torch.get_autocast_dtype(device_type)
        return cos.to(dtype), sin.to(dtype)


# The name of the table of positions if one table serves all layers.
ALL_LAYERS = "all_layers"


def make_rotary_embeddings(config: RoFormerLiteConfig) -> nn.ModuleDict:
    """The tables of positions by the type of layer, or one for all layers."""
    tables = nn.ModuleDict()
    for layer_type, parameters in config.rope_parameters_of_layers().items():
        own_config = copy.copy(config)
        own_config.rope_parameters = parameters
        tables[layer_type or ALL_LAYERS] = RoFormerLiteRotaryEmbedding(own_config)
    return tables


def rotate(states: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotate the first rotary_dim channels of `(..., heads, head_dim)` by tables
    `(..., 1, rotary_dim)`.

    Channels j and j + rotary_dim / 2, called x and y, become x cos - y sin and y cos + x sin. The
    table of sines already contains the minus sign.
    """
    rotary_dim = cos.shape[-1]
    if rotary_dim < states.shape[-1]:
        rotated = rotate(states[..., :rotary_dim], cos, sin)
        return torch.cat((rotated, states[..., rotary_dim:]), dim=-1)
    exchanged = states.roll(rotary_dim // 2, dims=-1)
    return exchanged.mul_(sin).addcmul_(states, cos)


def sinusoidal_positions(
    position_ids: torch.Tensor, width: int, dtype: torch.dtype
) -> torch.Tensor:
    """Vectors of Vaswani et al. 2017, section 3.5, `(*position_ids.shape, width)`.

    Channel 2i is the sine of p · 10000^(-2i / width), and channel 2i + 1 its cosine.
    """
    exact = torch.promote_types(dtype, torch.float32)
    exponents = torch.arange(0, width, 2, device=position_ids.device, dtype=exact) / width
    angles = position_ids[..., None].to(exact) * 10000.0**-exponents  # (..., width / 2)
    return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(-2).to(dtype)


class RoFormerLiteEmbeddings(nn.Module):
    """Token, segment and absolute position embeddings, with norm, dropout and projection."""

    def __init__(self, config: RoFormerLiteConfig):
        super().__init__()
        width = filled(config.embedding_size)
        self.scale = width**0.5 if config.scale_embeddings else 1.0
        self.position_type = config.position_embedding_type
        self.token_dropout_mask_id = config.token_dropout_mask_id
        self.word_embeddings: nn.Embedding | None = None
        if config.vocab_size:
            self.word_embeddings = nn.Embedding(
                config.vocab_size, width, padding_idx=config.pad_token_id
            )
        self.token_type_embeddings: nn.Embedding | None = None
        if config.type_vocab_size:
            self.token_type_embeddings = nn.Embedding(config.type_vocab_size, width)
        if self.position_type == "learned":
            self.position_embeddings = nn.Embedding(config.max_position_embeddings, width)
        self.norm: nn.Module | None = None
        if config.embedding_norm:
            self.norm = make_norm(config, width=width, eps=config.embedding_norm_eps)
        self.dropout = nn.Dropout(config.hidden_dropout_at("embeddings"))
        self.projection: nn.Linear | None = None
        if width != config.hidden_size:
            self.projection = nn.Linear(width, config.hidden_size)

    def forward(
        self,
        input_ids: torch.Tensor | None,
        position_ids: torch.Tensor,
        token_type_ids: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        attention_mask: Any = None,
        documents: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """`(B, L)` to `(B, L, hidden)`. Only token dropout reads `attention_mask` and `documents`,
        as `number_tokens` takes them."""
        if inputs_embeds is None:
            if self.word_embeddings is None:
                raise ValueError(
                    "vocab_size=0: this model takes vectors; pass inputs_embeds instead of "
                    "input_ids."
                )
            inputs_embeds = self.word_embeddings(input_ids)
        hidden_states = inputs_embeds
        if self.scale != 1.0:
            hidden_states = hidden_states * self.scale
        if self.token_dropout_mask_id is not None and input_ids is not None:
            is_kept = input_ids != self.token_dropout_mask_id
            numbers = number_tokens(input_ids, attention_mask, documents)
            factors = token_dropout_factors(is_kept, numbers, dtype=hidden_states.dtype)
            hidden_states = hidden_states * factors
        if self.token_type_embeddings is not None:
            if token_type_ids is None:
                token_type_ids = torch.zeros_like(position_ids)
            hidden_states = hidden_states + self.token_type_embeddings(token_type_ids)
        if self.position_type == "learned":
            hidden_states = hidden_states + self._learned_positions(position_ids)
        elif self.position_type == "sinusoidal":
            hidden_states = hidden_states + sinusoidal_positions(
                position_ids, width=hidden_states.shape[-1], dtype=hidden_states.dtype
            )
        if self.norm is not None:
            hidden_states = self.norm(hidden_states)
        hidden_states = self.dropout(hidden_states)
        if self.projection is not None:
            hidden_states = self.projection(hidden_states)
        return hidden_states

    def _learned_positions(self, position_ids: torch.Tensor) -> torch.Tensor:
        try:
            return self.position_embeddings(position_ids)
        except IndexError as error:  # On a CPU torch does not say in which table.
            rows = self.position_embeddings.num_embeddings
            raise ValueError(
                f"Texts are longer than max_position_embeddings={rows}; truncate them."
            ) from error


def token_dropout_factors(
    is_kept: torch.Tensor, documents: torch.Tensor, dtype: torch.dtype
) -> torch.Tensor:
    """Factors `(B, L, 1)`: 0 for mask tokens, and 0.88 divided by the share of the other tokens in
    the document for those (Lin et al. 2023, ESM-2).

    Args:
        is_kept: `(B, L)`, False for mask tokens.
        documents: `(B, L)`, the number of the document of each token from 1, and 0 for padding.
    """
    shape = is_kept.shape
    documents = documents.flatten()
    exact = torch.promote_types(dtype, torch.float32)  # Half precision cannot count.
    is_kept = is_kept.to(exact).flatten()
    zeros = is_kept.new_zeros(documents.shape[0] + 1)  # No batch has more documents than tokens.
    num_kept = zeros.index_add(0, documents, is_kept)
    num_tokens = zeros.index_add(0, documents, torch.ones_like(is_kept))
    shares = num_kept / num_tokens.clamp(min=1)
    factors = is_kept * KEPT_IN_TRAINING / shares[documents].clamp(min=1e-9)
    return factors.view(*shape, 1).to(dtype)


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
    """Attention step by step (Vaswani et al. 2017, section 3.2.1), the only attention function that
    returns its probabilities.

    Args:
        module: The attention layer. There is dropout if it is in training mode.
        query: `(B, heads, Lq, head_dim)`.
        key, value: `(B, key_value_heads, Lk, head_dim)`; each serves a group of query heads.
        attention_mask: `(B, 1 | heads, Lq, Lk)`, added to the scores, or booleans, True where a
            query attends to a key. None: every query attends to every key.

    Returns:
        The output `(B, Lq, heads, head_dim)` and the probabilities `(B, heads, Lq, Lk)`.
    """
    num_groups = query.shape[1] // key.shape[1]
    key = key.repeat_interleave(num_groups, dim=1)
    value = value.repeat_interleave(num_groups, dim=1)
    scores = query @ key.transpose(2, 3) * scaling  # (B, heads, Lq, Lk)
    if attention_mask is not None:
        if attention_mask.dtype == torch.bool:
            lowest = torch.finfo(scores.dtype).min
            attention_mask = torch.zeros_like(scores).masked_fill(~attention_mask, lowest)
        scores = scores + attention_mask
    exact = torch.promote_types(query.dtype, torch.float32)
    weights = F.softmax(scores, dim=-1, dtype=exact).to(query.dtype)
    if attention_mask is not None:
        # A query that attends to no key, as in a row of padding, gets zeros, as from sdpa.
        is_attended = attention_mask > torch.finfo(attention_mask.dtype).min
        weights = weights.masked_fill(~is_attended.any(-1, keepdim=True), 0.0)
    weights = F.dropout(weights, p=dropout, training=module.training)
    return (weights @ value).transpose(1, 2).contiguous(), weights


class RoFormerLiteAttention(nn.Module):
    """Self-attention, or cross-attention to an encoder's states, which are not rotated.

    With `num_key_value_heads` < `num_attention_heads` each key-value head serves a group of query
    heads (Ainslie et al. 2023, arXiv:2305.13245).
    """

    def __init__(
        self, config: RoFormerLiteConfig, layer_idx: int, is_cross_attention: bool = False
    ):
        super().__init__()
        self.config = config
        self.layer_idx = layer_idx
        self.head_dim = filled(config.head_dim)
        self.num_key_value_groups = config.num_attention_heads // filled(config.num_key_value_heads)
        self.scaling = self.head_dim**-0.5
        self.attention_dropout = config.attention_dropout
        self.is_cross_attention = is_cross_attention
        self.is_causal = config.is_decoder and not is_cross_attention
        self.sliding_window: int | None = None
        is_sliding = filled(config.layer_types)[layer_idx] == "sliding_attention"
        if is_sliding and not is_cross_attention:
            # Attention functions count the token itself as part of the window, on either side.
            self.sliding_window = filled(config.sliding_window) + (0 if self.is_causal else 1)
        self.make_projections(config)

    def make_projections(self, config: RoFormerLiteConfig) -> None:
        source_size = config.hidden_size
        if self.is_cross_attention and config.cross_attention_hidden_size:
            source_size = config.cross_attention_hidden_size
        query_size = config.num_attention_heads * self.head_dim
        key_size = filled(config.num_key_value_heads) * self.head_dim
        has_bias = partial(config.has_bias, "attention_bias")
        self.q_proj = nn.Linear(config.hidden_size, query_size, bias=has_bias("q"))
        self.k_proj = nn.Linear(source_size, key_size, bias=has_bias("k"))
        self.v_proj = nn.Linear(source_size, key_size, bias=has_bias("v"))
        self.o_proj = nn.Linear(query_size, config.hidden_size, bias=has_bias("o"))

    def make_query(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """`(B, L, hidden)` to `(B, L, heads, head_dim)`."""
        return self.split_heads(self.q_proj(hidden_states))

    def make_key_and_value(self, states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """`(B, L, width)` to `(B, L, key_value_heads, head_dim)` each."""
        return self.split_heads(self.k_proj(states)), self.split_heads(self.v_proj(states))

    def forward(
        self,
        hidden_states: torch.Tensor,
        key_value_states: torch.Tensor | None = None,
        position_embeddings: RotaryTables | None = None,
        key_position_embeddings: RotaryTables | None = None,
        value_position_embeddings: RotaryTables | None = None,
        attention_mask: torch.Tensor | None = None,
        cache: Cache | None = None,
        **kwargs: Any,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """`(B, L, hidden)` to the same, and the probabilities `(B, heads, Lq, Lk)`, or None from an
        attention function that does not return them.

        Args:
            key_value_states: Where keys and values come from, `(B, Ls, width)`: the encoder's
                states in cross-attention. Default: `hidden_states`.
            position_embeddings: Cosines and sines, `(B, L, 1, rotary_dim)` each, by which queries
                are rotated. Default: no rotation.
            key_position_embeddings: The same for keys. Default: `position_embeddings`.
            value_position_embeddings: The same for values, which are not rotated by default.
            attention_mask: A mask in the form that the attention function expects.
            cache: The key-value cache to extend and read.
            kwargs: Further arguments of the attention function.
        """
        query = self.make_query(hidden_states)
        if position_embeddings is not None:
            query = rotate(query, *position_embeddings)
        layers = cache
        cached: Any = None  # The layers of caches have no type in common.
        if isinstance(cache, EncoderDecoderCache):
            layers = cache.self_attention_cache
            if self.is_cross_attention:
                layers = cache.cross_attention_cache
                if cache.is_updated.get(self.layer_idx, False):
                    cached = layers.layers[self.layer_idx]
                cache.is_updated[self.layer_idx] = True

        if cached is not None:
            key = cached.keys
            value = cached.values
        else:
            source = hidden_states if key_value_states is None else key_value_states
            key, value = self.make_key_and_value(source)
            key_position_embeddings = key_position_embeddings or position_embeddings
            if key_position_embeddings is not None:
                key = rotate(key, *key_position_embeddings)
            if value_position_embeddings is not None:
                value = rotate(value, *value_position_embeddings)
            key = key.transpose(1, 2)  # (B, key_value_heads, L, head_dim)
            value = value.transpose(1, 2)
            if layers is not None:
                key, value = update_cache(layers, key, value, self.layer_idx, kwargs)

        attention_interface = ALL_ATTENTION_FUNCTIONS.get_interface(
            self.config._attn_implementation, eager_attention_forward
        )
        output, weights = attention_interface(
            self,
            query.transpose(1, 2),
            key,
            value,
            attention_mask,
            dropout=self.attention_dropout if self.training else 0.0,
            scaling=self.scaling,
            sliding_window=self.sliding_window,
            **kwargs,
        )
        # Servers return `(N, width)`.
        width = query.shape[2] * self.head_dim
        output = output.reshape(*query.shape[:2], width)
        return self.o_proj(output), weights

    def split_heads(self, states: torch.Tensor) -> torch.Tensor:
        # If the matrix is cut among processes, there are fewer heads here.
        return states.unflatten(-1, (-1, self.head_dim))


class RoFormerLiteMLP(nn.Module):
    """`down(act(up(x)))`, or gated `down(act(gate(x)) * up(x))` (Shazeer 2020,
    arXiv:2002.05202)."""

    def __init__(self, config: RoFormerLiteConfig):
        super().__init__()
        hidden_size = config.hidden_size
        intermediate_size = config.intermediate_size
        has_bias = partial(config.has_bias, "mlp_bias")
        self.gate_proj: nn.Linear | None = None
        if config.gated_mlp:
            self.gate_proj = nn.Linear(hidden_size, intermediate_size, bias=has_bias("gate"))
        self.up_proj = nn.Linear(hidden_size, intermediate_size, bias=has_bias("up"))
        self.down_proj = nn.Linear(intermediate_size, hidden_size, bias=has_bias("down"))
        self.act_fn = ACT2FN[config.hidden_act]
        self.dropout = config.mlp_dropout

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """`(B, L, hidden)` to the same."""
        inner = self.up_proj(hidden_states)  # (B, L, intermediate)
        if self.gate_proj is None:
            inner = self.act_fn(inner)
        else:
            inner = self.act_fn(self.gate_proj(hidden_states)) * inner
        if self.training:
            inner = F.dropout(inner, p=self.dropout)
        return self.down_proj(inner)


class RoFormerLiteLayer(GradientCheckpointingLayer):
    """Self-attention, cross-attention if the config has it, and a feed-forward; each in a residual
    branch.

    `norm_placement="pre"`: x + dropout(branch(norm(x))); `"post"`: norm(x + dropout(branch(x))).
    """

    def __init__(self, config: RoFormerLiteConfig, layer_idx: int):
        super().__init__()
        self.norm_placement = config.norm_placement
        self.self_attn_norm: nn.Module | None = None
        if layer_idx > 0 or config.first_attention_norm:
            self.self_attn_norm = make_norm(config)
        self.self_attn = RoFormerLiteAttention(config, layer_idx)
        if config.add_cross_attention:
            self.cross_attn_norm = make_norm(config)
            self.cross_attn = RoFormerLiteAttention(config, layer_idx, is_cross_attention=True)
        self.mlp_norm = make_norm(config)
        self.mlp = RoFormerLiteMLP(config)
        self.attention_branch_dropout = config.hidden_dropout_at("attention")
        self.mlp_branch_dropout = config.hidden_dropout_at("mlp")

    def forward(
        self,
        hidden_states: torch.Tensor,
        encoder_hidden_states: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        encoder_attention_mask: torch.Tensor | None = None,
        position_embeddings: RotaryTables | None = None,
        value_position_embeddings: RotaryTables | None = None,
        cache: Cache | None = None,
        **kwargs: Any,
    ) -> torch.Tensor:
        """`(B, L, hidden)` to the same.

        Tensors that need gradients come first, so that they can be given by position, as reentrant
        checkpointing requires.
        """
        branch, _ = self.self_attn(
            self.normalise(self.self_attn_norm, hidden_states, "pre"),
            attention_mask=attention_mask,
            position_embeddings=position_embeddings,
            value_position_embeddings=value_position_embeddings,
            cache=cache,
            **kwargs,
        )
        hidden_states = self.add_branch(
            hidden_states, branch, dropout=self.attention_branch_dropout, norm=self.self_attn_norm
        )

        if encoder_hidden_states is not None:
            branch, _ = self.cross_attn(
                self.normalise(self.cross_attn_norm, hidden_states, "pre"),
                key_value_states=encoder_hidden_states,
                attention_mask=encoder_attention_mask,
                cache=cache,
                **kwargs,
            )
            hidden_states = self.add_branch(
                hidden_states,
                branch,
                dropout=self.attention_branch_dropout,
                norm=self.cross_attn_norm,
            )

        branch = self.mlp(self.normalise(self.mlp_norm, hidden_states, "pre"))
        return self.add_branch(
            hidden_states, branch, dropout=self.mlp_branch_dropout, norm=self.mlp_norm
        )

    def add_branch(
        self,
        hidden_states: torch.Tensor,
        branch: torch.Tensor,
        dropout: float,
        norm: nn.Module | None,
    ) -> torch.Tensor:
        """Add a residual branch, and apply `norm` if it comes after the branch."""
        if self.training:
            branch = F.dropout(branch, p=dropout)
        return self.normalise(norm, hidden_states + branch, "post")

    def normalise(
        self, norm: nn.Module | None, hidden_states: torch.Tensor, placement: str
    ) -> torch.Tensor:
        """Apply a norm if the norms of this layer have this `placement`, `pre` or `post`."""
        if norm is None or placement != self.norm_placement:
            return hidden_states
        return norm(hidden_states)


# The class of the layers by `layer_style`. `reference_layers.py`, which few models need, adds its
# own.
LAYERS: dict[str, type[nn.Module]] = {"standard": RoFormerLiteLayer}


class RoFormerLitePooler(nn.Module):
    """BERT's pooler (Devlin et al. 2018): dense and tanh over the first token of each sequence."""

    def __init__(self, config: RoFormerLiteConfig):
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)

    def forward(
        self, hidden_states: torch.Tensor, attention_mask: Any, documents: torch.Tensor | None
    ) -> torch.Tensor | None:
        """`(B, L, hidden)` to `(B, hidden)`, or None if sequences hold several documents."""
        if documents is not None and not is_tracing(hidden_states):
            return None
        return self.dense(pool(hidden_states, "cls", attention_mask)).tanh()


class RoFormerLitePreTrainedModel(RemoteCode, DistributedLoading, PreTrainedModel):
    """The base of all models of the package: initialisation, loading, and supported features."""

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

    def get_correct_attn_implementation(
        self, requested_attention: str | None, is_init_check: bool = False
    ) -> str:
        """As in every stock model, except that the default is "padding_free"."""
        requested_attention = requested_attention or PADDING_FREE
        return super().get_correct_attn_implementation(requested_attention, is_init_check)

    def post_init(self) -> None:
        """As in every stock model. The layers also get the hooks of padding-free
        computing."""
        hook_layers(self)
        super().post_init()

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        # The layers of reference systems have parameters that transformers does not know.
        initialize: Callable[[float], None] | None
        initialize = getattr(module, "initialize_own_weights", None)
        if initialize is not None:
            initialize(self.config.initializer_range)


class RoFormerLiteModel(RoFormerLitePreTrainedModel):
    """The bare stack.

    With `config.is_decoder` it is causal and keeps a cache. With `config.add_cross_attention` its
    layers attend to `encoder_hidden_states` as well.
    """

    def __init__(self, config: RoFormerLiteConfig, add_pooling_layer: bool | None = None):
        if config._attn_implementation == "vllm":
            check_vllm(config)
        super().__init__(config)
        self.embeddings = RoFormerLiteEmbeddings(config)
        layer_class = LAYERS[config.layer_style]
        self.layers = nn.ModuleList(
            [layer_class(config, layer_idx) for layer_idx in range(config.num_hidden_layers)]
        )
        self.final_norm = make_norm(config) if config.final_norm else None
        self.rotary_emb = nn.ModuleDict()
        if config.position_embedding_type == "rope":
            self.rotary_emb = make_rotary_embeddings(config)
        if add_pooling_layer is None:
            add_pooling_layer = config.add_pooling_layer
        self.pooler = RoFormerLitePooler(config) if add_pooling_layer else None
        # Read once, as reading a field of a configuration takes microseconds.
        self.layer_types: list[str] = list(filled(config.layer_types))
        self.is_decoder: bool = config.is_decoder
        self.rotates_encoder: bool = (
            config.add_cross_attention and config.layer_style == "parallel_heads"
        )
        self.takes_packed_documents = True  # False in models whose heads pool all tokens.
        self.gradient_checkpointing = False
        self.post_init()

    @accepts_past_key_values
    @merge_with_config_defaults
    @capture_outputs
    @plans_batch
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | dict[str, torch.Tensor] | None = None,
        token_type_ids: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        encoder_hidden_states: torch.Tensor | None = None,
        encoder_attention_mask: torch.Tensor | None = None,
        cache: Cache | None = None,
        use_cache: bool | None = None,
        encoder_position_ids: torch.Tensor | None = None,
        **kwargs: Any,
    ) -> BaseModelOutputWithPoolingAndCrossAttentions:
        """Run the stack.

        Args:
            input_ids: Token ids, `(B, L)`; or pass `inputs_embeds`, `(B, L, embedding_size)`.
            attention_mask: `(B, L)`, nonzero for real tokens; `(B, past + L)` with a cache. A mask
                of four dimensions, or a dict of such masks by type of layer, goes to the attention
                function as it is.
            token_type_ids: Segments, `(B, L)`; only with `type_vocab_size`.
            position_ids: `(B, L)`. Default: counted over the real tokens of each row. Positions
                that restart begin packed documents, which do not attend to each other.
            encoder_hidden_states: `(B, Ls, cross_attention_hidden_size)`, for cross-attention.
            encoder_attention_mask, encoder_position_ids: `(B, Ls)`, of these states.
            cache: The cache of a decoder, also by the name `past_key_values`. Without one,
                `use_cache` (default: `config.use_cache`) makes a new one, except in training and
                for packed documents.
            kwargs: `output_hidden_states`; `output_attentions`; and further arguments of the
                attention function, such as `cu_seq_lens_q` for flash attention.

        Returns:
            `last_hidden_state` `(B, L, hidden)`, zeros at padding; `pooler_output` `(B, hidden)`
            with `add_pooling_layer`, except for packed documents; the cache; on request
            `hidden_states`, `attentions`, `cross_attentions`.

        Raises:
            ValueError: if inputs do not fit together.
        """
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("Pass exactly one of input_ids and inputs_embeds.")
        given = filled(input_ids if inputs_embeds is None else inputs_embeds)
        self.check_inputs(given, attention_mask, token_type_ids, encoder_hidden_states, cache)
        attention_mask = without_full_mask(attention_mask, cache)
        documents = find_packed_documents(
            given,
            attention_mask=attention_mask,
            position_ids=position_ids,
            cache=cache,
        )
        self.check_is_causal(kwargs, cache)
        self.check_borders(kwargs, given, attention_mask, position_ids, documents, cache)
        self.check_documents(documents, cache)
        if position_ids is None:
            position_ids = count_positions(given, attention_mask, cache)
        position_ids = position_ids.view(-1, given.shape[1])  # (L,) to (1, L)
        hidden_states = self.embeddings(
            input_ids=input_ids,
            position_ids=position_ids,
            token_type_ids=token_type_ids,
            inputs_embeds=inputs_embeds,
            attention_mask=attention_mask,
            documents=documents,
        )  # (B, L, hidden)

        makes_cache = use_cache and self.is_decoder and not self.training and documents is None
        if makes_cache and cache is None:
            cache = DynamicCache(config=self.config)
        if encoder_hidden_states is not None:
            cache = with_cross_attention(cache)
        masks = self.create_masks(hidden_states, attention_mask, documents, cache)
        encoder_mask = self.create_encoder_mask(
            hidden_states,
            encoder_hidden_states,
            encoder_attention_mask,
            encoder_position_ids,
            documents,
        )
        if self.rotates_encoder and encoder_position_ids is None:
            encoder_position_ids = count_positions(
                filled(encoder_hidden_states), encoder_attention_mask
            )
        tables = self.rotary_tables(hidden_states, position_ids, encoder_position_ids)

        for layer_type, layer in zip(self.layer_types, self.layers, strict=False):
            hidden_states = layer(
                hidden_states,
                encoder_hidden_states,
                attention_mask=masks[layer_type],
                encoder_attention_mask=encoder_mask,
                cache=cache,
                **tables[layer_type],
                **kwargs,
            )
        if self.final_norm is not None:
            hidden_states = self.final_norm(hidden_states)
        hidden_states = without_padding(hidden_states, attention_mask)
        pooled = None
        if self.pooler is not None:
            pooled = self.pooler(hidden_states, attention_mask, documents)
        named_cache: dict[str, Any] = {CACHE_NAME: cache}
        return BaseModelOutputWithPoolingAndCrossAttentions(
            last_hidden_state=hidden_states, pooler_output=pooled, **named_cache
        )

    def check_inputs(
        self,
        given: torch.Tensor,
        attention_mask: Any,
        token_type_ids: torch.Tensor | None,
        encoder_hidden_states: torch.Tensor | None,
        cache: Any,
    ) -> None:
        """Reject inputs from which torch would silently compute something else."""
        has_cross_attention = self.config.add_cross_attention
        if (encoder_hidden_states is not None) != has_cross_attention:
            verb = "needs" if has_cross_attention else "does not attend to"
            raise ValueError(
                f"add_cross_attention={has_cross_attention}: the model {verb} "
                "encoder_hidden_states."
            )
        if is_tracing(given):
            return
        has_segments = self.config.type_vocab_size > 0
        if token_type_ids is not None and not has_segments and bool(token_type_ids.any()):
            raise ValueError(
                "token_type_ids: this model has no segments (type_vocab_size=0); leave them out."
            )
        if isinstance(attention_mask, torch.Tensor):
            check_attention_mask(attention_mask, given, cache)

    def check_is_causal(self, kwargs: dict[str, Any], cache: Any) -> None:
        """Reject an `is_causal` that would have no effect."""
        is_causal = kwargs.pop("is_causal", None)
        if is_causal not in (None, self.is_decoder) and not is_paged(cache):
            raise ValueError(
                f"is_causal={is_causal} contradicts is_decoder={self.is_decoder} of this model; "
                "leave is_causal out."
            )

    def check_borders(
        self,
        kwargs: dict[str, Any],
        given: torch.Tensor,
        attention_mask: Any,
        position_ids: torch.Tensor | None,
        documents: torch.Tensor | None,
        cache: Any,
    ) -> None:
        """Reject borders of documents that positions do not mark, and the reverse for flash
        attention."""
        borders: Any = kwargs.get("cu_seq_lens_q")
        has_borders = borders is not None
        is_marked = position_ids is not None and not is_padding_mask(attention_mask)
        if has_borders and documents is None and not is_paged(cache):
            # Without restarts, each row is one document.
            is_marked = is_marked and len(borders) == len(given) + 1
        if (has_borders or kwargs.get("seq_idx") is not None) and not is_marked:
            raise ValueError(
                "cu_seq_lens_q and seq_idx do not suffice to separate documents; pass position_ids "
                "that restart with each document, and no attention_mask."
            )
        takes_borders = "flash" in self.config._attn_implementation
        if documents is not None and takes_borders and not has_borders:
            raise ValueError(
                f"attn_implementation={self.config._attn_implementation!r} takes no mask that "
                "separates documents: pass cu_seq_lens_q, cu_seq_lens_k, max_length_q and "
                "max_length_k as well."
            )

    def check_documents(self, documents: torch.Tensor | None, cache: Any) -> None:
        """Reject packed documents beside a head that pools tokens, and beside a cache."""
        if documents is None:
            return
        if not is_tracing(documents) and not self.takes_packed_documents:
            raise ValueError(
                "a model that pools tokens takes no packed documents: pass each document as a "
                "sequence of its own, whose padding costs nothing."
            )
        if isinstance(cache, Cache):
            raise ValueError(
                "a cache cannot hold packed documents: leave it out, or pass position_ids that "
                "increase along each sequence."
            )

    def create_masks(
        self,
        hidden_states: torch.Tensor,
        attention_mask: torch.Tensor | dict[str, torch.Tensor] | None,
        documents: torch.Tensor | None,
        cache: Any,
    ) -> dict[str, Any]:
        """The masks for the attention functions, by type of layer."""
        if isinstance(attention_mask, dict):
            return attention_mask
        if is_paged(cache):  # The server decides which tokens attend to each other.
            return dict.fromkeys(self.layer_types, attention_mask)
        if isinstance(cache, EncoderDecoderCache):
            cache = cache.self_attention_cache
        create = {
            "full_attention": create_bidirectional_mask,
            "sliding_attention": create_bidirectional_sliding_window_mask,
        }
        if self.is_decoder:
            create = {
                "full_attention": create_causal_mask,
                "sliding_attention": create_sliding_window_causal_mask,
            }
        is_same_document = None
        if documents is not None:
            is_same_document = packed_sequence_mask_function(documents)
        arguments = {
            "config": self.config,
            "inputs_embeds": hidden_states,
            "attention_mask": attention_mask,
            "and_mask_function": is_same_document,
            CACHE_NAME: cache,
        }
        return {kind: create[kind](**arguments) for kind in dict.fromkeys(self.layer_types)}

    def create_encoder_mask(
        self,
        hidden_states: torch.Tensor,
        encoder_hidden_states: torch.Tensor | None,
        encoder_attention_mask: torch.Tensor | None,
        encoder_position_ids: torch.Tensor | None,
        documents: torch.Tensor | None,
    ) -> Any:
        """The mask for the attention function in cross-attention."""
        if encoder_hidden_states is None:
            return None
        if encoder_attention_mask is not None:
            shape = encoder_hidden_states.shape[:2]
            check_shape("encoder_attention_mask", encoder_attention_mask, shape)
        encoder_documents = find_packed_documents(
            encoder_hidden_states,
            attention_mask=encoder_attention_mask,
            position_ids=encoder_position_ids,
        )
        is_packed = documents is not None or encoder_documents is not None
        if is_packed and not is_tracing(hidden_states):
            targets = last_documents(hidden_states, documents)
            sources = last_documents(encoder_hidden_states, encoder_documents)
            if targets != sources:
                raise ValueError(
                    f"the last documents of the sequences have the numbers {targets} in the "
                    f"decoder and {sources} in the encoder; each sequence needs the same number of "
                    "documents on both sides."
                )
        is_same_document = None
        if documents is not None and encoder_documents is not None:
            is_same_document = same_document(documents, encoder_documents)
        return create_bidirectional_mask(
            config=self.config,
            inputs_embeds=hidden_states,
            attention_mask=encoder_attention_mask,
            encoder_hidden_states=encoder_hidden_states,
            and_mask_function=is_same_document,
        )

    def rotary_tables(
        self,
        hidden_states: torch.Tensor,
        position_ids: torch.Tensor,
        encoder_position_ids: torch.Tensor | None,
    ) -> dict[str, dict[str, RotaryTables]]:
        """Cosines and sines as arguments of a layer, by the type of layer."""
        tables: dict[str, dict[str, RotaryTables]] = {kind: {} for kind in self.layer_types}
        for name, rotary_emb in self.rotary_emb.items():
            cos, sin = rotary_emb(hidden_states, position_ids)
            arguments = {"position_embeddings": (cos, sin)}
            if self.rotates_encoder:
                arguments["encoder_position_embeddings"] = rotary_emb(
                    hidden_states, encoder_position_ids
                )
            if self.config.rotary_value:
                # Values are rotated without the scaling of yarn and longrope, which sharpens
                # scores.
                scaling = rotary_emb.attention_scaling
                arguments["value_position_embeddings"] = (cos / scaling, sin / scaling)
            for kind in self.layer_types:
                if name in (kind, ALL_LAYERS):
                    tables[kind] = arguments
        return tables


def with_cross_attention(cache: Any) -> Any:
    """A cache for both attentions of a layer.

    In the cache that `generate` makes, cross-attention has the windows of the decoder, too. If that
    part is still empty, it is replaced by one without windows.
    """
    if not isinstance(cache, Cache):
        return cache
    if not isinstance(cache, EncoderDecoderCache):
        return EncoderDecoderCache(cache, DynamicCache())
    is_empty = not any(cache.is_updated.values())
    if is_empty and any(cache.cross_attention_cache.is_sliding):
        cache.cross_attention_cache = DynamicCache()
    return cache


def without_padding(hidden_states: torch.Tensor, attention_mask: Any) -> torch.Tensor:
    """The states `(B, L, hidden)` with zeros at padding, where the output of the layers has no
    meaning. The single token of a generation step is always real."""
    length = hidden_states.shape[1]
    if not is_padding_mask(attention_mask) or (length == 1 and attention_mask.shape[1] > 1):
        return hidden_states
    is_real = real_tokens(attention_mask, hidden_states)
    if not is_tracing(hidden_states) and bool(is_real.all()):
        return hidden_states
    without = hidden_states.masked_fill(~is_real[..., None], 0.0)
    share_flat_row(hidden_states, without)
    return without
