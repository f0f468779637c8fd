"""The layer of a published numeric walk-through of attention, small enough to be followed with pencil and paper."""

import torch
from transformers.activations import ACT2FN
from transformers.cache_utils import Cache

from .attention import RoFormerLiteAttention
from .configuration_roformer_lite import RoFormerLiteConfig
from .dropout import RoFormerLiteDropout
from .fast_linear import RoFormerLiteLinear
from .input_layout import InputLayout
from .layers import RoFormerLiteBaseLayer, make_norm


class RoFormerLiteWalkthroughLayer(RoFormerLiteBaseLayer):
    """A post-norm layer whose feed-forward is one linear map and an activation, with a norm of its own behind it.

    total = x + attention(x); out = norm(norm(total) + norm(act(proj(total)))). The feed-forward reads the sum before
    the first norm, as the printed numbers have it.
    """

    def __init__(self, config: RoFormerLiteConfig, layer_idx: int):
        super().__init__(config, layer_idx)
        self.self_attn = RoFormerLiteAttention(config, layer_idx)
        self.self_attn_norm = make_norm(config)
        self.mlp_proj = RoFormerLiteLinear(config.hidden_size, config.hidden_size, bias=config.mlp_bias)
        self.act_fn = ACT2FN[config.hidden_act]
        self.mlp_inner_norm = make_norm(config)
        self.mlp_norm = make_norm(config)
        self.dropout = RoFormerLiteDropout(config.hidden_dropout)

    def forward(
        self,
        hidden_states: torch.Tensor,
        encoder_hidden_states: torch.Tensor | None = None,
        layout: InputLayout | None = None,
        position_embeddings: tuple[torch.Tensor, torch.Tensor] | None = None,
        past_key_values: Cache | None = None,
        **kwargs,
    ) -> torch.Tensor:
        """`hidden_states` `(N, hidden)` or `(B, L, hidden)` to the same shape; the rest as the model made it."""
        branch, _ = self.self_attn(
            hidden_states,
            plan=layout.self_attention[self.layer_type],
            position_embeddings=position_embeddings,
            past_key_values=past_key_values,
            **kwargs,
        )
        total = hidden_states + self.dropout(branch)
        branch = self.mlp_inner_norm(self.act_fn(self.mlp_proj(total)))
        return self.mlp_norm(self.self_attn_norm(total) + self.dropout(branch))
