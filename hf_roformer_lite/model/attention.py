"""Multi-head attention with rotary positions, to the tokens themselves or to an encoder's."""

from functools import partial

import torch
from torch import nn
from transformers.cache_utils import Cache, EncoderDecoderCache
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from .attention_plan import AttentionPlan, eager_attention_forward
from .configuration_roformer_lite import RoFormerLiteConfig
from .fast_linear import RoFormerLiteLinear
from .rope import rotate


class RoFormerLiteAttention(nn.Module):
    """Projections, rotation, cache and attention of one layer.

    With `num_key_value_heads` < `num_attention_heads` each key-value head serves a group of query heads. Only
    self-attention rotates; keys and values of cross-attention are projected once and then read from the cache.
    """

    def __init__(self, config: RoFormerLiteConfig, layer_idx: int, is_cross_attention: bool = False):
        super().__init__()
        self.config = config
        self.layer_idx = layer_idx
        self.head_dim = config.head_dim
        self.num_key_value_groups = config.num_attention_heads // config.num_key_value_heads
        self.scaling = config.head_dim**-0.5
        self.rotary_value = config.rotary_value
        self.attention_dropout = config.attention_dropout
        self.is_causal = config.is_decoder and not is_cross_attention
        self.is_cross_attention = is_cross_attention
        self.make_projections(config)

    def make_projections(self, config: RoFormerLiteConfig) -> None:
        """The projections. Another kind of heads overrides this, `prepare`, `queries` and `keys_and_values`."""
        key_value_size = (self.is_cross_attention and config.cross_attention_hidden_size) or config.hidden_size
        query_width = config.num_attention_heads * config.head_dim
        key_width = config.num_key_value_heads * config.head_dim
        has_bias = partial(config.has_bias, "attention_bias")
        self.q_proj = RoFormerLiteLinear(config.hidden_size, query_width, bias=has_bias("q"))
        self.k_proj = RoFormerLiteLinear(key_value_size, key_width, bias=has_bias("k"))
        self.v_proj = RoFormerLiteLinear(key_value_size, key_width, bias=has_bias("v"))
        self.o_proj = RoFormerLiteLinear(query_width, config.hidden_size, bias=has_bias("o"))

    def split_heads(self, states: torch.Tensor) -> torch.Tensor:
        heads = states.shape[-1] // self.head_dim
        return states.view(*states.shape[:-1], heads, self.head_dim)  # (..., heads, head_dim)

    def prepare(self, states: torch.Tensor) -> torch.Tensor:
        """The states from which queries, keys and values are projected."""
        return states

    def queries(self, states: torch.Tensor) -> torch.Tensor:
        """Prepared states to `(..., heads, head_dim)`."""
        return self.split_heads(self.q_proj(states))

    def keys_and_values(self, states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Prepared states to two of `(..., key_value_heads, head_dim)`."""
        return self.split_heads(self.k_proj(states)), self.split_heads(self.v_proj(states))

    def forward(
        self,
        hidden_states: torch.Tensor,
        key_value_states: torch.Tensor | None = None,
        plan: AttentionPlan | None = None,
        position_embeddings: tuple[torch.Tensor, torch.Tensor] | None = None,
        key_position_embeddings: tuple[torch.Tensor, torch.Tensor] | None = None,
        value_position_embeddings: tuple[torch.Tensor, torch.Tensor] | None = None,
        past_key_values: Cache | None = None,
        **kwargs,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Attend.

        Args:
            hidden_states: `(N, hidden)` or `(B, L, hidden)`; `...` below.
            key_value_states: Encoder states of cross-attention; None attends to `hidden_states`.
            plan: Which keys each query attends to.
            position_embeddings: Cosines and sines, each `(..., 1, rotary_dim)`; None does not rotate.
            key_position_embeddings: The same for the keys of cross-attention.
            value_position_embeddings: The same for values that are rotated, where theirs are others than those of
                queries and keys.
            past_key_values: Cache to extend and read; only with `(B, L, hidden)`.

        Returns:
            `(..., hidden)`, and the probabilities `(B, heads, Lq, Lk)` if the backend returns them.
        """
        states = self.prepare(hidden_states)
        query = self.queries(states)  # (..., heads, head_dim)
        if position_embeddings is not None:
            query = rotate(query, *position_embeddings)
        if self.is_cross_attention:
            key, value = self._cross_keys_and_values(key_value_states, past_key_values)
            if position_embeddings is not None:
                key = rotate(key, *key_position_embeddings)
        else:
            key, value = self.keys_and_values(states)  # each (..., key_value_heads, head_dim)
            if position_embeddings is not None:
                key = rotate(key, *position_embeddings)
                if self.rotary_value:
                    value = rotate(value, *(value_position_embeddings or position_embeddings))
            if past_key_values is not None:
                if isinstance(past_key_values, EncoderDecoderCache):
                    past_key_values = past_key_values.self_attention_cache
                cached = past_key_values.update(key.transpose(1, 2), value.transpose(1, 2), self.layer_idx)
                key, value = (states.transpose(1, 2) for states in cached)  # (B, past + L, heads, head_dim)
        function = ALL_ATTENTION_FUNCTIONS.get_interface(self.config._attn_implementation, eager_attention_forward)
        dropout = self.attention_dropout if self.training else 0.0
        output, weights = plan.attend(
            function, self, query, key, value, dropout=dropout, scaling=self.scaling, **kwargs
        )  # (..., heads * head_dim)
        return self.o_proj(output), weights

    def _cross_keys_and_values(
        self, key_value_states: torch.Tensor, past_key_values: Cache | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        is_shared_cache = isinstance(past_key_values, EncoderDecoderCache)
        if is_shared_cache and past_key_values.is_updated.get(self.layer_idx):
            layer = past_key_values.cross_attention_cache.layers[self.layer_idx]
            return layer.keys.transpose(1, 2), layer.values.transpose(1, 2)
        key, value = self.keys_and_values(self.prepare(key_value_states))
        if is_shared_cache:
            cache = past_key_values.cross_attention_cache
            cached = cache.update(key.transpose(1, 2), value.transpose(1, 2), self.layer_idx)
            past_key_values.is_updated[self.layer_idx] = True
            key, value = (states.transpose(1, 2) for states in cached)
        return key, value
