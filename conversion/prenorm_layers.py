"""Pre-norm layers with one linear map per head: an encoder layer and a decoder layer, which take
vectors, and a BERT-like encoder with learned positions, which takes ids.

In the source of the layers, sinusoidal positions are added outside the layers. With `"positions":
True` in the config, our model adds them to its input vectors. The sources' masks `(B, Lq, Lk)` are
booleans `(B, 1, Lq, Lk)` here.
"""

import torch
from torch import nn
from torch.nn import functional as F

from hf_roformer_lite import RoFormerLiteConfig

from .bart import sines_then_cosines
from .converter import CLASSIC_FIELDS, Converter, LayerConverter, SourceConfig, Tensors, read_fields
from .weight_map import CONCATENATE, Rules, WeightRule, in_layers, renamed

LAYER_SIZES = ("d_model", "heads", "d_ff")
# These are in the order of the arguments of `BertLikeEncoder`.
BERT_SIZES = (
    "vocab_size",
    "hidden_size",
    "max_position_embeddings",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
)


def attention_rules(theirs: str, output: str, ours: str) -> Rules:
    """Rules of an attention with one linear map per head."""
    inputs = tuple(
        WeightRule(f"{theirs}.heads.{{h}}.{side}.*", f"{ours}.{side}_proj.*", CONCATENATE)
        for side in "qkv"
    )
    return (*inputs, WeightRule(f"{theirs}.{output}.*", f"{ours}.o_proj.*"))


class PreNormEncoderLayer(LayerConverter):
    """Config: d_model, heads, d_ff, dropout (0.1), positions (False), num_layers (1)."""

    name = "prenorm-encoder-layer"
    is_decoder = False
    rules = (
        *attention_rules("self_attn", "fc", "self_attn"),
        *renamed({"residual1.norm.*": "self_attn_norm.*", "residual2.norm.*": "mlp_norm.*"}),
        *renamed({"ffn.0.*": "mlp.up_proj.*", "ffn.2.*": "mlp.down_proj.*"}),
    )

    def our_config(self, source_config: SourceConfig) -> RoFormerLiteConfig:
        options = ("dropout", "positions", "num_layers")
        width, heads, inner = read_fields(source_config, self.name, LAYER_SIZES, options)
        has_positions = source_config.get("positions", False)
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
            position_embedding_type="sinusoidal" if has_positions else "none",
            is_decoder=self.is_decoder,
            add_cross_attention=self.is_decoder,
        )

    def build_reference(self, source_config: SourceConfig) -> nn.Module:
        reference = super().build_reference(source_config)
        reference.has_positions = source_config.get("positions", False)
        return reference

    def run_reference(self, reference: nn.Module, inputs: Tensors) -> torch.Tensor:
        if reference.has_positions:
            states = inputs["inputs_embeds"]
            places = (inputs["attention_mask"].long().cumsum(-1) - 1).clamp(min=0)
            halves = sines_then_cosines(*states.shape[1:]).unflatten(-1, (2, -1))
            # Sines are in the even channels, cosines in the odd ones.
            table = halves.transpose(-1, -2).flatten(-2).to(states.dtype)
            inputs = {**inputs, "inputs_embeds": states + table[places]}
        return super().run_reference(reference, inputs)

    def build_layer(self, source_config: SourceConfig) -> nn.Module:
        width, heads, inner = (source_config[field] for field in LAYER_SIZES)
        return PreNormLayer(width, heads, inner, cross=self.is_decoder)

    def run_layer(self, layer: nn.Module, states: torch.Tensor, inputs: Tensors) -> torch.Tensor:
        visible = inputs["attention_mask"][:, None]  # (B, 1, L)
        if not self.is_decoder:
            return layer(states, visible)
        length = states.shape[1]
        visible = visible & torch.ones(length, length, dtype=torch.bool).tril()
        memory_visible = inputs["encoder_attention_mask"][:, None]
        return layer(states, visible, inputs["encoder_hidden_states"], memory_visible)


class PreNormDecoderLayer(PreNormEncoderLayer):
    """Like the encoder layer, with causal self-attention and cross-attention to the encoder's
    states."""

    name = "prenorm-decoder-layer"
    is_decoder = True
    rules = (
        *attention_rules("self_attn", "fc", "self_attn"),
        *attention_rules("cross_attn", "fc", "cross_attn"),
        *renamed({"residual1.norm.*": "self_attn_norm.*", "residual2.norm.*": "cross_attn_norm.*"}),
        *renamed(
            {
                "residual3.norm.*": "mlp_norm.*",
                "ffn.0.*": "mlp.up_proj.*",
                "ffn.2.*": "mlp.down_proj.*",
            }
        ),
    )


class BertLike(Converter):
    """Config: vocab_size, hidden_size, max_position_embeddings, num_attention_heads,
    intermediate_size, num_hidden_layers, hidden_dropout_prob (0.1)."""

    name = "bert-like"
    ignored = ("embeddings.position_ids",)
    rules = (
        *renamed(
            {
                "token_embeddings.weight": "word_embeddings.weight",
                "position_embeddings.weight": "position_embeddings.weight",
                "layer_norm.*": "norm.*",
            },
            "embeddings.",
            "embeddings.",
        ),
        *attention_rules("layers.{i}.attention", "output_linear", "layers.{i}.self_attn"),
        *in_layers(
            {
                "layer_norm_1.*": "self_attn_norm.*",
                "layer_norm_2.*": "mlp_norm.*",
                "feed_forward.linear_1.*": "mlp.up_proj.*",
                "feed_forward.linear_2.*": "mlp.down_proj.*",
            }
        ),
    )

    def our_config(self, source_config: SourceConfig) -> RoFormerLiteConfig:
        sizes = read_fields(source_config, self.name, BERT_SIZES, ("hidden_dropout_prob",))
        return RoFormerLiteConfig(
            **CLASSIC_FIELDS | {"embedding_norm": True},
            **dict(zip(BERT_SIZES, sizes, strict=True)),
            head_dim=source_config["hidden_size"] // source_config["num_attention_heads"],
            hidden_dropout=source_config.get("hidden_dropout_prob", 0.1),
            hidden_act="gelu",
            norm_placement="pre",
            norm_eps=1e-5,
            embedding_norm_eps=1e-12,
            final_norm=False,
            position_embedding_type="learned",
            **dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id")),
        )

    def build_reference(self, source_config: SourceConfig) -> nn.Module:
        return BertLikeEncoder(*(source_config[field] for field in BERT_SIZES))

    def run_reference(self, reference: nn.Module, inputs: Tensors) -> torch.Tensor:
        return reference(inputs["input_ids"], inputs["attention_mask"][:, None])


class ManyHeads(nn.Module):
    """Attention with one linear map per head. The sources have different names for the output
    projection."""

    def __init__(self, width: int, heads: int, output: str):
        super().__init__()
        size = width // heads
        self.heads = nn.ModuleList(
            nn.ModuleDict({s: nn.Linear(width, size) for s in "qkv"}) for _ in range(heads)
        )
        self.output = output
        self.add_module(output, nn.Linear(heads * size, width))

    def forward(
        self, x: torch.Tensor, y: torch.Tensor, visible: torch.Tensor | None = None
    ) -> torch.Tensor:
        projected = ((head["q"](x), head["k"](y), head["v"](y)) for head in self.heads)
        attended = [F.scaled_dot_product_attention(*one, visible) for one in projected]
        return getattr(self, self.output)(torch.cat(attended, -1))


class PreNormLayer(nn.Module):
    """The encoder layer or (with `cross`) the decoder layer as a plain module, with the names of
    its checkpoints."""

    def __init__(self, width: int, heads: int, inner: int, cross: bool):
        super().__init__()
        self.self_attn = ManyHeads(width, heads, "fc")
        if cross:
            self.cross_attn = ManyHeads(width, heads, "fc")
        self.residual1 = nn.ModuleDict({"norm": nn.LayerNorm(width)})
        self.residual2 = nn.ModuleDict({"norm": nn.LayerNorm(width)})
        if cross:
            self.residual3 = nn.ModuleDict({"norm": nn.LayerNorm(width)})
        self.ffn = nn.Sequential(nn.Linear(width, inner), nn.ReLU(), nn.Linear(inner, width))

    def forward(
        self, x: torch.Tensor, visible: torch.Tensor | None = None, *memory: torch.Tensor | None
    ) -> torch.Tensor:
        """`memory` is given for a decoder: the encoder's states, and which of them are visible."""
        normed = self.residual1["norm"](x)
        x = x + self.self_attn(normed, normed, visible)
        if not memory:
            return x + self.ffn(self.residual2["norm"](x))
        x = x + self.cross_attn(self.residual2["norm"](x), *memory)
        return x + self.ffn(self.residual3["norm"](x))


class BertLikeEncoder(nn.Module):
    """The BERT-like encoder as a plain module, with the names of its checkpoints: ids to hidden
    states."""

    def __init__(self, vocab: int, width: int, positions: int, layers: int, heads: int, inner: int):
        super().__init__()
        tables = {"token_embeddings": vocab, "position_embeddings": positions}
        self.embeddings = nn.ModuleDict(
            {name: nn.Embedding(size, width) for name, size in tables.items()}
        )
        self.embeddings["layer_norm"] = nn.LayerNorm(width, eps=1e-12)
        self.layers = nn.ModuleList(
            nn.ModuleDict(
                {
                    "layer_norm_1": nn.LayerNorm(width),
                    "layer_norm_2": nn.LayerNorm(width),
                    "attention": ManyHeads(width, heads, "output_linear"),
                    "feed_forward": nn.ModuleDict(
                        {"linear_1": nn.Linear(width, inner), "linear_2": nn.Linear(inner, width)}
                    ),
                }
            )
            for _ in range(layers)
        )

    def forward(self, ids: torch.Tensor, visible: torch.Tensor | None = None) -> torch.Tensor:
        positions = torch.arange(ids.shape[1], device=ids.device)
        x = self.embeddings["token_embeddings"](ids)
        x = x + self.embeddings["position_embeddings"](positions)
        x = self.embeddings["layer_norm"](x)
        for layer in self.layers:
            normed = layer["layer_norm_1"](x)
            x = x + layer["attention"](normed, normed, visible)
            inner = F.gelu(layer["feed_forward"]["linear_1"](layer["layer_norm_2"](x)))
            x = x + layer["feed_forward"]["linear_2"](inner)
        return x


CONVERTERS = (PreNormEncoderLayer(), PreNormDecoderLayer(), BertLike())
