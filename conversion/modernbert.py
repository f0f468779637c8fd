"""ModernBERT (also mmBERT, Ettin's encoders, gte-modernbert, granite-embedding-english-r2) and its decoder (Ettin's).

Dropout behind the projection of their attention is that of the probabilities; here there is none behind it. With the
probability of all published checkpoints, which is zero, nothing differs.
"""

from typing import Any

from transformers import ModernBertConfig, ModernBertDecoderConfig, PreTrainedConfig, PreTrainedModel

from hf_roformer_lite import (
    RoFormerLiteConfig,
    RoFormerLiteForCausalLM,
    RoFormerLiteForMaskedLM,
    RoFormerLiteForMultipleChoice,
    RoFormerLiteForQuestionAnswering,
    RoFormerLiteForSequenceClassification,
    RoFormerLiteForTokenClassification,
    RoFormerLiteModel,
)
from roformer_lite.errors import InputError

from .bert_family import LINEAR
from .converter import SourceConfig
from .hugging_face import COMMON_FIELDS, Head, HuggingFaceConverter, Rules, same_names
from .llama import LAYER_TYPES, with_bias_of_zeros
from .rope_fields import own_rope, rope_by_layer_type
from .weight_map import WeightMap, WeightRule
from .weight_operations import Chunk

NAMES = (
    ("attn_norm.*", "self_attn_norm.*"),
    ("attn.Wo.*", "self_attn.o_proj.*"),
    ("mlp_norm.*", "mlp_norm.*"),
    ("mlp.Wo.*", "mlp.down_proj.*"),
)
FUSED = WeightRule("layers.{i}.attn.Wqkv.*", tuple(f"layers.{{i}}.self_attn.{part}_proj.*" for part in "qkv"), Chunk())
APART = tuple(
    WeightRule(f"layers.{{i}}.attn.{part}_proj.*", f"layers.{{i}}.self_attn.{part}_proj.*") for part in "qkv"
)
STACK = (
    WeightRule("embeddings.tok_embeddings.weight", "embeddings.word_embeddings.weight"),
    WeightRule("embeddings.norm.*", "embeddings.norm.*"),
    *(WeightRule(f"layers.{{i}}.{theirs}", f"layers.{{i}}.{ours}") for theirs, ours in NAMES),
    WeightRule("layers.{i}.mlp.Wi.*", ("layers.{i}.mlp.gate_proj.*", "layers.{i}.mlp.up_proj.*"), Chunk()),
    WeightRule("final_norm.*", "final_norm.*"),
)
LM_OUTPUT = (WeightRule("decoder.bias", "lm_head.bias"),)
CLASSIFIER = (
    WeightRule("head.dense.*", "classifier.dense.*"),
    WeightRule("head.norm.*", "classifier.norm.*"),
    *LINEAR,
)


def lm_head(model_class: type[PreTrainedModel], theirs: str) -> Head:
    """A language model whose transform is called `theirs`."""
    rules = (
        WeightRule(f"{theirs}.dense.*", "lm_transform.dense.*"),
        WeightRule(f"{theirs}.norm.*", "lm_transform.norm.*"),
        *LM_OUTPUT,
    )
    return Head(model_class, rules, _lm_fields, ("decoder.weight",))


def _lm_fields(theirs: PreTrainedConfig) -> dict[str, Any]:
    if theirs.classifier_activation != theirs.hidden_activation:
        raise InputError(
            f"classifier_activation={theirs.classifier_activation!r}: a language model here has that of the layers, "
            f"hidden_activation={theirs.hidden_activation!r}, before its output"
        )
    return {"lm_head_transform": True, "lm_head_bias": theirs.decoder_bias}


def _classifier_fields(theirs: PreTrainedConfig) -> dict[str, Any]:
    fields = {"classifier_activation": theirs.classifier_activation, "classifier_norm": True}
    return fields | {"classifier_pooling": getattr(theirs, "classifier_pooling", "last")}


class ModernBert(HuggingFaceConverter):
    """ModernBERT and all encoders of its type."""

    name = "modernbert"
    prefix = "model"
    config_class = ModernBertConfig
    fields = {
        **same_names(*COMMON_FIELDS, "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size"),
        **same_names("norm_eps", "norm_bias", "attention_bias", "mlp_bias", "mlp_dropout", "attention_dropout"),
        **same_names("layer_types", "max_position_embeddings"),
        "hidden_act": "hidden_activation",
        "hidden_dropout": "embedding_dropout",
        "head_bias": "classifier_bias",
    }
    constants = {
        "norm_placement": "pre",
        "final_norm": True,
        "embedding_norm": True,
        "first_attention_norm": False,
        "gated_mlp": True,
        "hidden_dropout_places": ["embeddings"],
    }
    output_matrix = "decoder.weight"
    heads = {
        "Model": Head(RoFormerLiteModel),
        "ForMaskedLM": lm_head(RoFormerLiteForMaskedLM, "head"),
        "ForSequenceClassification": Head(RoFormerLiteForSequenceClassification, CLASSIFIER, _classifier_fields),
        "ForTokenClassification": Head(RoFormerLiteForTokenClassification, CLASSIFIER, _classifier_fields),
        "ForQuestionAnswering": Head(RoFormerLiteForQuestionAnswering, CLASSIFIER, _classifier_fields),
        "ForMultipleChoice": Head(RoFormerLiteForMultipleChoice, CLASSIFIER, _classifier_fields),
    }
    query_rules: Rules = (FUSED,)

    def computed_fields(self, theirs: PreTrainedConfig) -> dict[str, Any]:
        return {
            "rope_parameters": own_rope(theirs.rope_parameters, theirs.layer_types),
            "sliding_window": theirs.local_attention // 2,
            "classifier_dropout": theirs.classifier_dropout,
        }

    def their_fields(self, ours: RoFormerLiteConfig) -> dict[str, Any]:
        dropout = ours.hidden_dropout if ours.classifier_dropout is None else ours.classifier_dropout
        fields = {
            "rope_parameters": rope_by_layer_type(ours, LAYER_TYPES),
            "local_attention": 2 * (ours.sliding_window or 1),
            "classifier_activation": ours.classifier_activation or ours.hidden_act,
            "classifier_dropout": dropout,
            "decoder_bias": ours.lm_head_bias,
            "cls_token_id": ours.bos_token_id,
            "sep_token_id": ours.eos_token_id,
        }
        is_known = ours.classifier_pooling in ("cls", "mean")
        return fields | ({"classifier_pooling": ours.classifier_pooling} if is_known else {})

    def stack_rules(self, ours: RoFormerLiteConfig, source_config: SourceConfig) -> Rules:
        return (*STACK, *self.query_rules)


class ModernBertDecoder(ModernBert):
    """Ettin's decoders: the same layers, causal."""

    name = "modernbert-decoder"
    config_class = ModernBertDecoderConfig
    fields = {**ModernBert.fields, **same_names("use_cache")}
    constants = {**ModernBert.constants, "is_decoder": True}
    heads = {
        "Model": Head(RoFormerLiteModel),
        "ForCausalLM": lm_head(RoFormerLiteForCausalLM, "lm_head"),
        "ForSequenceClassification": Head(
            RoFormerLiteForSequenceClassification,
            CLASSIFIER,
            lambda config: _classifier_fields(config) | {"classifier_pooling": "last"},
        ),
    }
    query_rules = APART

    def their_fields(self, ours: RoFormerLiteConfig) -> dict[str, Any]:
        fields = super().their_fields(ours)
        fields.pop("classifier_pooling", None)
        return fields

    def weight_map(self, our_config: RoFormerLiteConfig, source_config: SourceConfig) -> WeightMap:
        weight_map = super().weight_map(our_config, source_config)
        if our_config.head_bias:
            return weight_map
        bias_free = WeightRule("classifier.weight", "classifier.out_proj.weight")
        rules = [bias_free if rule in LINEAR else rule for rule in weight_map.rules]
        weight_map.rules = rules
        return with_bias_of_zeros(weight_map, our_config.num_labels, bias_free)


CONVERTERS = (ModernBert(), ModernBertDecoder())
