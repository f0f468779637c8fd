"""The layers of two reference systems: `layer_style="parallel_heads"` (DeepLoTX) and
`layer_style="walkthrough"`.

Only bundles of models with these layers contain this file. Their `auto_map` looks up every class
here.

Some fields of the configuration concern only `parallel_heads`:
    num_mlp_layers (`int`, defaults to 1): The number of successive feed-forward units of a layer.
    qkv_mlp_layers (`int`, defaults to 1): The number of units before queries, keys and values.
    qkv_intermediate_size (`int`, *optional*): The inner width of these units. The default is
        `intermediate_size // 2`: the layer's own units are twice as wide, so the ratio is the same.
    qkv_dropout (`float`, *optional*): The dropout inside them. The default is `hidden_dropout`.
`parallel_heads` ignores `hidden_act`, as it uses PReLU throughout, and `walkthrough` ignores
`intermediate_size`.
"""

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from transformers import initialization as init
from transformers.activations import ACT2FN
from transformers.modeling_layers import GradientCheckpointingLayer

from .configuration_roformer_lite import RoFormerLiteConfig, filled
from .heads_roformer_lite import *  # noqa: F401, F403, all classes of a bundle
from .modeling_roformer_lite import (
    LAYERS,
    RoFormerLiteAttention,
    RotaryTables,
    make_norm,
)
from .modeling_roformer_lite_seq2seq import *  # noqa: F401, F403, all classes of a bundle of a pair

SLOPE = 5e-3  # The initial slope of PReLU for negative inputs.


def check_layer_style(config: RoFormerLiteConfig) -> None:
    """Reject options that these layers do not have.

    Raises:
        ValueError: naming the field, its value and the value that it must have.
    """
    required: dict[str, Any] = {
        "norm_type": "layernorm",
        "gated_mlp": False,
        "rotary_value": False,
        "mlp_dropout": 0.0,
        "first_attention_norm": True,
        "hidden_dropout_places": None,
        # Either all matrices have a bias or none.
        "mlp_bias": bool(config.mlp_bias),
    }
    if config.layer_style == "parallel_heads":
        required |= {
            "norm_placement": "pre",
            "head_dim": config.hidden_size,
            "attention_bias": True,
            "norm_bias": True,
            "num_key_value_heads": config.num_attention_heads,
            "cross_attention_hidden_size": None,
            # With cross-attention there is no self-attention that could use a cache.
            "use_cache": config.use_cache and not config.add_cross_attention,
        }
    else:
        required |= {
            "norm_placement": "post",
            "add_cross_attention": False,
            "attention_bias": bool(config.attention_bias),
        }
    for field, value in required.items():
        config.require(
            getattr(config, field) == value,
            field=field,
            what=f"{value!r} with layer_style={config.layer_style!r}",
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
        normed = F.layer_norm(states, states.shape[-1:], eps=self.norm_eps)
        normed = torch.addcmul(self.norm_bias.unsqueeze(1), normed, self.norm_weight.unsqueeze(1))
        # (stack, N, inner)
        inner = F.prelu(self.up_proj(normed).unsqueeze(0), self.slope).squeeze(0)
        return states + self.down_proj(self.dropout(inner))


class RoFormerLitePReLU(nn.PReLU):
    """PReLU with the initial slope of the reference system, even if a checkpoint lacks the
    slope."""

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
    head compute query, key and value. In the published system each head is a small network of its
    own; here all heads are slices of stacked weights and are computed by one batched product.
    """

    def make_projections(self, config: RoFormerLiteConfig) -> None:
        num_heads = config.num_attention_heads
        hidden_size = config.hidden_size
        self.expand_proj = nn.Linear(hidden_size, num_heads * hidden_size)
        self.q_mlp = make_stacked_units(config, stack=num_heads)
        self.kv_mlp = make_stacked_units(config, stack=2 * num_heads)
        self.o_proj = nn.Linear(num_heads * hidden_size, hidden_size)

    def make_query(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return apply_by_head(self.q_mlp, hidden_states)

    def make_key_and_value(self, states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        twice = torch.cat((states, states), dim=-2)  # (B, L, 2 * heads, hidden)
        key, value = apply_by_head(self.kv_mlp, twice).chunk(2, dim=-2)
        return key, value

    def forward(
        self,
        hidden_states: torch.Tensor,
        key_value_states: torch.Tensor | None = None,
        *args: Any,
        **kwargs: Any,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Like `RoFormerLiteAttention.forward`."""
        expanded = self.split_heads(self.expand_proj(hidden_states))  # (B, L, heads, hidden)
        source = expanded
        if key_value_states is not None:
            source = self.split_heads(self.expand_proj(key_value_states))
        return super().forward(expanded, source, *args, **kwargs)


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
    """`out(units([attention(norm(x)), x]))`: the output of attention is concatenated with the
    input, and there is no residual connection around the layer.

    With `add_cross_attention` there is only cross-attention, and no self-attention.
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
        encoder_position_embeddings: RotaryTables | None = None,
        **kwargs: Any,
    ) -> torch.Tensor:
        """Like `RoFormerLiteLayer.forward`; the keys of the encoder are rotated by
        `encoder_position_embeddings`."""
        if self.self_attn.is_cross_attention:
            attention_mask = encoder_attention_mask
            if kwargs.get("cache") is not None:
                raise ValueError(
                    "layer_style='parallel_heads' with cross-attention has no cache; pass "
                    "use_cache=False."
                )
        attended, _ = self.self_attn(
            self.self_attn_norm(hidden_states),
            key_value_states=encoder_hidden_states,
            attention_mask=attention_mask,
            key_position_embeddings=encoder_position_embeddings,
            **kwargs,
        )
        return self.out_proj(self.mlp(torch.cat((attended, hidden_states), dim=-1)))


class RoFormerLiteWalkthroughLayer(GradientCheckpointingLayer):
    """A post-norm layer whose feed-forward is one linear map and an activation, with a norm of its
    own after it.

    total = x + attention(x); out = norm(norm(total) + norm(act(proj(total)))). The feed-forward
    reads the sum before the first norm, as the printed numbers of the walk-through do.
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
        encoder_attention_mask: torch.Tensor | None = None,
        **kwargs: Any,
    ) -> torch.Tensor:
        """Like `RoFormerLiteLayer.forward`, without cross-attention."""
        branch, _ = self.self_attn(hidden_states, **kwargs)
        total = hidden_states + self.dropout(branch)
        branch = self.mlp_inner_norm(self.act_fn(self.mlp_proj(total)))
        return self.mlp_norm(self.self_attn_norm(total) + self.dropout(branch))


LAYERS.update(
    parallel_heads=RoFormerLiteParallelHeadsLayer, walkthrough=RoFormerLiteWalkthroughLayer
)
