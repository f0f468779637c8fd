"""NeoBERT: pre-norm with RMSNorm, a gated feed-forward, rotary positions, no biases.

Its queries, keys and values stand side by side for each head in one matrix, and its rotation pairs neighbouring
channels. Its code was published with its weights and is not part of transformers; none of it is run.
"""

from typing import Any

from transformers import PreTrainedConfig, PreTrainedModel

from hf_roformer_lite import (
    RoFormerLiteConfig,
    RoFormerLiteForMaskedLM,
    RoFormerLiteForSequenceClassification,
    RoFormerLiteModel,
)

from . import published_classes
from .bert_family import LINEAR, WITH_INPUT_DROPOUT
from .converter import SourceConfig
from .hugging_face import COMMON_FIELDS, Head, HuggingFaceConverter, Rules, same_names
from .llama import PRE_RMS_NORM
from .weight_map import WeightRule
from .weight_operations import UNCHANGED, Chunk, InTurn, PermuteForRope, SplitHeads

LAYER = "transformer_encoder.{i}"
ATTENTION = "layers.{i}.self_attn"
RULES = (
    WeightRule("encoder.weight", "embeddings.word_embeddings.weight"),
    WeightRule(f"{LAYER}.wo.weight", f"{ATTENTION}.o_proj.weight"),
    WeightRule(
        f"{LAYER}.ffn.w12.weight", ("layers.{i}.mlp.gate_proj.weight", "layers.{i}.mlp.up_proj.weight"), Chunk()
    ),
    WeightRule(f"{LAYER}.ffn.w3.weight", "layers.{i}.mlp.down_proj.weight"),
    WeightRule(f"{LAYER}.attention_norm.weight", "layers.{i}.self_attn_norm.weight"),
    WeightRule(f"{LAYER}.ffn_norm.weight", "layers.{i}.mlp_norm.weight"),
    WeightRule("layer_norm.weight", "final_norm.weight"),
)
DECODER = (WeightRule("decoder.bias", "lm_head.bias"),)
OF_OTHER_CONFIGS = ("tie_word_embeddings", "initializer_range")


class NeoBert(HuggingFaceConverter):
    """NeoBERT. Config: the fields of its config.json, with `architectures` for the head."""

    name = "neobert"
    prefix = "model"
    config_class = published_classes.NeoBERTConfig
    in_transformers = False
    fields = {
        **same_names(*(name for name in COMMON_FIELDS if name not in OF_OTHER_CONFIGS)),
        **same_names("hidden_size", "num_hidden_layers", "num_attention_heads", "norm_eps", "classifier_dropout"),
        "max_position_embeddings": "max_length",
    }
    constants = {
        **PRE_RMS_NORM,
        **dict.fromkeys(("attention_bias", "mlp_bias", "tie_word_embeddings"), False),
        "hidden_act": "silu",
        "hidden_dropout": 0.0,
    }
    output_matrix = "decoder.weight"
    heads = {
        "Model": Head(RoFormerLiteModel),
        "LMHead": Head(RoFormerLiteForMaskedLM, DECODER, lambda config: {"lm_head_bias": True}),
        "ForSequenceClassification": Head(
            RoFormerLiteForSequenceClassification,
            (WeightRule("dense.*", "classifier.dense.*"), *LINEAR),
            lambda config: WITH_INPUT_DROPOUT,
        ),
    }

    def class_name(self, head: str) -> str:
        return super().class_name("" if head == "Model" else head)

    def their_class(self, source_config: SourceConfig) -> type[PreTrainedModel]:
        return getattr(published_classes, self.architecture(source_config))

    def computed_fields(self, theirs: PreTrainedConfig) -> dict[str, Any]:
        return {"intermediate_size": theirs.inner_width, "initializer_range": theirs.decoder_init_range}

    def their_fields(self, ours: RoFormerLiteConfig) -> dict[str, Any]:
        dropout = ours.hidden_dropout if ours.classifier_dropout is None else ours.classifier_dropout
        return {"intermediate_size": 3 * ours.intermediate_size // 2, "classifier_dropout": dropout}

    def stack_rules(self, ours: RoFormerLiteConfig, source_config: SourceConfig) -> Rules:
        rows = PermuteForRope(ours.num_attention_heads)
        split = InTurn(SplitHeads(ours.num_attention_heads), (rows, rows, UNCHANGED))
        parts = tuple(f"{ATTENTION}.{part}_proj.weight" for part in "qkv")
        return (*RULES, WeightRule(f"{LAYER}.qkv.weight", parts, split))


CONVERTER = NeoBert()
