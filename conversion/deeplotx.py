"""The DeepLoTX RoFormer encoder, here `layer_style="parallel_heads"`. It takes vectors."""

import torch
from torch import nn
from torch.nn import functional as F

from hf_roformer_lite import RoFormerLiteConfig

from .converter import CLASSIC_FIELDS, LayerConverter, SourceConfig, Tensors, read_fields
from .weight_map import CONCATENATE, STACK, Operation, Rules, StoredNames, WeightRule, renamed

FIELDS = (
    "heads",
    "bias",
    "ffn_layers",
    "ffn_expansion",
    "dropout",
    "proj_layers",
    "proj_expansion",
    "proj_dropout",
)
FIELDS += ("base", "num_layers", "cross_attention")


def head_rules(theirs: str, ours: str) -> Rules:
    """Rules of the feed-forward units of all heads: their tensors, one per head, make one of ours.

    Args:
        theirs: The letters of their projections of which one of ours is made.
        ours: The name of that one.
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
    rotation (10000), num_layers (1; the names of several layers begin with `layers.{i}.`),
    cross_attention (False; whether keys and values are made of other vectors)."""

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
        (width,) = read_fields(source_config, self.name, ("feature_dim",), FIELDS)
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
            # Its frequencies are rounded to float32 even in float64. Ours are too, except for the
            # default rope_type; linear scaling by 1 is the default rotation with rounded
            # frequencies.
            rope_parameters={"rope_type": "linear", "factor": 1.0, "rope_theta": theta},
            is_decoder=is_cross,
            add_cross_attention=is_cross,
            use_cache=not is_cross,
        )

    def build_layer(self, source_config: SourceConfig) -> nn.Module:
        of_stack = ("num_layers", "cross_attention")
        return DeepLotxEncoder(
            **{name: value for name, value in source_config.items() if name not in of_stack}
        )

    def run_layer(self, layer: nn.Module, states: torch.Tensor, inputs: Tensors) -> torch.Tensor:
        memory = inputs.get("encoder_hidden_states")
        mask = inputs["attention_mask"] if memory is None else inputs["encoder_attention_mask"]
        return layer(states, mask[:, None], memory)


class DeepFeedForward(nn.Module):
    """Units of x + down(prelu(up(norm(x)))), one after the other."""

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
    """One head, whose queries, keys and values are made by feed-forwards."""

    def __init__(self, width: int, base: float, **options):
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj = (
            DeepFeedForward(width, **options) for _ in range(3)
        )
        self.base = base

    def rotate(self, x: torch.Tensor) -> torch.Tensor:
        half = x.shape[-1] // 2
        frequencies = 1 / self.base ** (
            torch.arange(half, dtype=torch.float32, device=x.device) / half
        )
        angles = torch.arange(x.shape[-2], dtype=x.dtype, device=x.device)[
            :, None
        ] * frequencies.to(x.dtype)
        first, second = x.split(half, -1)
        cos, sin = angles.cos(), angles.sin()
        return torch.cat((first * cos - second * sin, second * cos + first * sin), -1)

    def forward(
        self, x: torch.Tensor, y: torch.Tensor, visible: torch.Tensor | None
    ) -> torch.Tensor:
        query, key = self.rotate(self.q_proj(x)), self.rotate(self.k_proj(y))
        return F.scaled_dot_product_attention(query, key, self.v_proj(y), visible)


class DeepLotxEncoder(nn.Module):
    """The encoder as a plain module with the names of its checkpoints, one module per head: `(B, L,
    feature_dim)` to the same; keys and values are made of `y` where it is given. The arguments are
    those of the config."""

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
        width, expansion = feature_dim, ffn_expansion if proj_expansion is None else proj_expansion
        head = {"layers": proj_layers, "expansion": expansion, "bias": bias, "base": base}
        head["dropout"] = dropout if proj_dropout is None else proj_dropout
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
        normed, heads = self.layer_norm(x), self.attn["attn_heads"]
        sides = (normed, normed if y is None else y)
        xs, ys = (self.attn["expand_proj"](states).chunk(len(heads), -1) for states in sides)
        attended = [head(*parts, visible) for head, *parts in zip(heads, xs, ys, strict=True)]
        return self.out_proj(
            self.ffn(torch.cat((self.attn["out_proj"](torch.cat(attended, -1)), x), -1))
        )


CONVERTERS = (DeepLotx(),)
