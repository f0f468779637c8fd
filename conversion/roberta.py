"""RoBERTa, XLM-RoBERTa and CamemBERT, all heads.

Their positions begin after the id of padding: the rows of the table up to it are never used and left out here.
"""

from dataclasses import replace
from typing import Any

from transformers import CamembertConfig, PreTrainedConfig, RobertaConfig, XLMRobertaConfig

from hf_roformer_lite import RoFormerLiteConfig

from .bert import (
    DENSE_CLASSIFIER,
    POOLED_FIELDS,
    POOLER,
    POSITIONS,
    QUESTION_ANSWERING,
    STACK,
    TOKEN_CLASSIFICATION,
    WITH_INPUT_DROPOUT,
    BertFamilyConverter,
    gelu_lm_fields,
    pooled_classifier,
    transform_rules,
)
from .converter import SourceConfig
from .hugging_face import Head
from .weight_map import ConversionError, Rules, WeightRule, drop_rows

LM_TRANSFORM = transform_rules("lm_head.dense", "lm_head.layer_norm")
LANGUAGE_MODEL = Head(LM_TRANSFORM, gelu_lm_fields)
SEQUENCE_CLASSIFICATION = Head(DENSE_CLASSIFIER, WITH_INPUT_DROPOUT)
UNREAD = "roberta.pooler.dense.*"  # checkpoints of one head may still hold the pooler


class Roberta(BertFamilyConverter):
    """RoBERTa and its relatives of the same shape."""

    name = "roberta"
    prefix = "roberta"
    config_class = RobertaConfig
    has_pooler = True
    fields = {ours: theirs for ours, theirs in BertFamilyConverter.fields.items() if ours != "max_position_embeddings"}
    output_matrix = "lm_head.decoder.weight"
    output_bias = "lm_head.bias"
    heads = {
        "Model": Head(POOLER),
        "ForMaskedLM": LANGUAGE_MODEL.ignoring(UNREAD),
        "ForCausalLM": LANGUAGE_MODEL.ignoring(UNREAD),
        "ForSequenceClassification": SEQUENCE_CLASSIFICATION.ignoring(UNREAD),
        "ForMultipleChoice": replace(
            pooled_classifier("roberta"),
            fields=lambda theirs: POOLED_FIELDS | {"classifier_dropout": theirs.hidden_dropout_prob},
        ),
        "ForTokenClassification": TOKEN_CLASSIFICATION.ignoring(UNREAD),
        "ForQuestionAnswering": QUESTION_ANSWERING.ignoring(UNREAD),
    }

    def computed_fields(self, theirs: PreTrainedConfig) -> dict[str, Any]:
        return {"max_position_embeddings": theirs.max_position_embeddings - _unused_rows(theirs)}

    def their_fields(self, ours: RoFormerLiteConfig) -> dict[str, Any]:
        return {"max_position_embeddings": ours.max_position_embeddings + _unused_rows(ours)}

    def stack_rules(self, ours: RoFormerLiteConfig, source_config: SourceConfig) -> Rules:
        return (*STACK, WeightRule(POSITIONS, POSITIONS, drop_rows(_unused_rows(ours))))


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
        raise ConversionError("pad_token_id=None: their positions begin after the id of padding; give one")
    return config.pad_token_id + 1


CONVERTERS = (Roberta(), XLMRoberta(), Camembert())
