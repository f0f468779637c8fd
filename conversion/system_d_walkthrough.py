"""System D: the numeric walk-through, as `layer_style="walkthrough"`. Takes vectors.

Example:
    >>> model = convert("walkthrough", weights, {})
    >>> model(inputs_embeds=input_x[None]).last_hidden_state

Its norm divides by the standard deviation of a sample, σₙ₋₁ = σ·√(n / (n - 1)), and has no weights: ours is a layer
norm with the gain √((n - 1) / n). Its eps stands outside the root, beside σₙ₋₁; squared it goes inside.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from hf_roformer_lite import RoFormerLiteConfig

from .converter import PLAIN, SourceConfig, Tensors, VectorConverter, refuse_others, require
from .reference_systems import Walkthrough
from .weight_map import Constant, Name, NameTable, Transpose

LAYER = (
    *(Name(f"W{side}", f"layers.0.self_attn.{side}_proj.weight", Transpose()) for side in "qkv"),
    Name("Wo", "layers.0.self_attn.o_proj.weight"),
    Name("Wff", "layers.0.mlp_proj.weight"),
    Name("bff", "layers.0.mlp_proj.bias"),
)
NORMS = ("self_attn_norm", "mlp_inner_norm", "mlp_norm")


class WalkthroughConverter(VectorConverter):
    """`config`: d_in and d_model, the widths of the vectors and of the one head; with weights they tell."""

    name = "walkthrough"
    # What is left is its eps of 1e-6 beside σₙ₋₁, which for the small σ of the feed-forward counts.
    tolerances = {torch.float32: 2e-5, torch.float64: 2e-5}

    def config(self, source: SourceConfig) -> RoFormerLiteConfig:
        refuse_others(source, self.name, ("d_in", "d_model"))
        width, head_width = require(source, self.name, "d_in", "d_model")
        return RoFormerLiteConfig(
            vocab_size=0,
            **PLAIN,
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

    def complete(self, source: SourceConfig, state_dict: Mapping[str, torch.Tensor]) -> dict[str, Any]:
        known = dict(zip(("d_in", "d_model"), state_dict["Wq"].shape, strict=True)) if "Wq" in state_dict else {}
        return known | super().complete(source, state_dict)

    def table(self, config: RoFormerLiteConfig, source: SourceConfig) -> NameTable:
        width = config.hidden_size
        gain, shift = Constant(((width - 1) / width) ** 0.5, width), Constant(0.0, width)
        norms = [
            Name((), f"layers.0.{norm}.{parameter}", constant)
            for norm in NORMS
            for parameter, constant in (("weight", gain), ("bias", shift))
        ]
        return NameTable((*LAYER, *norms))

    def reference(self, source: SourceConfig) -> nn.Module:
        return Walkthrough(source["d_in"], source["d_model"])

    def inputs(self, model: PreTrainedModel, generator: torch.Generator) -> Tensors:
        states = torch.randn(2, 5, model.config.hidden_size, generator=generator)
        return {"states": states, "mask": torch.ones(2, 5, dtype=torch.bool)}

    def run_reference(self, reference: nn.Module, inputs: Tensors) -> Tensors:
        return {"hidden states": reference(inputs["states"])["norm3"].flatten(0, 1)}


CONVERTER = WalkthroughConverter()
