"""System B: pre-norm encoder and decoder layers with sinusoidal positions. They take vectors.

Example:
    >>> layer = convert("prenorm-encoder-layer", state_dict, {"d_model": 512, "heads": 8, "d_ff": 2048})
    >>> layer(inputs_embeds=vectors, attention_mask=ids != pad).last_hidden_state

The source adds its table of positions outside the layers. With `"positions": True` in the config our model adds it to
the vectors it is given.
"""

import torch
from torch import nn

from hf_roformer_lite import RoFormerLiteConfig

from .converter import PLAIN, SourceConfig, Tensors, VectorConverter, in_layers, refuse_others, require
from .reference_systems import PreNormLayer
from .weight_map import Join, Name, NameTable

FIELDS = ("d_model", "heads", "d_ff", "dropout", "positions", "num_layers")


def attention_names(theirs: str, output: str, ours: str) -> tuple[Name, ...]:
    """Rows of an attention with a linear map a head, as systems B and C have it."""
    return (
        *(Name(f"{theirs}.heads.{{h}}.{side}.*", f"{ours}.{side}_proj.*", Join()) for side in "qkv"),
        Name(f"{theirs}.{output}.*", f"{ours}.o_proj.*"),
    )


ENCODER_LAYER = (
    Name("residual1.norm.*", "self_attn_norm.*"),
    *attention_names("self_attn", "fc", "self_attn"),
    Name("residual2.norm.*", "mlp_norm.*"),
    Name("ffn.0.*", "mlp.up_proj.*"),
    Name("ffn.2.*", "mlp.down_proj.*"),
)
DECODER_LAYER = (
    Name("residual1.norm.*", "self_attn_norm.*"),
    *attention_names("self_attn", "fc", "self_attn"),
    Name("residual2.norm.*", "cross_attn_norm.*"),
    *attention_names("cross_attn", "fc", "cross_attn"),
    Name("residual3.norm.*", "mlp_norm.*"),
    Name("ffn.0.*", "mlp.up_proj.*"),
    Name("ffn.2.*", "mlp.down_proj.*"),
)


class PreNormEncoderLayer(VectorConverter):
    """`config`: d_model, heads, d_ff, dropout (0.1), positions (False); of a stack num_layers."""

    name = "prenorm-encoder-layer"
    is_decoder = False
    rows = ENCODER_LAYER

    def config(self, source: SourceConfig) -> RoFormerLiteConfig:
        refuse_others(source, self.name, FIELDS)
        width, heads, inner = require(source, self.name, "d_model", "heads", "d_ff")
        return RoFormerLiteConfig(
            **PLAIN,
            vocab_size=0,
            hidden_size=width,
            num_hidden_layers=source.get("num_layers", 1),
            num_attention_heads=heads,
            head_dim=width // heads,
            intermediate_size=inner,
            hidden_act="relu",
            hidden_dropout=source.get("dropout", 0.1),
            norm_placement="pre",
            norm_eps=1e-5,
            final_norm=False,
            position_embedding_type="sinusoidal" if source.get("positions") else "none",
            is_decoder=self.is_decoder,
            add_cross_attention=self.is_decoder,
        )

    def table(self, config: RoFormerLiteConfig, source: SourceConfig) -> NameTable:
        rows = in_layers(self.rows, config.num_hidden_layers)
        return NameTable(rows, heads=config.num_attention_heads)

    def reference(self, source: SourceConfig) -> nn.Module:
        return nn.ModuleList(
            PreNormLayer(source["d_model"], source["heads"], source["d_ff"], cross=self.is_decoder)
            for _ in range(source.get("num_layers", 1))
        )

    def run_layer(self, layer: nn.Module, states: torch.Tensor, inputs: Tensors) -> torch.Tensor:
        visible = inputs["mask"][:, None]  # (B, 1, L)
        if not self.is_decoder:
            return layer(states, visible)
        length = states.shape[1]
        visible = visible & torch.ones(length, length, dtype=torch.bool).tril()
        return layer(states, visible, inputs["memory"], inputs["memory_mask"][:, None])


class PreNormDecoderLayer(PreNormEncoderLayer):
    """As the encoder layer, with causal attention to itself and attention to the encoder's states."""

    name = "prenorm-decoder-layer"
    is_decoder = True
    rows = DECODER_LAYER


CONVERTERS = (PreNormEncoderLayer(), PreNormDecoderLayer())
