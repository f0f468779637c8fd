"""HF BERT, all heads.

Example:
    >>> model = convert("bert", hf_model.state_dict(), hf_model.config.to_dict())

BERT counts every position of a row, ours only the real tokens: in rows padded on the left each token keeps the
position that it has without padding.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from transformers import BertConfig, BertModel, PreTrainedConfig

from hf_roformer_lite import (
    RoFormerLiteConfig,
    RoFormerLiteForMultipleChoice,
    RoFormerLiteForSequenceClassification,
    RoFormerLiteModel,
)
from hf_roformer_lite.errors import InputError

from .bert_family import (
    CAUSAL_LM,
    MASKED_LM,
    QUESTION_ANSWERING,
    TOKEN_CLASSIFICATION,
    BertFamilyConverter,
    embedding_and_layer_rules,
)
from .converter import SourceConfig
from .hugging_face import Head
from .weight_map import WeightRule

POOLER = WeightRule("bert.pooler.dense.*", "classifier.dense.*")
POOLED_CLASSIFIER = (POOLER, WeightRule("classifier.*", "classifier.out_proj.*"))
NEXT_SENTENCE = (POOLER, WeightRule("cls.seq_relationship.*", "classifier.out_proj.*"))
# Checkpoints of one head usually still hold the other heads of pre-training.
PRETRAINING_LEFTOVERS = ("bert.pooler.dense.*", "cls.seq_relationship.*")
LM_HEAD_TENSORS = ("cls.predictions.*", "cls.predictions.transform.dense.*", "cls.predictions.transform.LayerNorm.*")


def _pooled_fields(theirs: PreTrainedConfig) -> dict[str, Any]:
    return {"classifier_pooling": "cls", "classifier_activation": "tanh"}


def _ignoring_leftovers(head: Head) -> Head:
    return Head(head.model_class, head.rules, head.config_fields, (*head.ignored, *PRETRAINING_LEFTOVERS))


class Bert(BertFamilyConverter):
    """Config: the fields of BertConfig, with `architectures` for the head. The pre-training class becomes its masked
    language model, the next-sentence class a sequence classification."""

    name = "bert"
    prefix = "bert"
    config_class = BertConfig
    ignored = ("embeddings.position_ids",)
    heads = {
        "Model": Head(RoFormerLiteModel, (WeightRule("pooler.dense.*", "pooler.dense.*"),)),
        "ForPreTraining": _ignoring_leftovers(MASKED_LM),
        "ForMaskedLM": _ignoring_leftovers(MASKED_LM),
        "LMHeadModel": _ignoring_leftovers(CAUSAL_LM),
        "ForNextSentencePrediction": Head(
            RoFormerLiteForSequenceClassification, NEXT_SENTENCE, _pooled_fields, LM_HEAD_TENSORS
        ),
        "ForSequenceClassification": Head(RoFormerLiteForSequenceClassification, POOLED_CLASSIFIER, _pooled_fields),
        "ForMultipleChoice": Head(RoFormerLiteForMultipleChoice, POOLED_CLASSIFIER, _pooled_fields),
        "ForTokenClassification": _ignoring_leftovers(TOKEN_CLASSIFICATION),
        "ForQuestionAnswering": _ignoring_leftovers(QUESTION_ANSWERING),
    }

    def our_config(self, source_config: SourceConfig) -> RoFormerLiteConfig:
        kind = source_config.get("position_embedding_type", "absolute")
        if kind != "absolute":
            raise InputError(f"position_embedding_type={kind!r}: only BERT's 'absolute' positions can be converted")
        config = super().our_config(source_config)
        if self.head(source_config).model_class is RoFormerLiteModel:
            config.add_pooling_layer = source_config.get("add_pooling_layer", True)
        return config

    def complete_config(self, source_config: SourceConfig, state_dict: Mapping[str, torch.Tensor]) -> dict[str, Any]:
        has_pooler = any(name.startswith("pooler.") for name in state_dict)
        return super().complete_config(source_config, state_dict) | {"add_pooling_layer": has_pooler}

    def build_reference(self, source_config: SourceConfig) -> nn.Module:
        reference = super().build_reference(source_config)
        if isinstance(reference, BertModel) and not source_config.get("add_pooling_layer", True):
            reference.pooler = None
        return reference

    def stack_fields(self, theirs: PreTrainedConfig) -> dict[str, Any]:
        return {"position_embedding_type": "learned", "classifier_dropout": theirs.classifier_dropout}

    def stack_rules(self, our_config: RoFormerLiteConfig) -> tuple[WeightRule, ...]:
        positions = WeightRule("embeddings.position_embeddings.weight", "embeddings.position_embeddings.weight")
        return (*embedding_and_layer_rules(), positions)


CONVERTER = Bert()
