"""System B: pre-norm encoder and decoder layers with sinusoidal positions. They take vectors.

Example:
    >>> layer = convert("prenorm-encoder-layer", state_dict, {"d_model": 512, "heads": 8, "d_ff": 2048})
    >>> layer(inputs_embeds=vectors, attention_mask=ids != pad).last_hidden_state

The source adds its table of positions outside the layers. With `"positions": True` in the config our model adds the
table to its input vectors.
"""

import torch
from torch import nn

from hf_roformer_lite import RoFormerLiteConfig

from .converter import CLASSIC_FIELDS, SourceConfig, Tensors, refuse_unknown_fields, require_fields
from .reference_systems import PreNormLayer
from .vector_converter import VectorConverter, layer_rules
from .weight_map import WeightMap, WeightRule
from .weight_operations import Concatenate

FIELDS = ("d_model", "heads", "d_ff", "dropout", "positions", "num_layers")


def attention_rules(theirs: str, output: str, ours: str) -> tuple[WeightRule, ...]:
    """Rules of an attention with one linear map per head, as in systems B and C."""
    return (
        *(WeightRule(f"{theirs}.heads.{{h}}.{side}.*", f"{ours}.{side}_proj.*", Concatenate()) for side in "qkv"),
        WeightRule(f"{theirs}.{output}.*", f"{ours}.o_proj.*"),
    )


ENCODER_LAYER = (
    WeightRule("residual1.norm.*", "self_attn_norm.*"),
    *attention_rules("self_attn", "fc", "self_attn"),
    WeightRule("residual2.norm.*", "mlp_norm.*"),
    WeightRule("ffn.0.*", "mlp.up_proj.*"),
    WeightRule("ffn.2.*", "mlp.down_proj.*"),
)
DECODER_LAYER = (
    WeightRule("residual1.norm.*", "self_attn_norm.*"),
    *attention_rules("self_attn", "fc", "self_attn"),
    WeightRule("residual2.norm.*", "cross_attn_norm.*"),
    *attention_rules("cross_attn", "fc", "cross_attn"),
    WeightRule("residual3.norm.*", "mlp_norm.*"),
    WeightRule("ffn.0.*", "mlp.up_proj.*"),
    WeightRule("ffn.2.*", "mlp.down_proj.*"),
)


class PreNormEncoderLayer(VectorConverter):
    """Config: d_model, heads, d_ff, dropout (0.1), positions (False), num_layers (1)."""

    name = "prenorm-encoder-layer"
    is_decoder = False
    rules = ENCODER_LAYER

    def our_config(self, source_config: SourceConfig) -> RoFormerLiteConfig:
        refuse_unknown_fields(source_config, self.name, FIELDS)
        width, heads, inner = require_fields(source_config, self.name, "d_model", "heads", "d_ff")
        return RoFormerLiteConfig(
            **CLASSIC_FIELDS,
            vocab_size=0,
            hidden_size=width,
            num_hidden_layers=source_config.get("num_layers", 1),
            num_attention_heads=heads,
            head_dim=width // heads,
            intermediate_size=inner,
            hidden_act="relu",
            hidden_dropout=source_config.get("dropout", 0.1),
            norm_placement="pre",
            norm_eps=1e-5,
            final_norm=False,
            position_embedding_type="sinusoidal" if source_config.get("positions") else "none",
            is_decoder=self.is_decoder,
            add_cross_attention=self.is_decoder,
        )

    def weight_map(self, our_config: RoFormerLiteConfig, source_config: SourceConfig) -> WeightMap:
        rules = layer_rules(self.rules, our_config.num_hidden_layers)
        return WeightMap(rules, num_heads=our_config.num_attention_heads)

    def build_reference(self, source_config: SourceConfig) -> nn.Module:
        width, heads, inner = (source_config[field] for field in ("d_model", "heads", "d_ff"))
        return nn.ModuleList(
            PreNormLayer(width, heads, inner, cross=self.is_decoder) for _ in range(source_config.get("num_layers", 1))
        )

    def run_layer(self, layer: nn.Module, states: torch.Tensor, inputs: Tensors) -> torch.Tensor:
        visible = inputs["mask"][:, None]  # (B, 1, L)
        if not self.is_decoder:
            return layer(states, visible)
        length = states.shape[1]
        visible = visible & torch.ones(length, length, dtype=torch.bool).tril()
        return layer(states, visible, inputs["memory"], inputs["memory_mask"][:, None])


class PreNormDecoderLayer(PreNormEncoderLayer):
    """As the encoder layer, with causal self-attention and cross-attention to the encoder's states."""

    name = "prenorm-decoder-layer"
    is_decoder = True
    rules = DECODER_LAYER


CONVERTERS = (PreNormEncoderLayer(), PreNormDecoderLayer())
