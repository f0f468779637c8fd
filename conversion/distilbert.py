"""DistilBERT, all heads."""

from dataclasses import replace
from typing import Any

from transformers import DistilBertConfig

from hf_roformer_lite import (
    RoFormerLiteConfig,
    RoFormerLiteForMaskedLM,
    RoFormerLiteForMultipleChoice,
    RoFormerLiteForSequenceClassification,
    RoFormerLiteModel,
)

from .bert_family import LM_FIELDS, POSITIONS, POST_NORM, QUESTION_ANSWERING, TOKEN_CLASSIFICATION
from .converter import SourceConfig
from .hugging_face import COMMON_FIELDS, Head, HuggingFaceConverter, Rules, same_names
from .weight_map import WeightRule

LAYER = "transformer.layer.{i}"
RULES = (
    WeightRule("embeddings.word_embeddings.weight", "embeddings.word_embeddings.weight"),
    POSITIONS,
    WeightRule("embeddings.LayerNorm.*", "embeddings.norm.*"),
    *(WeightRule(f"{LAYER}.attention.{part}_lin.*", f"layers.{{i}}.self_attn.{part}_proj.*") for part in "qkv"),
    WeightRule(f"{LAYER}.attention.out_lin.*", "layers.{i}.self_attn.o_proj.*"),
    WeightRule(f"{LAYER}.sa_layer_norm.*", "layers.{i}.self_attn_norm.*"),
    WeightRule(f"{LAYER}.ffn.lin1.*", "layers.{i}.mlp.up_proj.*"),
    WeightRule(f"{LAYER}.ffn.lin2.*", "layers.{i}.mlp.down_proj.*"),
    WeightRule(f"{LAYER}.output_layer_norm.*", "layers.{i}.mlp_norm.*"),
)
LM_HEAD = (
    WeightRule("vocab_transform.*", "lm_transform.dense.*"),
    WeightRule("vocab_layer_norm.*", "lm_transform.norm.*"),
    WeightRule("vocab_projector.bias", "lm_head.bias"),
)
CLASSIFIER = (
    WeightRule("pre_classifier.*", "classifier.dense.*"),
    WeightRule("classifier.*", "classifier.out_proj.*"),
)


def _classifier_fields(theirs: DistilBertConfig) -> dict[str, Any]:
    fields = {"classifier_pooling": "cls", "classifier_activation": "relu"}
    return fields | {"classifier_dropout": theirs.seq_classif_dropout}


class DistilBert(HuggingFaceConverter):
    """DistilBERT: BERT without segments, and an eps of its own."""

    name = "distilbert"
    prefix = "distilbert"
    config_class = DistilBertConfig
    fields = {
        **same_names(*COMMON_FIELDS, "max_position_embeddings", "attention_dropout"),
        "hidden_size": "dim",
        "num_hidden_layers": "n_layers",
        "num_attention_heads": "n_heads",
        "intermediate_size": "hidden_dim",
        "hidden_act": "activation",
        "hidden_dropout": "dropout",
    }
    constants = {
        **POST_NORM,
        "position_embedding_type": "learned",
        "norm_eps": 1e-12,
        "hidden_dropout_places": ["embeddings", "mlp"],
    }
    output_matrix = "vocab_projector.weight"
    heads = {
        "Model": Head(RoFormerLiteModel),
        "ForMaskedLM": Head(RoFormerLiteForMaskedLM, LM_HEAD, lambda config: LM_FIELDS, (output_matrix,)),
        "ForSequenceClassification": Head(RoFormerLiteForSequenceClassification, CLASSIFIER, _classifier_fields),
        "ForMultipleChoice": Head(RoFormerLiteForMultipleChoice, CLASSIFIER, _classifier_fields),
        "ForTokenClassification": TOKEN_CLASSIFICATION,
        "ForQuestionAnswering": replace(
            QUESTION_ANSWERING, config_fields=lambda config: {"classifier_dropout": config.qa_dropout}
        ),
    }

    def stack_rules(self, ours: RoFormerLiteConfig, source_config: SourceConfig) -> Rules:
        return RULES


CONVERTER = DistilBert()
