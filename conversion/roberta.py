"""RoBERTa, XLM-RoBERTa and CamemBERT, all heads.

Their positions begin behind the id of padding: the rows of the table up to it are never used and left out here.
"""

from dataclasses import replace
from typing import Any

from transformers import CamembertConfig, PreTrainedConfig, RobertaConfig, XLMRobertaConfig

from hf_roformer_lite import (
    RoFormerLiteConfig,
    RoFormerLiteForCausalLM,
    RoFormerLiteForMaskedLM,
    RoFormerLiteForMultipleChoice,
    RoFormerLiteForSequenceClassification,
    RoFormerLiteModel,
)
from roformer_lite.errors import InputError

from .bert_family import (
    BERT_FIELDS,
    LM_FIELDS,
    POOLED_FIELDS,
    POOLER,
    QUESTION_ANSWERING,
    TOKEN_CLASSIFICATION,
    WITH_INPUT_DROPOUT,
    BertFamilyConverter,
    embedding_and_layer_rules,
    pooled_classifier,
)
from .converter import SourceConfig
from .hugging_face import Head, Rules
from .weight_map import WeightRule
from .weight_operations import DropRows, Duplicates

TABLE = "embeddings.position_embeddings.weight"
LM_HEAD = (
    WeightRule("lm_head.dense.*", "lm_transform.dense.*"),
    WeightRule("lm_head.layer_norm.*", "lm_transform.norm.*"),
)
OUTPUT_BIAS = WeightRule("lm_head.bias", "lm_head.bias")
UNTIED_OUTPUT = (
    WeightRule("lm_head.decoder.weight", "lm_head.weight"),
    WeightRule(("lm_head.decoder.bias", "lm_head.bias"), "lm_head.bias", Duplicates()),
)
COPIES_OF_TIED = ("lm_head.decoder.weight", "lm_head.decoder.bias")
DENSE_CLASSIFIER = (
    WeightRule("classifier.dense.*", "classifier.dense.*"),
    WeightRule("classifier.out_proj.*", "classifier.out_proj.*"),
)


def lm_fields(theirs: PreTrainedConfig) -> dict[str, Any]:
    """The fields of a language model whose transform has gelu whatever the layers have."""
    require_gelu(theirs.hidden_act)
    return LM_FIELDS


def require_gelu(activation: str) -> None:
    """Refuse layers with another activation than the gelu of their language model's head.

    Raises:
        InputError: naming it.
    """
    if activation != "gelu":
        raise InputError(f"hidden_act={activation!r}: their LM head has 'gelu' in any case, ours what the layers have")


MASKED_LM = Head(RoFormerLiteForMaskedLM, LM_HEAD, lm_fields, COPIES_OF_TIED)
CAUSAL_LM = Head(RoFormerLiteForCausalLM, LM_HEAD, lm_fields, COPIES_OF_TIED)
SEQUENCE_CLASSIFICATION = Head(
    RoFormerLiteForSequenceClassification, DENSE_CLASSIFIER, lambda config: WITH_INPUT_DROPOUT
)


def roberta_heads(prefix: str) -> dict[str, Head]:
    """The heads of RoBERTa; checkpoints of one head may still hold the pooler."""
    pooler = f"{prefix}.pooler.dense.*"
    return {
        "Model": Head(RoFormerLiteModel, POOLER),
        "ForMaskedLM": MASKED_LM.ignoring(pooler),
        "ForCausalLM": CAUSAL_LM.ignoring(pooler),
        "ForSequenceClassification": SEQUENCE_CLASSIFICATION.ignoring(pooler),
        "ForMultipleChoice": replace(
            pooled_classifier(prefix, RoFormerLiteForMultipleChoice),
            config_fields=lambda config: POOLED_FIELDS | {"classifier_dropout": config.hidden_dropout_prob},
        ),
        "ForTokenClassification": TOKEN_CLASSIFICATION.ignoring(pooler),
        "ForQuestionAnswering": QUESTION_ANSWERING.ignoring(pooler),
    }


class Roberta(BertFamilyConverter):
    """RoBERTa and its relatives of the same shape."""

    name = "roberta"
    prefix = "roberta"
    config_class = RobertaConfig
    has_pooler = True
    fields = {ours: theirs for ours, theirs in BERT_FIELDS.items() if ours != "max_position_embeddings"}
    heads = roberta_heads("roberta")

    def computed_fields(self, theirs: PreTrainedConfig) -> dict[str, Any]:
        usable = theirs.max_position_embeddings - _unused_rows(theirs)
        return super().computed_fields(theirs) | {"max_position_embeddings": usable}

    def their_fields(self, ours: RoFormerLiteConfig) -> dict[str, Any]:
        rows = ours.max_position_embeddings + _unused_rows(ours)
        return super().their_fields(ours) | {"max_position_embeddings": rows}

    def stack_rules(self, ours: RoFormerLiteConfig, source_config: SourceConfig) -> Rules:
        return (*embedding_and_layer_rules(), WeightRule(TABLE, TABLE, DropRows(_unused_rows(ours))))

    def output_rules(self, ours: RoFormerLiteConfig) -> Rules:
        return (OUTPUT_BIAS,) if ours.tie_word_embeddings else UNTIED_OUTPUT


class XLMRoberta(Roberta):
    """XLM-R, and the many multilingual sentence encoders of its shape."""

    name = "xlm-roberta"
    config_class = XLMRobertaConfig


class Camembert(Roberta):
    """CamemBERT."""

    name = "camembert"
    config_class = CamembertConfig


def _unused_rows(config: PreTrainedConfig) -> int:
    if config.pad_token_id is None:
        raise InputError("pad_token_id=None: their positions begin behind the id of padding; give one")
    return config.pad_token_id + 1


CONVERTERS = (Roberta(), XLMRoberta(), Camembert())
