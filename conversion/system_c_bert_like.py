"""System C: a BERT-like encoder with pre-norm layers and learned positions. It takes ids.

Example:
    >>> model = convert("bert-like", state_dict, {"vocab_size": 30522, "hidden_size": 768, ...})
    >>> model(ids, attention_mask=mask).last_hidden_state

Masks `(B, Lq, Lk)` of the source go to our model as booleans `(B, 1, Lq, Lk)`.
"""

import torch
from torch import nn
from transformers import PreTrainedModel

from hf_roformer_lite import RoFormerLiteConfig, RoFormerLiteModel

from .converter import CLASSIC_FIELDS, Converter, SourceConfig, Tensors, refuse_unknown_fields, require_fields
from .reference_systems import BertLikeEncoder
from .system_b_prenorm import attention_rules
from .weight_map import WeightMap, WeightRule

SIZES = ("vocab_size", "hidden_size", "max_position_embeddings", "num_attention_heads", "intermediate_size")
SIZES += ("num_hidden_layers",)
RULES = (
    WeightRule("embeddings.token_embeddings.weight", "embeddings.word_embeddings.weight"),
    WeightRule("embeddings.position_embeddings.weight", "embeddings.position_embeddings.weight"),
    WeightRule("embeddings.layer_norm.*", "embeddings.norm.*"),
    WeightRule("layers.{i}.layer_norm_1.*", "layers.{i}.self_attn_norm.*"),
    *attention_rules("layers.{i}.attention", "output_linear", "layers.{i}.self_attn"),
    WeightRule("layers.{i}.layer_norm_2.*", "layers.{i}.mlp_norm.*"),
    WeightRule("layers.{i}.feed_forward.linear_1.*", "layers.{i}.mlp.up_proj.*"),
    WeightRule("layers.{i}.feed_forward.linear_2.*", "layers.{i}.mlp.down_proj.*"),
)


class BertLike(Converter):
    """Config: vocab_size, hidden_size, max_position_embeddings, num_attention_heads, intermediate_size,
    num_hidden_layers, hidden_dropout_prob (0.1)."""

    name = "bert-like"

    def our_config(self, source_config: SourceConfig) -> RoFormerLiteConfig:
        refuse_unknown_fields(source_config, self.name, (*SIZES, "hidden_dropout_prob"))
        require_fields(source_config, self.name, *SIZES)
        return RoFormerLiteConfig(
            **CLASSIC_FIELDS | {"embedding_norm": True},
            **{field: source_config[field] for field in SIZES},
            head_dim=source_config["hidden_size"] // source_config["num_attention_heads"],
            hidden_dropout=source_config.get("hidden_dropout_prob", 0.1),
            hidden_act="gelu",
            norm_placement="pre",
            norm_eps=1e-5,
            embedding_norm_eps=1e-12,
            final_norm=False,
            position_embedding_type="learned",
            pad_token_id=None,
            bos_token_id=None,
            eos_token_id=None,
        )

    def our_model_class(self, source_config: SourceConfig) -> type[PreTrainedModel]:
        return RoFormerLiteModel

    def weight_map(self, our_config: RoFormerLiteConfig, source_config: SourceConfig) -> WeightMap:
        return WeightMap(RULES, ignored=("embeddings.position_ids",), num_heads=our_config.num_attention_heads)

    def build_reference(self, source_config: SourceConfig) -> nn.Module:
        order = ("vocab_size", "hidden_size", "max_position_embeddings", "num_hidden_layers", "num_attention_heads")
        return BertLikeEncoder(*(source_config[field] for field in (*order, "intermediate_size")))

    def random_inputs(self, model: PreTrainedModel, generator: torch.Generator) -> Tensors:
        config = model.config
        length = min(7, config.max_position_embeddings)
        mask = torch.ones(3, length, dtype=torch.bool)
        mask[1, length // 2 :] = mask[2, 1:] = False
        return {"ids": torch.randint(config.vocab_size, (3, length), generator=generator), "mask": mask}

    def run_reference(self, reference: nn.Module, inputs: Tensors) -> Tensors:
        return {"hidden states": reference(inputs["ids"], inputs["mask"][:, None])[inputs["mask"]]}

    def run_ours(self, model: PreTrainedModel, inputs: Tensors) -> Tensors:
        states = model(inputs["ids"], attention_mask=inputs["mask"]).last_hidden_state
        return {"hidden states": states[inputs["mask"]]}


CONVERTER = BertLike()
