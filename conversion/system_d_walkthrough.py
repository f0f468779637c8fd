"""System D: the numeric walk-through, here `layer_style="walkthrough"`. It takes vectors.

Example:
    >>> model = convert("walkthrough", weights, {})
    >>> model(inputs_embeds=input_x[None]).last_hidden_state

Its norm divides by the sample standard deviation, σₙ₋₁ = σ·√(n / (n - 1)), and has no weights: ours is a layer norm
with the gain √((n - 1) / n). Its eps is added to σₙ₋₁, outside the root; ours, inside the root, is its square.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from hf_roformer_lite import RoFormerLiteConfig

from .converter import CLASSIC_FIELDS, SourceConfig, Tensors, refuse_unknown_fields, require_fields
from .reference_systems import Walkthrough
from .vector_converter import VectorConverter
from .weight_map import WeightMap, WeightRule
from .weight_operations import Constant, Transpose

LAYER = (
    *(WeightRule(f"W{side}", f"layers.0.self_attn.{side}_proj.weight", Transpose()) for side in "qkv"),
    WeightRule("Wo", "layers.0.self_attn.o_proj.weight"),
    WeightRule("Wff", "layers.0.mlp_proj.weight"),
    WeightRule("bff", "layers.0.mlp_proj.bias"),
)
NORMS = ("self_attn_norm", "mlp_inner_norm", "mlp_norm")


class WalkthroughConverter(VectorConverter):
    """Config: d_in and d_model, the widths of the vectors and of the single head; with weights they are read from
    these."""

    name = "walkthrough"
    # The difference left is its eps of 1e-6 beside σₙ₋₁, which matters for the small σ of the feed-forward.
    tolerances = {torch.float32: 2e-5, torch.float64: 2e-5}

    def our_config(self, source_config: SourceConfig) -> RoFormerLiteConfig:
        refuse_unknown_fields(source_config, self.name, ("d_in", "d_model"))
        width, head_width = require_fields(source_config, self.name, "d_in", "d_model")
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

    def complete_config(self, source_config: SourceConfig, state_dict: Mapping[str, torch.Tensor]) -> dict[str, Any]:
        known = dict(zip(("d_in", "d_model"), state_dict["Wq"].shape, strict=True)) if "Wq" in state_dict else {}
        return known | super().complete_config(source_config, state_dict)

    def weight_map(self, our_config: RoFormerLiteConfig, source_config: SourceConfig) -> WeightMap:
        width = our_config.hidden_size
        gain, shift = Constant(((width - 1) / width) ** 0.5, width), Constant(0.0, width)
        norm_rules = [
            WeightRule((), f"layers.0.{norm}.{parameter}", constant)
            for norm in NORMS
            for parameter, constant in (("weight", gain), ("bias", shift))
        ]
        return WeightMap((*LAYER, *norm_rules))

    def build_reference(self, source_config: SourceConfig) -> nn.Module:
        return Walkthrough(source_config["d_in"], source_config["d_model"])

    def random_inputs(self, model: PreTrainedModel, generator: torch.Generator) -> Tensors:
        states = torch.randn(2, 5, model.config.hidden_size, generator=generator)
        return {"states": states, "mask": torch.ones(2, 5, dtype=torch.bool)}

    def run_reference(self, reference: nn.Module, inputs: Tensors) -> Tensors:
        return {"hidden states": reference(inputs["states"])["norm3"].flatten(0, 1)}


CONVERTER = WalkthroughConverter()
