"""The layers of two reference systems: `layer_style="parallel_heads"` (DeepLoTX) and
`layer_style="walkthrough"`.

Only bundles of models with these layers have this file; their `auto_map` names all classes in it.

Fields of `parallel_heads`, besides those of every stack; `hidden_act` is ignored, as PReLU is used
    throughout: num_mlp_layers (`int`, defaults to 1): Feed-forward units of a layer, one after the
        other.
    qkv_mlp_layers (`int`, defaults to 1): Units before each of its queries, keys and values.
    qkv_intermediate_size (`int`, *optional*): Their inner width. Default: `intermediate_size // 2`,
        the same expansion, as the layer's own feed-forward is twice as wide.
    qkv_dropout (`float`, *optional*): Dropout inside them. Default: `hidden_dropout`.
The walkthrough ignores `intermediate_size`; both ignore `chunk_size_feed_forward`.
"""

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from transformers import initialization as init
from transformers.activations import ACT2FN
from transformers.cache_utils import Cache
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.utils.import_utils import is_tracing

from .compatibility import update_cache
from .configuration_roformer_lite import RoFormerLiteConfig, filled
from .heads_roformer_lite import *  # noqa: F401, F403, all classes of a bundle
from .modeling_roformer_lite import (
    LAYERS,
    RoFormerLiteAttention,
    RotaryTables,
    eager_attention_forward,
    make_norm,
    rotate,
)
from .modeling_roformer_lite_seq2seq import *  # noqa: F401, F403, all classes of a bundle of a pair

SLOPE = 5e-3  # of negative inputs, at the start


def check_layer_style(config: RoFormerLiteConfig) -> None:
    """Refuse options that these layers do not have.

    Raises:
        ValueError: naming the field, its value and what would be right.
    """
    fixed: dict[str, Any] = {
        "norm_type": "layernorm",
        "gated_mlp": False,
        "rotary_value": False,
        "mlp_dropout": 0.0,
    }
    fixed |= {"first_attention_norm": True, "hidden_dropout_places": None}
    if config.layer_style == "parallel_heads":
        fixed |= {
            "norm_placement": "pre",
            "head_dim": config.hidden_size,
            "attention_bias": True,
            "norm_bias": True,
        }
        fixed |= {
            "num_key_value_heads": config.num_attention_heads,
            "cross_attention_hidden_size": None,
        }
        # its queries meet the encoder's states in place of their own
        if config.add_cross_attention:
            fixed |= {"use_cache": False}
    else:
        fixed |= {"norm_placement": "post", "add_cross_attention": False}
        config.require(
            isinstance(config.attention_bias, bool),
            "attention_bias",
            "True or False in these layers",
        )
    config.require(isinstance(config.mlp_bias, bool), "mlp_bias", "True or False in these layers")
    for field, value in fixed.items():
        config.require(
            getattr(config, field) == value,
            field,
            f"{value!r} with layer_style={config.layer_style!r}",
        )


class RoFormerLiteStackedLinear(nn.Module):
    """`stack` linear maps side by side, `(stack, N, in)` to `(stack, N, out)`."""

    def __init__(self, stack: int, in_features: int, out_features: int, bias: bool):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(stack, out_features, in_features))
        self.bias = nn.Parameter(torch.empty(stack, out_features)) if bias else None

    def initialize_own_weights(self, std: float) -> None:
        init.normal_(self.weight, mean=0.0, std=std)
        if self.bias is not None:
            init.zeros_(self.bias)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        weight = self.weight.transpose(1, 2)
        if self.bias is None:
            return torch.bmm(states, weight)
        return torch.baddbmm(self.bias.unsqueeze(1), states, weight)


class RoFormerLiteStackedUnit(nn.Module):
    """`stack` residual feed-forwards side by side: `x + down(dropout(prelu(up(norm(x)))))`,
    `(stack, N, width)`."""

    def __init__(
        self, config: RoFormerLiteConfig, stack: int, width: int, inner: int, dropout: float
    ):
        super().__init__()
        self.norm_eps = config.norm_eps
        self.norm_weight = nn.Parameter(torch.empty(stack, width))
        self.norm_bias = nn.Parameter(torch.empty(stack, width))
        self.up_proj = RoFormerLiteStackedLinear(
            stack, width, inner, config.has_bias("mlp_bias", "up")
        )
        self.slope = nn.Parameter(torch.empty(stack))
        self.dropout = nn.Dropout(dropout)
        self.down_proj = RoFormerLiteStackedLinear(
            stack, inner, width, config.has_bias("mlp_bias", "down")
        )

    def initialize_own_weights(self, std: float) -> None:
        init.ones_(self.norm_weight)
        init.zeros_(self.norm_bias)
        init.constant_(self.slope, SLOPE)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        if states.device.type == "cpu" and not is_tracing(states):
            return self._one_by_one(states)
        normed = F.layer_norm(states, states.shape[-1:], eps=self.norm_eps)
        normed = torch.addcmul(self.norm_bias.unsqueeze(1), normed, self.norm_weight.unsqueeze(1))
        # (stack, N, inner)
        inner = F.prelu(self.up_proj(normed).unsqueeze(0), self.slope).squeeze(0)
        return states + self.down_proj(self.dropout(inner))

    def _one_by_one(self, states: torch.Tensor) -> torch.Tensor:
        """The same, one member of the stack after the other: the inner states of one fit into a
        CPU's cache."""
        maps = [
            zip(part.weight, [None] * len(states) if part.bias is None else part.bias, strict=True)
            for part in (self.up_proj, self.down_proj)
        ]
        parts = zip(
            states, self.norm_weight, self.norm_bias, self.slope.split(1), *maps, strict=True
        )
        outputs = []
        for member, weight, bias, slope, up, down in parts:
            normed = F.layer_norm(member, member.shape[-1:], weight, bias, self.norm_eps)
            inner = F.prelu(F.linear(normed, *up), slope)  # (N, inner)
            outputs.append(member + F.linear(self.dropout(inner), *down))
        return torch.stack(outputs)


class RoFormerLitePReLU(nn.PReLU):
    """With the slope of the reference system at the start, also where a checkpoint lacks it."""

    def __init__(self) -> None:
        super().__init__(init=SLOPE)

    def initialize_own_weights(self, std: float) -> None:
        init.constant_(self.weight, SLOPE)


class RoFormerLiteUnit(nn.Module):
    """One residual feed-forward `x + down(dropout(prelu(up(norm(x)))))`, `(..., width)`."""

    def __init__(self, config: RoFormerLiteConfig, width: int):
        super().__init__()
        self.norm = make_norm(config, width)
        self.up_proj = nn.Linear(
            width, config.intermediate_size, bias=config.has_bias("mlp_bias", "up")
        )
        self.act_fn = RoFormerLitePReLU()
        self.dropout = nn.Dropout(config.hidden_dropout)
        self.down_proj = nn.Linear(
            config.intermediate_size, width, bias=config.has_bias("mlp_bias", "down")
        )

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        inner = self.act_fn(self.up_proj(self.norm(hidden_states)))  # (..., intermediate)
        return hidden_states + self.down_proj(self.dropout(inner))


class RoFormerLiteParallelHeadsAttention(RoFormerLiteAttention):
    """Attention whose heads have the full `hidden_size`.

    A linear map gives each head its own version of a token, from which feed-forward units of that
    head compute query, key and value. (It was published as one small network after the other; here
    all heads are slices of stacked weights and go through one batched product.)
    """

    def make_projections(self, config: RoFormerLiteConfig) -> None:
        num_heads = config.num_attention_heads
        hidden_size = config.hidden_size
        self.expand_proj = nn.Linear(hidden_size, num_heads * hidden_size)
        self.q_mlp = make_stacked_units(config, stack=num_heads)
        self.kv_mlp = make_stacked_units(config, stack=2 * num_heads)
        self.o_proj = nn.Linear(num_heads * hidden_size, hidden_size)

    # These layers rotate no values, and the tables of keys stand in the place of theirs.
    def forward(  # type: ignore[override]
        self,
        hidden_states: torch.Tensor,
        key_value_states: torch.Tensor | None = None,
        position_embeddings: RotaryTables | None = None,
        key_position_embeddings: RotaryTables | None = None,
        attention_mask: torch.Tensor | None = None,
        cache: Cache | None = None,
        **kwargs: Any,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """As `RoFormerLiteAttention.forward`; keys of cross-attention are rotated by tables of
        their own."""
        expanded = self.split_heads(self.expand_proj(hidden_states))  # (B, L, heads, hidden)
        source = expanded
        if self.is_cross_attention:
            source = self.split_heads(self.expand_proj(key_value_states))
        else:
            key_position_embeddings = position_embeddings
        query = apply_by_head(self.q_mlp, expanded)
        keys_and_values = apply_by_head(self.kv_mlp, torch.cat((source, source), dim=-2))
        key, value = keys_and_values.chunk(2, dim=-2)
        if position_embeddings is not None:
            query = rotate(query, *position_embeddings)
        if key_position_embeddings is not None:
            key = rotate(key, *key_position_embeddings)
        key = key.transpose(1, 2)
        value = value.transpose(1, 2)
        if cache is not None:
            key, value = update_cache(cache, key, value, self.layer_idx, kwargs)
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
        output = output.reshape(*hidden_states.shape[:-1], query.shape[2] * self.head_dim)
        return self.o_proj(output), weights


def make_stacked_units(config: RoFormerLiteConfig, stack: int) -> nn.Sequential:
    """The feed-forward units before the queries, or the keys and values, of `stack` heads."""
    dropout = config.hidden_dropout if config.qkv_dropout is None else config.qkv_dropout
    units = [
        RoFormerLiteStackedUnit(
            config,
            stack=stack,
            width=config.hidden_size,
            inner=filled(config.qkv_intermediate_size),
            dropout=dropout,
        )
        for _ in range(config.qkv_mlp_layers)
    ]
    return nn.Sequential(*units)


def apply_by_head(module: nn.Module, states: torch.Tensor) -> torch.Tensor:
    """Apply a module of `(stack, N, width)` to `(..., stack, width)`."""
    stacked = states.flatten(0, -3).transpose(0, 1).contiguous()  # (stack, N, width)
    return module(stacked).transpose(0, 1).reshape(states.shape)


class RoFormerLiteParallelHeadsLayer(GradientCheckpointingLayer):
    """`out(units([attention(norm(x)), x]))`: the output of attention is put next to the input, at
    twice the width, and there is no residual around the layer.

    With `add_cross_attention` queries attend to the encoder's states, not to their own.
    """

    def __init__(self, config: RoFormerLiteConfig, layer_idx: int):
        super().__init__()
        check_layer_style(config)
        self.self_attn_norm = make_norm(config)
        self.self_attn = RoFormerLiteParallelHeadsAttention(
            config, layer_idx, is_cross_attention=config.add_cross_attention
        )
        width = 2 * config.hidden_size
        units = [RoFormerLiteUnit(config, width) for _ in range(config.num_mlp_layers)]
        self.mlp = nn.Sequential(*units)
        self.out_proj = nn.Linear(width, config.hidden_size)

    def forward(
        self,
        hidden_states: torch.Tensor,
        encoder_hidden_states: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        encoder_attention_mask: torch.Tensor | None = None,
        position_embeddings: RotaryTables | None = None,
        value_position_embeddings: RotaryTables | None = None,
        encoder_position_embeddings: RotaryTables | None = None,
        cache: Cache | None = None,
        **kwargs: Any,
    ) -> torch.Tensor:
        """As `RoFormerLiteLayer.forward`."""
        if self.self_attn.is_cross_attention:
            attention_mask = encoder_attention_mask
        attended, _ = self.self_attn(
            self.self_attn_norm(hidden_states),
            key_value_states=encoder_hidden_states,
            attention_mask=attention_mask,
            position_embeddings=position_embeddings,
            key_position_embeddings=encoder_position_embeddings,
            cache=cache,
            **kwargs,
        )
        return self.out_proj(self.mlp(torch.cat((attended, hidden_states), dim=-1)))


class RoFormerLiteWalkthroughLayer(GradientCheckpointingLayer):
    """A post-norm layer whose feed-forward is one linear map and an activation, with a norm of its
    own after it.

    total = x + attention(x); out = norm(norm(total) + norm(act(proj(total)))). The feed-forward
    reads the sum before the first norm, as the printed numbers of this walk-through of attention
    have it.
    """

    def __init__(self, config: RoFormerLiteConfig, layer_idx: int):
        super().__init__()
        check_layer_style(config)
        self.self_attn = RoFormerLiteAttention(config, layer_idx)
        self.self_attn_norm = make_norm(config)
        self.mlp_proj = nn.Linear(
            config.hidden_size, config.hidden_size, bias=config.has_bias("mlp_bias", "up")
        )
        self.act_fn = ACT2FN[config.hidden_act]
        self.mlp_inner_norm = make_norm(config)
        self.mlp_norm = make_norm(config)
        self.dropout = nn.Dropout(config.hidden_dropout)

    def forward(
        self,
        hidden_states: torch.Tensor,
        encoder_hidden_states: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        encoder_attention_mask: torch.Tensor | None = None,
        position_embeddings: RotaryTables | None = None,
        value_position_embeddings: RotaryTables | None = None,
        encoder_position_embeddings: RotaryTables | None = None,
        cache: Cache | None = None,
        **kwargs: Any,
    ) -> torch.Tensor:
        """As `RoFormerLiteLayer.forward`."""
        branch, _ = self.self_attn(
            hidden_states,
            attention_mask=attention_mask,
            position_embeddings=position_embeddings,
            cache=cache,
            **kwargs,
        )
        total = hidden_states + self.dropout(branch)
        branch = self.mlp_inner_norm(self.act_fn(self.mlp_proj(total)))
        return self.mlp_norm(self.self_attn_norm(total) + self.dropout(branch))


LAYERS.update(
    parallel_heads=RoFormerLiteParallelHeadsLayer, walkthrough=RoFormerLiteWalkthroughLayer
)
