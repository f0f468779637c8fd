"""A layer whose heads are as wide as the stack, each with feed-forwards of its own for queries, keys and values.

This is the encoder layer of DeepLoTX (`layer_style="parallel_heads"`). It was published as one small network after the
other, head by head; here all heads are slices of stacked weights and go through one batched product.
"""

from collections.abc import Iterator

import torch
from torch import nn
from torch.nn import functional as F
from transformers import initialization as init
from transformers.cache_utils import Cache

from .attention import RoFormerLiteAttention
from .configuration_roformer_lite import RoFormerLiteConfig
from .dropout import RoFormerLiteDropout
from .fast_linear import RoFormerLiteLinear, fast_linear, is_traced_or_transformed, is_unmodified
from .input_layout import InputLayout
from .layers import RoFormerLiteBaseLayer, make_norm

SLOPE = 5e-3  # of negative inputs, at the start


class RoFormerLiteStackedLinear(nn.Module):
    """`stack` linear maps side by side, `(stack, N, in)` to `(stack, N, out)`."""

    def __init__(self, stack: int, in_features: int, out_features: int, bias: bool):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(stack, out_features, in_features))
        self.bias = nn.Parameter(torch.empty(stack, out_features)) if bias else None

    def init_weights(self, std: float) -> None:
        init.normal_(self.weight, mean=0.0, std=std)
        if self.bias is not None:
            init.zeros_(self.bias)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        weight = self.weight.transpose(1, 2)
        if self.bias is None:
            return torch.bmm(states, weight)
        return torch.baddbmm(self.bias.unsqueeze(1), states, weight)

    def members(self) -> Iterator[tuple[torch.Tensor, torch.Tensor | None]]:
        """Weight `(out, in)` and bias `(out,)` of each map."""
        weights = self.weight.unbind()
        return zip(weights, [None] * len(weights) if self.bias is None else self.bias.unbind(), strict=True)


class RoFormerLiteStackedUnit(nn.Module):
    """`stack` residual feed-forwards side by side: `x + down(drop(prelu(up(norm(x)))))`, `(stack, N, width)`."""

    def __init__(self, config: RoFormerLiteConfig, stack: int, width: int, inner: int, dropout: float):
        super().__init__()
        self.norm_eps = config.norm_eps
        self.norm_weight = nn.Parameter(torch.empty(stack, width))
        self.norm_bias = nn.Parameter(torch.empty(stack, width))
        self.up_proj = RoFormerLiteStackedLinear(stack, width, inner, config.mlp_bias)
        self.slope = nn.Parameter(torch.empty(stack))
        self.dropout = RoFormerLiteDropout(dropout)
        self.down_proj = RoFormerLiteStackedLinear(stack, inner, width, config.mlp_bias)

    def init_weights(self, std: float) -> None:
        init.ones_(self.norm_weight)
        init.zeros_(self.norm_bias)
        init.constant_(self.slope, SLOPE)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        maps = self.up_proj, self.down_proj
        is_plain = all(is_unmodified(module, RoFormerLiteStackedLinear) for module in maps)
        if states.device.type == "cpu" and is_plain and not is_traced_or_transformed(states):
            return self._one_by_one(states)
        normed = F.layer_norm(states, states.shape[-1:], eps=self.norm_eps)
        normed = torch.addcmul(self.norm_bias.unsqueeze(1), normed, self.norm_weight.unsqueeze(1))
        up = F.prelu(self.up_proj(normed).unsqueeze(0), self.slope).squeeze(0)  # (stack, N, inner)
        return states + self.down_proj(self.dropout(up))

    def _one_by_one(self, states: torch.Tensor) -> torch.Tensor:
        """The same, one member of the stack after the other: the inner states of one fit into a CPU's cache."""
        outputs = []
        norms, slopes = zip(self.norm_weight.unbind(), self.norm_bias.unbind(), strict=True), self.slope.split(1)
        ups, downs = self.up_proj.members(), self.down_proj.members()
        for member, norm, slope, up, down in zip(states.unbind(), norms, slopes, ups, downs, strict=True):
            normed = F.layer_norm(member, member.shape[-1:], *norm, self.norm_eps)
            inner = F.prelu(fast_linear(normed, *up), slope)  # (N, inner)
            outputs.append(member + fast_linear(self.dropout(inner), *down))
        return torch.stack(outputs)


class RoFormerLiteUnit(nn.Module):
    """One residual feed-forward `x + down(drop(prelu(up(norm(x)))))`, `(..., width)`."""

    def __init__(self, config: RoFormerLiteConfig, width: int):
        super().__init__()
        self.norm = make_norm(config, width)
        self.up_proj = RoFormerLiteLinear(width, config.intermediate_size, bias=config.mlp_bias)
        self.act_fn = nn.PReLU(init=SLOPE)
        self.dropout = RoFormerLiteDropout(config.hidden_dropout)
        self.down_proj = RoFormerLiteLinear(config.intermediate_size, width, bias=config.mlp_bias)

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        inner = self.act_fn(self.up_proj(self.norm(hidden_states)))  # (..., intermediate)
        return hidden_states + self.down_proj(self.dropout(inner))


class RoFormerLiteParallelHeadsAttention(RoFormerLiteAttention):
    """Attention whose heads have the full `hidden_size`: a linear map gives each head its own version of a token, from
    which feed-forward units of that head compute query, key and value."""

    def make_projections(self, config: RoFormerLiteConfig) -> None:
        heads, width = config.num_attention_heads, config.hidden_size
        dropout = config.hidden_dropout if config.qkv_dropout is None else config.qkv_dropout
        self.expand_proj = RoFormerLiteLinear(width, heads * width)
        self.q_mlp, self.kv_mlp = (
            nn.Sequential(
                *(
                    RoFormerLiteStackedUnit(config, stack, width, config.qkv_intermediate_size, dropout)
                    for _ in range(config.qkv_mlp_layers)
                )
            )
            for stack in (heads, 2 * heads)
        )
        self.o_proj = RoFormerLiteLinear(heads * width, width)

    def prepare(self, states: torch.Tensor) -> torch.Tensor:
        return self.split_heads(self.expand_proj(states))  # (..., heads, hidden)

    def queries(self, states: torch.Tensor) -> torch.Tensor:
        return _by_head(self.q_mlp, states)

    def keys_and_values(self, states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        both = _by_head(self.kv_mlp, torch.cat((states, states), dim=-2))  # (..., 2 * heads, hidden)
        return both.chunk(2, dim=-2)


def _by_head(module: nn.Module, states: torch.Tensor) -> torch.Tensor:
    """Apply a module of `(stack, N, width)` to `(..., stack, width)`."""
    stacked = states.flatten(0, -3).transpose(0, 1).contiguous()  # (stack, N, width)
    return module(stacked).transpose(0, 1).reshape(states.shape)


class RoFormerLiteParallelHeadsLayer(RoFormerLiteBaseLayer):
    """`out(units([attention(norm(x)), x]))`: the attention's output stands beside the input, twice the width; there is
    no residual around the layer. With `add_cross_attention` queries meet the encoder's states, not their own."""

    def __init__(self, config: RoFormerLiteConfig, layer_idx: int):
        super().__init__(config, layer_idx)
        self.self_attn_norm = make_norm(config)
        self.self_attn = RoFormerLiteParallelHeadsAttention(config, layer_idx, config.add_cross_attention)
        width = 2 * config.hidden_size
        self.mlp = nn.Sequential(*(RoFormerLiteUnit(config, width) for _ in range(config.num_mlp_layers)))
        self.out_proj = RoFormerLiteLinear(width, config.hidden_size)

    def forward(
        self,
        hidden_states: torch.Tensor,
        encoder_hidden_states: torch.Tensor | None = None,
        layout: InputLayout | None = None,
        position_embeddings: tuple[torch.Tensor, torch.Tensor] | None = None,
        encoder_position_embeddings: tuple[torch.Tensor, torch.Tensor] | None = None,
        past_key_values: Cache | None = None,
        **kwargs,
    ) -> torch.Tensor:
        """`hidden_states` `(N, hidden)` or `(B, L, hidden)` to the same shape; the rest as the model made it."""
        attended, _ = self.self_attn(
            self.self_attn_norm(hidden_states),
            encoder_hidden_states,
            plan=layout.cross_attention or layout.self_attention[self.layer_type],
            position_embeddings=position_embeddings,
            key_position_embeddings=encoder_position_embeddings,
            past_key_values=past_key_values,
            **kwargs,
        )
        return self.out_proj(self.mlp(torch.cat((attended, hidden_states), dim=-1)))
