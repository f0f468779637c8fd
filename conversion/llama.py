"""Llama (also SmolLM and others of its shape), Qwen2, EuroBERT and UltraBERT: pre-norm, RMSNorm, a gated feed-forward.

Llama and Qwen2 become causal models, EuroBERT and UltraBERT encoders.
"""

from dataclasses import replace
from typing import Any

from transformers import EuroBertConfig, LlamaConfig, PreTrainedConfig, Qwen2Config, UltrabertConfig

from hf_roformer_lite import (
    RoFormerLiteConfig,
    RoFormerLiteForCausalLM,
    RoFormerLiteForMaskedLM,
    RoFormerLiteForSequenceClassification,
    RoFormerLiteForTokenClassification,
    RoFormerLiteModel,
)

from .bert_family import LINEAR, QUESTION_ANSWERING, TOKEN_CLASSIFICATION
from .converter import SourceConfig
from .hugging_face import COMMON_FIELDS, Head, HuggingFaceConverter, Rules, same_names
from .rope_fields import own_rope, plain_rope, rope_by_layer_type
from .stored_names import StoredNames
from .weight_map import WeightMap, WeightRule
from .weight_operations import Constant

LAYER_TYPES = ("full_attention", "sliding_attention")
RULES = (
    WeightRule("embed_tokens.weight", "embeddings.word_embeddings.weight"),
    *(WeightRule(f"layers.{{i}}.self_attn.{part}_proj.*", f"layers.{{i}}.self_attn.{part}_proj.*") for part in "qkvo"),
    *(WeightRule(f"layers.{{i}}.mlp.{m}_proj.*", f"layers.{{i}}.mlp.{m}_proj.*") for m in ("gate", "up", "down")),
    WeightRule("layers.{i}.input_layernorm.weight", "layers.{i}.self_attn_norm.weight"),
    WeightRule("layers.{i}.post_attention_layernorm.weight", "layers.{i}.mlp_norm.weight"),
    WeightRule("norm.weight", "final_norm.weight"),
)
PRE_RMS_NORM = {"norm_type": "rmsnorm", "norm_placement": "pre", "final_norm": True, "gated_mlp": True}
LAYER_FIELDS = {
    **same_names("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads"),
    **same_names("intermediate_size", "hidden_act", "max_position_embeddings", "attention_dropout"),
    "norm_eps": "rms_norm_eps",
}
LM_OUTPUT = "lm_head.weight"
SCORE = WeightRule("score.weight", "classifier.out_proj.weight")


class LlamaFamilyConverter(HuggingFaceConverter):
    """A source with Llama's names."""

    prefix = "model"
    output_matrix = LM_OUTPUT
    fields = {**same_names(*COMMON_FIELDS, "head_dim", "attention_bias", "mlp_bias"), **LAYER_FIELDS}
    ignored = ("rotary_emb.inv_freq", "layers.{i}.self_attn.rotary_emb.inv_freq")

    def computed_fields(self, theirs: PreTrainedConfig) -> dict[str, Any]:
        return {"rope_parameters": theirs.rope_parameters, "hidden_dropout": 0.0}

    def their_fields(self, ours: RoFormerLiteConfig) -> dict[str, Any]:
        return {"rope_parameters": plain_rope(ours)}

    def stack_rules(self, ours: RoFormerLiteConfig, source_config: SourceConfig) -> Rules:
        return RULES


class Llama(LlamaFamilyConverter):
    """Llama 1 to 3, SmolLM, TinyLlama and other causal models of this shape."""

    name = "llama"
    config_class = LlamaConfig
    fields = {**LlamaFamilyConverter.fields, **same_names("use_cache")}
    constants = {**PRE_RMS_NORM, "is_decoder": True}
    heads = {
        "Model": Head(RoFormerLiteModel),
        "ForCausalLM": Head(RoFormerLiteForCausalLM, ignored=(LM_OUTPUT,)),
        "ForSequenceClassification": Head(
            RoFormerLiteForSequenceClassification, (SCORE,), lambda config: {"classifier_pooling": "last"}
        ),
        "ForTokenClassification": Head(
            RoFormerLiteForTokenClassification,
            (WeightRule("score.*", "classifier.out_proj.*"),),
            lambda config: {"classifier_dropout": 0.1},
        ),
        "ForQuestionAnswering": replace(QUESTION_ANSWERING, prefix="transformer"),
    }

    def weight_map(self, our_config: RoFormerLiteConfig, source_config: SourceConfig) -> WeightMap:
        return with_bias_of_zeros(super().weight_map(our_config, source_config), our_config.num_labels)


class Qwen2(Llama):
    """Qwen 2 and 2.5: Llama with biases of queries, keys and values, and windows in some layers if it says so."""

    name = "qwen2"
    config_class = Qwen2Config
    fields = {**same_names(*COMMON_FIELDS, "use_cache", "layer_types"), **LAYER_FIELDS}
    constants = {**Llama.constants, "attention_bias": ["q", "k", "v"], "mlp_bias": False}

    def computed_fields(self, theirs: Qwen2Config) -> dict[str, Any]:
        return super().computed_fields(theirs) | {"sliding_window": theirs.sliding_window}

    def their_fields(self, ours: RoFormerLiteConfig) -> dict[str, Any]:
        has_windows = "sliding_attention" in ours.layer_types
        windows = {"use_sliding_window": has_windows, "sliding_window": ours.sliding_window}
        return super().their_fields(ours) | (windows if has_windows else {"use_sliding_window": False})


class EuroBert(LlamaFamilyConverter):
    """EuroBERT: Llama's layers as an encoder."""

    name = "eurobert"
    config_class = EuroBertConfig
    constants = PRE_RMS_NORM
    heads = {
        "Model": Head(RoFormerLiteModel),
        "ForMaskedLM": Head(
            RoFormerLiteForMaskedLM,
            (WeightRule("lm_head.bias", "lm_head.bias"),),
            lambda config: {"lm_head_bias": config.mlp_bias},
            (LM_OUTPUT,),
        ),
        "ForSequenceClassification": Head(
            RoFormerLiteForSequenceClassification,
            (WeightRule("dense.*", "classifier.dense.*"), *LINEAR),
            lambda config: {
                "classifier_pooling": POOLING[config.classifier_pooling],
                "classifier_activation": "gelu",
                "classifier_dropout": 0.0,
            },
        ),
        "ForTokenClassification": Head(
            RoFormerLiteForTokenClassification, LINEAR, lambda config: {"classifier_dropout": 0.0}
        ),
    }

    def their_fields(self, ours: RoFormerLiteConfig) -> dict[str, Any]:
        pooling = {our: theirs for theirs, our in POOLING.items()}.get(ours.classifier_pooling, "mean")
        return super().their_fields(ours) | {"classifier_pooling": pooling}


POOLING = {"bos": "cls", "mean": "mean", "late": "late"}  # EuroBERT's names and ours


class UltraBert(LlamaFamilyConverter):
    """UltraBERT: EuroBERT with windows in most layers, and rotations by the type of layer."""

    name = "ultrabert"
    config_class = UltrabertConfig
    fields = {**LlamaFamilyConverter.fields, **same_names("layer_types", "sliding_window", "classifier_dropout")}
    constants = PRE_RMS_NORM
    heads = {
        "Model": Head(RoFormerLiteModel),
        "ForSequenceClassification": Head(
            RoFormerLiteForSequenceClassification,
            LINEAR,
            lambda config: {"classifier_pooling": config.classifier_pooling},
        ),
        "ForTokenClassification": TOKEN_CLASSIFICATION,
        "ForQuestionAnswering": QUESTION_ANSWERING,
    }
    refused = {"ForMaskedLM": "it has two matrices before its output, where a masked language model here has one"}
    stored_names = StoredNames({r"^ultrabert\.": "model."})

    def computed_fields(self, theirs: UltrabertConfig) -> dict[str, Any]:
        rope = own_rope(theirs.rope_parameters, theirs.layer_types)
        return super().computed_fields(theirs) | {"rope_parameters": rope}

    def their_fields(self, ours: RoFormerLiteConfig) -> dict[str, Any]:
        fields = {"rope_parameters": rope_by_layer_type(ours, LAYER_TYPES), "sliding_window": ours.sliding_window or 1}
        return fields | {"classifier_pooling": ours.classifier_pooling, "classifier_dropout": _dropout(ours)}


def _dropout(ours: RoFormerLiteConfig) -> float:
    return ours.hidden_dropout if ours.classifier_dropout is None else ours.classifier_dropout


def with_bias_of_zeros(weight_map: WeightMap, num_labels: int, weight: WeightRule = SCORE) -> WeightMap:
    """The same table, for a classifier without a bias, if it has the rule `weight`; here that is a bias of zeros."""
    if weight in weight_map.rules:
        zeros = WeightRule((), "classifier.out_proj.bias", Constant(0.0, num_labels))
        weight_map.rules = [*weight_map.rules, zeros]
    return weight_map


CONVERTERS = (Llama(), Qwen2(), EuroBert(), UltraBert())
