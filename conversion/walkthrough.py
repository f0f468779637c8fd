"""The numeric walk-through: one layer with one head, which takes vectors; here
`layer_style="walkthrough"`.

Its norm divides by the sample standard deviation, σₙ₋₁ = σ·√(n / (n - 1)), and has no weights. Ours
is a layer norm with the gain √((n - 1) / n). Its eps is added to σₙ₋₁, outside the root; ours is
the square of it, inside the root.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from transformers import PreTrainedConfig

from hf_roformer_lite import RoFormerLiteConfig

from .converter import CLASSIC_FIELDS, Converter, SourceConfig, Tensors, read_fields
from .weight_map import TRANSPOSE, WeightMap, WeightRule, constant

SIZES = ("d_in", "d_model")
MATRICES = (
    WeightRule("Wq", "layers.0.self_attn.q_proj.weight", TRANSPOSE),
    WeightRule("Wk", "layers.0.self_attn.k_proj.weight", TRANSPOSE),
    WeightRule("Wv", "layers.0.self_attn.v_proj.weight", TRANSPOSE),
    WeightRule("Wo", "layers.0.self_attn.o_proj.weight"),
    WeightRule("Wff", "layers.0.mlp_proj.weight"),
    WeightRule("bff", "layers.0.mlp_proj.bias"),
)


class WalkthroughConverter(Converter):
    """Config: d_in and d_model, the widths of the vectors and of the single head; if there are
    weights, they determine these."""

    name = "walkthrough"
    # A difference remains because its eps of 1e-6 is added to σₙ₋₁, which matters if σ is small, as
    # in the feed-forward.
    tolerances = {torch.float32: 2e-5, torch.float64: 2e-5}

    def our_config(self, source_config: SourceConfig) -> RoFormerLiteConfig:
        width, head_width = read_fields(source_config, self.name, SIZES)
        return RoFormerLiteConfig(
            vocab_size=0,
            **CLASSIC_FIELDS,
            hidden_size=width,
            num_hidden_layers=1,
            num_attention_heads=1,
            head_dim=head_width,
            layer_style="walkthrough",
            norm_placement="post",
            norm_eps=1e-12,
            hidden_act="relu",
            hidden_dropout=0.0,
            attention_bias=False,
            position_embedding_type="none",
        )

    def complete_config(
        self, source_config: SourceConfig, state_dict: Mapping[str, torch.Tensor]
    ) -> dict[str, Any]:
        if "Wq" not in state_dict:
            return dict(source_config)
        return {**dict(zip(SIZES, state_dict["Wq"].shape, strict=True)), **source_config}

    def weight_map(self, our_config: PreTrainedConfig, source_config: SourceConfig) -> WeightMap:
        width = our_config.hidden_size
        gain = constant(((width - 1) / width) ** 0.5, width)
        bias = constant(0.0, width)
        rules = list(MATRICES)
        for norm in ("self_attn_norm", "mlp_inner_norm", "mlp_norm"):
            rules.append(WeightRule((), f"layers.0.{norm}.weight", gain))
            rules.append(WeightRule((), f"layers.0.{norm}.bias", bias))
        return WeightMap(rules)

    def build_reference(self, source_config: SourceConfig) -> nn.Module:
        return Walkthrough(*(source_config[field] for field in SIZES))

    def run_reference(self, reference: nn.Module, inputs: Tensors) -> torch.Tensor:
        return reference(inputs["inputs_embeds"])["norm3"]

    def needs_full_rows(self, our_config: PreTrainedConfig) -> bool:
        return True


def unbiased_norm(x: torch.Tensor, eps: float) -> torch.Tensor:
    """(x - mean) / (σₙ₋₁ + eps)"""
    return (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + eps)


class Walkthrough(nn.Module):
    """The walk-through as a plain module. Because it was published as printed numbers, the module
    returns every stage by its name."""

    def __init__(self, width: int, head_width: int):
        super().__init__()
        self.Wq = nn.Parameter(torch.randn(width, head_width))
        self.Wk = nn.Parameter(torch.randn(width, head_width))
        self.Wv = nn.Parameter(torch.randn(width, head_width))
        self.Wo = nn.Parameter(torch.randn(width, head_width))
        self.Wff = nn.Parameter(torch.randn(width, width))
        self.bff = nn.Parameter(torch.randn(width))

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        stages = {"Q": x @ self.Wq, "K": x @ self.Wk, "V": x @ self.Wv}
        scores = stages["Q"] @ stages["K"].transpose(-1, -2) / self.Wq.shape[1] ** 0.5
        stages["probs"] = scores.softmax(-1)
        stages["ctx"] = stages["probs"] @ stages["V"]
        stages["attn_out"] = stages["ctx"] @ self.Wo.T
        stages["add1"] = x + stages["attn_out"]
        stages["norm1"] = unbiased_norm(stages["add1"], 1e-6)
        stages["ff_lin"] = F.linear(stages["add1"], self.Wff, self.bff)
        stages["relu"] = stages["ff_lin"].relu()
        stages["norm2"] = unbiased_norm(stages["relu"], 1e-6)
        stages["add2"] = stages["norm1"] + stages["norm2"]
        stages["norm3"] = unbiased_norm(stages["add2"], 1e-6)
        return stages


CONVERTERS = (WalkthroughConverter(),)
