"""System C: a BERT-like encoder with norms before its branches and learned positions. Takes ids.

Example:
    >>> model = convert("bert-like", state_dict, {"vocab_size": 30522, "hidden_size": 768, ...})
    >>> model(ids, attention_mask=mask).last_hidden_state

Masks `(B, Lq, Lk)` of the source go to our model as booleans `(B, 1, Lq, Lk)`.
"""

import torch
from torch import nn
from transformers import PreTrainedModel

from hf_roformer_lite import RoFormerLiteConfig, RoFormerLiteModel

from .converter import PLAIN, Converter, SourceConfig, Tensors, refuse_others, require
from .reference_systems import BertLikeEncoder
from .system_b_prenorm import attention_names
from .weight_map import Name, NameTable

SIZES = ("vocab_size", "hidden_size", "max_position_embeddings", "num_attention_heads", "intermediate_size")
SIZES += ("num_hidden_layers",)
NAMES = (
    Name("embeddings.token_embeddings.weight", "embeddings.word_embeddings.weight"),
    Name("embeddings.position_embeddings.weight", "embeddings.position_embeddings.weight"),
    Name("embeddings.layer_norm.*", "embeddings.norm.*"),
    Name("layers.{i}.layer_norm_1.*", "layers.{i}.self_attn_norm.*"),
    *attention_names("layers.{i}.attention", "output_linear", "layers.{i}.self_attn"),
    Name("layers.{i}.layer_norm_2.*", "layers.{i}.mlp_norm.*"),
    Name("layers.{i}.feed_forward.linear_1.*", "layers.{i}.mlp.up_proj.*"),
    Name("layers.{i}.feed_forward.linear_2.*", "layers.{i}.mlp.down_proj.*"),
)


class BertLike(Converter):
    """`config`: vocab_size, hidden_size, max_position_embeddings, num_attention_heads, intermediate_size,
    num_hidden_layers, hidden_dropout_prob (0.1)."""

    name = "bert-like"

    def config(self, source: SourceConfig) -> RoFormerLiteConfig:
        refuse_others(source, self.name, (*SIZES, "hidden_dropout_prob"))
        require(source, self.name, *SIZES)
        return RoFormerLiteConfig(
            **PLAIN | {"embedding_norm": True},
            **{field: source[field] for field in SIZES},
            head_dim=source["hidden_size"] // source["num_attention_heads"],
            hidden_dropout=source.get("hidden_dropout_prob", 0.1),
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

    def model_class(self, source: SourceConfig) -> type[PreTrainedModel]:
        return RoFormerLiteModel

    def table(self, config: RoFormerLiteConfig, source: SourceConfig) -> NameTable:
        return NameTable(NAMES, dropped=("embeddings.position_ids",), heads=config.num_attention_heads)

    def reference(self, source: SourceConfig) -> nn.Module:
        order = ("vocab_size", "hidden_size", "max_position_embeddings", "num_hidden_layers")
        return BertLikeEncoder(*(source[field] for field in (*order, "num_attention_heads", "intermediate_size")))

    def inputs(self, model: PreTrainedModel, generator: torch.Generator) -> Tensors:
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
