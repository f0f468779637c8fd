"""System A: the DeepLoTX RoFormer encoder, as `layer_style="parallel_heads"`. Takes vectors.

Example:
    >>> model = convert("deeplotx", state_dict, {"feature_dim": 512, "heads": 12, "ffn_layers": 4, "ffn_expansion": 4})
    >>> model(inputs_embeds=vectors, attention_mask=mask).last_hidden_state
"""

import torch
from torch import nn

from hf_roformer_lite import RoFormerLiteConfig

from .converter import PLAIN, SourceConfig, Tensors, VectorConverter, in_layers, refuse_others, require
from .reference_systems import DeepLotxEncoder
from .weight_map import Join, Name, NameTable, Stack

FIELDS = ("feature_dim", "heads", "bias", "ffn_layers", "ffn_expansion", "dropout")
FIELDS += ("proj_layers", "proj_expansion", "proj_dropout", "base", "num_layers", "cross_attention")

# Of every feed-forward unit: names behind it on their side, names on ours, and how many of theirs make one of ours.
UNIT = (
    ("layer_norm.weight", "norm_weight", Stack()),
    ("layer_norm.bias", "norm_bias", Stack()),
    ("up_proj.*", "up_proj.*", Stack()),
    ("down_proj.*", "down_proj.*", Stack()),
    ("parametric_relu.weight", "slope", Join()),
)
LAYER = (
    Name("layer_norm.*", "self_attn_norm.*"),
    Name("attn.expand_proj.*", "self_attn.expand_proj.*"),
    *(
        Name(f"attn.attn_heads.{{h}}.q_proj.ffn_layers.{{j}}.{theirs}", f"self_attn.q_mlp.{{j}}.{ours}", operation)
        for theirs, ours, operation in UNIT
    ),
    *(
        Name(
            tuple(f"attn.attn_heads.{{h}}.{side}_proj.ffn_layers.{{j}}.{theirs}" for side in "kv"),
            f"self_attn.kv_mlp.{{j}}.{ours}",
            operation,
        )
        for theirs, ours, operation in UNIT
    ),
    Name("attn.out_proj.*", "self_attn.o_proj.*"),
    Name("ffn.ffn_layers.{j}.layer_norm.*", "mlp.{j}.norm.*"),
    Name("ffn.ffn_layers.{j}.up_proj.*", "mlp.{j}.up_proj.*"),
    Name("ffn.ffn_layers.{j}.parametric_relu.weight", "mlp.{j}.act_fn.weight"),
    Name("ffn.ffn_layers.{j}.down_proj.*", "mlp.{j}.down_proj.*"),
    Name("out_proj.*", "out_proj.*"),
)


class DeepLotx(VectorConverter):
    """`config`: feature_dim, heads (2), bias (True), ffn_layers (1), ffn_expansion (2), dropout (0.02), proj_layers
    (1), proj_expansion (ffn_expansion), proj_dropout (dropout), base (10000): the last of the rotation; and of a stack
    whose names begin with `layers.{i}.`, num_layers. cross_attention: keys and values come from elsewhere."""

    name = "deeplotx"

    def config(self, source: SourceConfig) -> RoFormerLiteConfig:
        refuse_others(source, self.name, FIELDS)
        (width,) = require(source, self.name, "feature_dim")
        expansion = source.get("ffn_expansion", 2)
        is_cross = source.get("cross_attention", False)
        return RoFormerLiteConfig(
            **PLAIN,
            vocab_size=0,
            hidden_size=width,
            num_hidden_layers=source.get("num_layers", 1),
            num_attention_heads=source.get("heads", 2),
            layer_style="parallel_heads",
            num_mlp_layers=source.get("ffn_layers", 1),
            intermediate_size=int(2 * width * expansion),
            qkv_mlp_layers=source.get("proj_layers", 1),
            qkv_intermediate_size=int(width * source.get("proj_expansion", expansion)),
            qkv_dropout=source.get("proj_dropout"),
            hidden_dropout=source.get("dropout", 0.02),
            mlp_bias=source.get("bias", True),
            norm_eps=1e-9,
            final_norm=False,
            # Its frequencies are a buffer of float32. So are ours, but for the default type in float64; linear by 1 is
            # the same rotation with the buffer's numbers.
            rope_parameters={"rope_type": "linear", "factor": 1.0, "rope_theta": float(source.get("base", 10000))},
            is_decoder=is_cross,
            add_cross_attention=is_cross,
            use_cache=not is_cross,
        )

    def table(self, config: RoFormerLiteConfig, source: SourceConfig) -> NameTable:
        return NameTable(
            in_layers(LAYER, config.num_hidden_layers),
            dropped=("attn.attn_heads.{i}.rope.inv_freq", "layers.{j}.attn.attn_heads.{i}.rope.inv_freq"),
            renamed={"fc1": "up_proj", "fc2": "down_proj", "parametric_relu_1": "parametric_relu"},
            heads=config.num_attention_heads,
        )

    def reference(self, source: SourceConfig) -> nn.Module:
        options = {"layers": "ffn_layers", "expansion": "ffn_expansion", "head_layers": "proj_layers"}
        options |= {"head_expansion": "proj_expansion", "head_dropout": "proj_dropout"}
        options |= {name: name for name in ("bias", "dropout", "base")}
        given = {ours: source[theirs] for ours, theirs in options.items() if theirs in source}
        return nn.ModuleList(
            DeepLotxEncoder(source["feature_dim"], source.get("heads", 2), **given)
            for _ in range(source.get("num_layers", 1))
        )

    def run_layer(self, layer: nn.Module, states: torch.Tensor, inputs: Tensors) -> torch.Tensor:
        memory = inputs.get("memory")
        mask = inputs["mask"] if memory is None else inputs["memory_mask"]
        return layer(states, mask[:, None], memory)


CONVERTER = DeepLotx()
