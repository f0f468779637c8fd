"""System A: the DeepLoTX RoFormer encoder, here `layer_style="parallel_heads"`. It takes vectors.

Example:
    >>> model = convert("deeplotx", state_dict, {"feature_dim": 512, "heads": 12, "ffn_layers": 4, "ffn_expansion": 4})
    >>> model(inputs_embeds=vectors, attention_mask=mask).last_hidden_state
"""

import torch
from torch import nn

from hf_roformer_lite import RoFormerLiteConfig

from .converter import CLASSIC_FIELDS, SourceConfig, Tensors, refuse_unknown_fields, require_fields
from .reference_systems import DeepLotxEncoder
from .vector_converter import VectorConverter, layer_rules
from .weight_map import WeightMap, WeightRule
from .weight_operations import Concatenate, Stack

FIELDS = ("feature_dim", "heads", "bias", "ffn_layers", "ffn_expansion", "dropout")
FIELDS += ("proj_layers", "proj_expansion", "proj_dropout", "base", "num_layers", "cross_attention")

# Of every feed-forward unit: their name, our name, and how their tensors, one per head, make one of ours.
HEAD_UNIT = (
    ("layer_norm.weight", "norm_weight", Stack()),
    ("layer_norm.bias", "norm_bias", Stack()),
    ("up_proj.*", "up_proj.*", Stack()),
    ("down_proj.*", "down_proj.*", Stack()),
    ("parametric_relu.weight", "slope", Concatenate()),
)
LAYER = (
    WeightRule("layer_norm.*", "self_attn_norm.*"),
    WeightRule("attn.expand_proj.*", "self_attn.expand_proj.*"),
    *(
        WeightRule(
            f"attn.attn_heads.{{h}}.q_proj.ffn_layers.{{j}}.{theirs}", f"self_attn.q_mlp.{{j}}.{ours}", operation
        )
        for theirs, ours, operation in HEAD_UNIT
    ),
    *(
        WeightRule(
            tuple(f"attn.attn_heads.{{h}}.{side}_proj.ffn_layers.{{j}}.{theirs}" for side in "kv"),
            f"self_attn.kv_mlp.{{j}}.{ours}",
            operation,
        )
        for theirs, ours, operation in HEAD_UNIT
    ),
    WeightRule("attn.out_proj.*", "self_attn.o_proj.*"),
    WeightRule("ffn.ffn_layers.{j}.layer_norm.*", "mlp.{j}.norm.*"),
    WeightRule("ffn.ffn_layers.{j}.up_proj.*", "mlp.{j}.up_proj.*"),
    WeightRule("ffn.ffn_layers.{j}.parametric_relu.weight", "mlp.{j}.act_fn.weight"),
    WeightRule("ffn.ffn_layers.{j}.down_proj.*", "mlp.{j}.down_proj.*"),
    WeightRule("out_proj.*", "out_proj.*"),
)


class DeepLotx(VectorConverter):
    """Config: feature_dim, heads (2), bias (True), ffn_layers (1), ffn_expansion (2), dropout (0.02), proj_layers
    (1), proj_expansion (ffn_expansion), proj_dropout (dropout), base of the rotation (10000), num_layers (1; the names
    of several layers begin with `layers.{i}.`), cross_attention (False; whether keys and values are made of other
    vectors)."""

    name = "deeplotx"

    def our_config(self, source_config: SourceConfig) -> RoFormerLiteConfig:
        refuse_unknown_fields(source_config, self.name, FIELDS)
        (width,) = require_fields(source_config, self.name, "feature_dim")
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
            # Its frequencies are rounded to float32 even in float64. Ours are too, except for the default rope_type;
            # linear scaling by 1 is the default rotation with rounded frequencies.
            rope_parameters={"rope_type": "linear", "factor": 1.0, "rope_theta": theta},
            is_decoder=is_cross,
            add_cross_attention=is_cross,
            use_cache=not is_cross,
        )

    def weight_map(self, our_config: RoFormerLiteConfig, source_config: SourceConfig) -> WeightMap:
        return WeightMap(
            layer_rules(LAYER, our_config.num_hidden_layers),
            ignored=("attn.attn_heads.{i}.rope.inv_freq", "layers.{j}.attn.attn_heads.{i}.rope.inv_freq"),
            current_names={"fc1": "up_proj", "fc2": "down_proj", "parametric_relu_1": "parametric_relu"},
            num_heads=our_config.num_attention_heads,
        )

    def build_reference(self, source_config: SourceConfig) -> nn.Module:
        options = {"layers": "ffn_layers", "expansion": "ffn_expansion", "head_layers": "proj_layers"}
        options |= {"head_expansion": "proj_expansion", "head_dropout": "proj_dropout"}
        options |= {name: name for name in ("bias", "dropout", "base")}
        given = {ours: source_config[theirs] for ours, theirs in options.items() if theirs in source_config}
        return nn.ModuleList(
            DeepLotxEncoder(source_config["feature_dim"], source_config.get("heads", 2), **given)
            for _ in range(source_config.get("num_layers", 1))
        )

    def run_layer(self, layer: nn.Module, states: torch.Tensor, inputs: Tensors) -> torch.Tensor:
        memory = inputs.get("memory")
        mask = inputs["mask"] if memory is None else inputs["memory_mask"]
        return layer(states, mask[:, None], memory)


CONVERTER = DeepLotx()
