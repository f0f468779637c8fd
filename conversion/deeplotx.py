"""The DeepLoTX RoFormer encoder, which takes vectors; here `layer_style="parallel_heads"`."""

import torch
from torch import nn
from torch.nn import functional as F

from hf_roformer_lite import RoFormerLiteConfig

from .converter import CLASSIC_FIELDS, LayerConverter, SourceConfig, Tensors, read_fields
from .weight_map import CONCATENATE, STACK, Operation, Rules, StoredNames, WeightRule, renamed

OPTIONAL_FIELDS = (
    "heads",
    "bias",
    "ffn_layers",
    "ffn_expansion",
    "dropout",
    "proj_layers",
    "proj_expansion",
    "proj_dropout",
    "base",
    "num_layers",
    "cross_attention",
)


def head_rules(theirs: str, ours: str) -> Rules:
    """Rules of the feed-forward units of all heads. Their tensors, one per head, are combined into
    one of ours.

    Args:
        theirs: The letters of their projections that are combined.
        ours: The name of our projection.
    """

    def rule(their_name: str, our_name: str, operation: Operation) -> WeightRule:
        names = tuple(
            f"attn.attn_heads.{{h}}.{side}_proj.ffn_layers.{{j}}.{their_name}" for side in theirs
        )
        return WeightRule(names, f"self_attn.{ours}.{{j}}.{our_name}", operation)

    return (
        rule("layer_norm.weight", "norm_weight", STACK),
        rule("layer_norm.bias", "norm_bias", STACK),
        rule("up_proj.*", "up_proj.*", STACK),
        rule("down_proj.*", "down_proj.*", STACK),
        rule("parametric_relu.weight", "slope", CONCATENATE),
    )


class DeepLotx(LayerConverter):
    """Config: feature_dim, heads (2), bias (True), ffn_layers (1), ffn_expansion (2), dropout
    (0.02), proj_layers (1), proj_expansion (ffn_expansion), proj_dropout (dropout), base of the
    rotation (10000), num_layers (1; with several layers, names begin with `layers.{i}.`),
    cross_attention (False; whether keys and values are computed from other vectors)."""

    name = "deeplotx"
    rules = (
        *head_rules("q", "q_mlp"),
        *head_rules("kv", "kv_mlp"),
        *renamed(
            {
                "layer_norm.*": "self_attn_norm.*",
                "attn.expand_proj.*": "self_attn.expand_proj.*",
                "attn.out_proj.*": "self_attn.o_proj.*",
                "ffn.ffn_layers.{j}.layer_norm.*": "mlp.{j}.norm.*",
                "ffn.ffn_layers.{j}.up_proj.*": "mlp.{j}.up_proj.*",
                "ffn.ffn_layers.{j}.parametric_relu.weight": "mlp.{j}.act_fn.weight",
                "ffn.ffn_layers.{j}.down_proj.*": "mlp.{j}.down_proj.*",
                "out_proj.*": "out_proj.*",
            }
        ),
    )
    ignored = ("attn.attn_heads.{j}.rope.inv_freq",)
    stored_names = StoredNames(
        {
            r"\.fc1\.": ".up_proj.",
            r"\.fc2\.": ".down_proj.",
            r"\.parametric_relu_1\.": ".parametric_relu.",
        }
    )

    def our_config(self, source_config: SourceConfig) -> RoFormerLiteConfig:
        (width,) = read_fields(source_config, self.name, ("feature_dim",), OPTIONAL_FIELDS)
        expansion = source_config.get("ffn_expansion", 2)
        theta = float(source_config.get("base", 10000))
        is_cross = source_config.get("cross_attention", False)
        return RoFormerLiteConfig(
            **CLASSIC_FIELDS,
            vocab_size=0,
            hidden_size=width,
            num_hidden_layers=source_config.get("num_layers", 1),
            num_attention_heads=source_config.get("heads", 2),
            layer_style="parallel_heads",
            num_mlp_layers=source_config.get("ffn_layers", 1),
            intermediate_size=int(2 * width * expansion),
            qkv_mlp_layers=source_config.get("proj_layers", 1),
            qkv_intermediate_size=int(width * source_config.get("proj_expansion", expansion)),
            qkv_dropout=source_config.get("proj_dropout"),
            hidden_dropout=source_config.get("dropout", 0.02),
            mlp_bias=source_config.get("bias", True),
            norm_eps=1e-9,
            final_norm=False,
            # The source rounds its frequencies to float32 even in float64. Here, only linear
            # scaling does this, and a factor of 1 has no other effect.
            rope_parameters={"rope_type": "linear", "factor": 1.0, "rope_theta": theta},
            is_decoder=is_cross,
            add_cross_attention=is_cross,
            use_cache=not is_cross,
        )

    def build_layer(self, source_config: SourceConfig) -> nn.Module:
        fields = dict(source_config)
        fields.pop("num_layers", None)
        fields.pop("cross_attention", None)
        return DeepLotxEncoder(**fields)

    def run_layer(self, layer: nn.Module, states: torch.Tensor, inputs: Tensors) -> torch.Tensor:
        if "encoder_hidden_states" not in inputs:
            return layer(states, inputs["attention_mask"][:, None])
        mask = inputs["encoder_attention_mask"]
        return layer(states, mask[:, None], inputs["encoder_hidden_states"])


class DeepFeedForward(nn.Module):
    """A sequence of units x + down(prelu(up(norm(x))))."""

    def __init__(self, width: int, layers: int, expansion: float, bias: bool, dropout: float):
        super().__init__()
        inner = int(width * expansion)
        self.dropout = nn.Dropout(dropout)
        self.ffn_layers = nn.ModuleList(
            nn.ModuleDict(
                {
                    "layer_norm": nn.LayerNorm(width, eps=1e-9),
                    "up_proj": nn.Linear(width, inner, bias),
                    "parametric_relu": nn.PReLU(init=5e-3),
                    "down_proj": nn.Linear(inner, width, bias),
                }
            )
            for _ in range(layers)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for unit in self.ffn_layers:
            inner = unit["parametric_relu"](unit["up_proj"](unit["layer_norm"](x)))
            x = x + unit["down_proj"](self.dropout(inner))
        return x


class DeepHead(nn.Module):
    """One head, whose queries, keys and values are computed by feed-forwards."""

    def __init__(self, width: int, base: float, **options):
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj = (
            DeepFeedForward(width, **options) for _ in range(3)
        )
        self.base = base

    def rotate(self, x: torch.Tensor) -> torch.Tensor:
        half = x.shape[-1] // 2
        exponents = torch.arange(half, dtype=torch.float32, device=x.device) / half
        frequencies = (1 / self.base**exponents).to(x.dtype)
        positions = torch.arange(x.shape[-2], dtype=x.dtype, device=x.device)
        angles = positions[:, None] * frequencies
        first, second = x.split(half, -1)
        cos = angles.cos()
        sin = angles.sin()
        return torch.cat((first * cos - second * sin, second * cos + first * sin), -1)

    def forward(
        self, x: torch.Tensor, y: torch.Tensor, visible: torch.Tensor | None
    ) -> torch.Tensor:
        query = self.rotate(self.q_proj(x))
        key = self.rotate(self.k_proj(y))
        return F.scaled_dot_product_attention(query, key, self.v_proj(y), visible)


class DeepLotxEncoder(nn.Module):
    """The encoder as a plain module with the names of its checkpoints, one module per head: `(B, L,
    feature_dim)` to the same. Keys and values are computed from `y` if it is given. The arguments
    are the fields of the config."""

    def __init__(
        self,
        feature_dim: int,
        heads: int = 2,
        bias: bool = True,
        ffn_layers: int = 1,
        ffn_expansion: float = 2,
        dropout: float = 0.02,
        proj_layers: int = 1,
        proj_expansion: float | None = None,
        proj_dropout: float | None = None,
        base: float = 10000,
    ):
        super().__init__()
        width = feature_dim
        if proj_expansion is None:
            proj_expansion = ffn_expansion
        if proj_dropout is None:
            proj_dropout = dropout
        head = {
            "layers": proj_layers,
            "expansion": proj_expansion,
            "bias": bias,
            "base": base,
            "dropout": proj_dropout,
        }
        self.attn = nn.ModuleDict(
            {
                "expand_proj": nn.Linear(width, heads * width),
                "attn_heads": nn.ModuleList(DeepHead(width, **head) for _ in range(heads)),
                "out_proj": nn.Linear(heads * width, width),
            }
        )
        self.ffn = DeepFeedForward(2 * width, ffn_layers, ffn_expansion, bias, dropout)
        self.layer_norm = nn.LayerNorm(width, eps=1e-9)
        self.out_proj = nn.Linear(2 * width, width)

    def forward(
        self, x: torch.Tensor, visible: torch.Tensor | None = None, y: torch.Tensor | None = None
    ) -> torch.Tensor:
        heads = self.attn["attn_heads"]
        normed = self.layer_norm(x)
        if y is None:
            y = normed
        xs = self.attn["expand_proj"](normed).chunk(len(heads), -1)
        ys = self.attn["expand_proj"](y).chunk(len(heads), -1)
        attended = [
            head(own, others, visible) for head, own, others in zip(heads, xs, ys, strict=True)
        ]
        joined = self.attn["out_proj"](torch.cat(attended, -1))
        return self.out_proj(self.ffn(torch.cat((joined, x), -1)))


CONVERTERS = (DeepLotx(),)
