"""Norms, one Transformer layer, which serves encoders and decoders, and BERT's pooler."""

import torch
from torch import nn
from transformers.cache_utils import Cache
from transformers.modeling_layers import GradientCheckpointingLayer

from .attention import RoFormerLiteAttention
from .configuration_roformer_lite import RoFormerLiteConfig
from .dropout import RoFormerLiteDropout
from .fast_linear import RoFormerLiteLinear
from .feed_forward import RoFormerLiteMLP
from .input_layout import InputLayout
from .ragged import RaggedBatch


def make_norm(config: RoFormerLiteConfig, width: int | None = None, eps: float | None = None) -> nn.Module:
    """The norm of `config.norm_type` over `width` channels (default: `hidden_size`), `eps` as the config has it."""
    width, eps = width or config.hidden_size, config.norm_eps if eps is None else eps
    if config.norm_type == "rmsnorm":
        return nn.RMSNorm(width, eps=eps)
    return nn.LayerNorm(width, eps=eps, bias=config.norm_bias)


class RoFormerLiteBaseLayer(GradientCheckpointingLayer):
    """Base of the layers of every `layer_style`; `output_hidden_states` records the outputs of this class."""

    def __init__(self, config: RoFormerLiteConfig, layer_idx: int):
        super().__init__()
        self.layer_type = config.layer_types[layer_idx]


class RoFormerLiteLayer(RoFormerLiteBaseLayer):
    """Self-attention, cross-attention if the config has it, feed-forward; each in a residual branch.

    `norm_placement="pre"`: x + drop(branch(norm(x))) (Xiong et al. 2020, arXiv:2002.04745);
    `"post"`: norm(x + drop(branch(x))) (Vaswani et al. 2017, section 3.1).
    """

    def __init__(self, config: RoFormerLiteConfig, layer_idx: int):
        super().__init__(config, layer_idx)
        self.is_pre_norm = config.norm_placement == "pre"
        has_norm = layer_idx > 0 or config.first_attention_norm
        self.self_attn_norm = make_norm(config) if has_norm else nn.Identity()
        self.self_attn = RoFormerLiteAttention(config, layer_idx)
        if config.add_cross_attention:
            self.cross_attn_norm = make_norm(config)
            self.cross_attn = RoFormerLiteAttention(config, layer_idx, is_cross_attention=True)
        self.mlp_norm = make_norm(config)
        self.mlp = RoFormerLiteMLP(config)
        self.attn_branch_dropout = RoFormerLiteDropout(config.hidden_dropout_at("attention"))
        self.mlp_branch_dropout = RoFormerLiteDropout(config.hidden_dropout_at("mlp"))

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
        residual = hidden_states
        branch, _ = self.self_attn(
            self._before(self.self_attn_norm, residual),
            plan=layout.self_attention[self.layer_type],
            position_embeddings=position_embeddings,
            past_key_values=past_key_values,
            **kwargs,
        )
        residual = self._after(self.self_attn_norm, residual, self.attn_branch_dropout(branch))
        if layout.cross_attention is not None:
            branch, _ = self.cross_attn(
                self._before(self.cross_attn_norm, residual),
                encoder_hidden_states,
                plan=layout.cross_attention,
                past_key_values=past_key_values,
                **kwargs,
            )
            residual = self._after(self.cross_attn_norm, residual, self.attn_branch_dropout(branch))
        del branch  # the feed-forward's inner states are the widest: nothing else is held beside them
        branch = self.mlp(self._before(self.mlp_norm, residual))
        return self._after(self.mlp_norm, residual, self.mlp_branch_dropout(branch))

    def _before(self, norm: nn.Module, residual: torch.Tensor) -> torch.Tensor:
        return norm(residual) if self.is_pre_norm else residual

    def _after(self, norm: nn.Module, residual: torch.Tensor, branch: torch.Tensor) -> torch.Tensor:
        total = residual + branch
        return total if self.is_pre_norm else norm(total)


class RoFormerLitePooler(nn.Module):
    """BERT's pooler (Devlin et al. 2018): dense and tanh over the first token of each document."""

    def __init__(self, config: RoFormerLiteConfig):
        super().__init__()
        self.dense = RoFormerLiteLinear(config.hidden_size, config.hidden_size)

    def forward(self, tokens: RaggedBatch, last_hidden_state: torch.Tensor) -> torch.Tensor:
        """Restored states `(B, L, hidden)` to `(documents, hidden)`."""
        return self.dense(tokens.pool(last_hidden_state, "cls")).tanh()
