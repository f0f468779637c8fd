"""HF BERT, all heads.

Example:
    >>> model = convert("bert", hf_model.state_dict(), hf_model.config.to_dict())

BERT counts positions over every place of a row, ours over the real tokens: rows padded on the left are right here.
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

from .bert_family import CAUSAL_LM, MASKED_LM, QUESTIONS, TOKEN_CLASSES, BertLayoutConverter, Head, stack_names
from .converter import SourceConfig
from .weight_map import Name

POOLED = (Name("bert.pooler.dense.*", "classifier.dense.*"), Name("classifier.*", "classifier.out_proj.*"))
NEXT_SENTENCE = (POOLED[0], Name("cls.seq_relationship.*", "classifier.out_proj.*"))
# Checkpoints for one thing usually carry what pre-training had beside it.
OF_PRETRAINING = ("bert.pooler.dense.*", "cls.seq_relationship.*")
OF_THE_LM_HEAD = ("cls.predictions.*", "cls.predictions.transform.dense.*", "cls.predictions.transform.LayerNorm.*")


def _pooled_fields(theirs: PreTrainedConfig) -> dict[str, Any]:
    return {"classifier_pooling": "cls", "classifier_activation": "tanh"}


def _with_leftovers(head: Head) -> Head:
    return Head(head.model_class, head.names, head.fields, (*head.dropped, *OF_PRETRAINING))


class Bert(BertLayoutConverter):
    """`config`: BertConfig's fields, `architectures` for the head. The pre-training class becomes its masked language
    model, the next-sentence class a sequence classification."""

    name = "bert"
    prefix = "bert"
    config_class = BertConfig
    dropped = ("embeddings.position_ids",)
    heads = {
        "Model": Head(RoFormerLiteModel, (Name("pooler.dense.*", "pooler.dense.*"),)),
        "ForPreTraining": _with_leftovers(MASKED_LM),
        "ForMaskedLM": _with_leftovers(MASKED_LM),
        "LMHeadModel": _with_leftovers(CAUSAL_LM),
        "ForNextSentencePrediction": Head(
            RoFormerLiteForSequenceClassification, NEXT_SENTENCE, _pooled_fields, OF_THE_LM_HEAD
        ),
        "ForSequenceClassification": Head(RoFormerLiteForSequenceClassification, POOLED, _pooled_fields),
        "ForMultipleChoice": Head(RoFormerLiteForMultipleChoice, POOLED, _pooled_fields),
        "ForTokenClassification": Head(TOKEN_CLASSES.model_class, TOKEN_CLASSES.names, dropped=OF_PRETRAINING),
        "ForQuestionAnswering": Head(QUESTIONS.model_class, QUESTIONS.names, dropped=OF_PRETRAINING),
    }

    def config(self, source: SourceConfig) -> RoFormerLiteConfig:
        kind = source.get("position_embedding_type", "absolute")
        if kind != "absolute":
            raise InputError(f"position_embedding_type={kind!r}: only BERT's 'absolute' positions can be carried over")
        config = super().config(source)
        if self.head(source).model_class is RoFormerLiteModel:
            config.add_pooling_layer = source.get("add_pooling_layer", True)
        return config

    def complete(self, source: SourceConfig, state_dict: Mapping[str, torch.Tensor]) -> dict[str, Any]:
        has_pooler = any(name.startswith("pooler.") for name in state_dict)
        return super().complete(source, state_dict) | {"add_pooling_layer": has_pooler}

    def reference(self, source: SourceConfig) -> nn.Module:
        reference = super().reference(source)
        if isinstance(reference, BertModel) and not source.get("add_pooling_layer", True):
            reference.pooler = None
        return reference

    def stack_config(self, theirs: PreTrainedConfig) -> dict[str, Any]:
        return {"position_embedding_type": "learned", "classifier_dropout": theirs.classifier_dropout}

    def stack_rows(self, config: RoFormerLiteConfig) -> tuple[Name, ...]:
        return (*stack_names(), Name("embeddings.position_embeddings.weight", "embeddings.position_embeddings.weight"))


CONVERTER = Bert()
