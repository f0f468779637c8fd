"""ELECTRA, all heads. The discriminator of its pre-training becomes a classification of tokens with one score."""

from typing import Any

from transformers import ElectraConfig, PreTrainedConfig

from hf_roformer_lite import (
    RoFormerLiteConfig,
    RoFormerLiteForCausalLM,
    RoFormerLiteForMaskedLM,
    RoFormerLiteForMultipleChoice,
    RoFormerLiteForSequenceClassification,
    RoFormerLiteForTokenClassification,
    RoFormerLiteModel,
)
from roformer_lite.errors import InputError

from .bert_family import (
    LM_FIELDS,
    POSITIONS,
    QUESTION_ANSWERING,
    TOKEN_CLASSIFICATION,
    WITH_INPUT_DROPOUT,
    BertFamilyConverter,
    embedding_and_layer_rules,
)
from .converter import SourceConfig
from .hugging_face import Head, Rules
from .roberta import DENSE_CLASSIFIER, require_gelu
from .weight_map import WeightRule

LM_HEAD = (
    WeightRule("generator_predictions.dense.*", "lm_transform.dense.*"),
    WeightRule("generator_predictions.LayerNorm.*", "lm_transform.norm.*"),
    WeightRule("generator_lm_head.bias", "lm_head.bias"),
)
DISCRIMINATOR = (
    WeightRule("discriminator_predictions.dense.*", "classifier.dense.*"),
    WeightRule("discriminator_predictions.dense_prediction.*", "classifier.out_proj.*"),
)
SUMMARY = (
    WeightRule("sequence_summary.summary.*", "classifier.dense.*"),
    WeightRule("classifier.*", "classifier.out_proj.*"),
)
COPY_OF_TIED = ("generator_lm_head.weight",)


def _lm_fields(theirs: PreTrainedConfig) -> dict[str, Any]:
    require_gelu(theirs.hidden_act)
    return LM_FIELDS


def _discriminator_fields(theirs: PreTrainedConfig) -> dict[str, Any]:
    return {"num_labels": 1, "id2label": None, "label2id": None, "classifier_activation": theirs.hidden_act} | {
        "classifier_dropout": 0.0
    }


def _summary_fields(theirs: PreTrainedConfig) -> dict[str, Any]:
    if theirs.summary_type != "first" or not theirs.summary_use_proj:
        raise InputError(
            f"summary_type={theirs.summary_type!r}, summary_use_proj={theirs.summary_use_proj}: only 'first' with a "
            "projection has an equivalent here"
        )
    fields = {"classifier_pooling": "cls", "classifier_activation": theirs.summary_activation}
    return fields | {"classifier_dropout": theirs.summary_last_dropout}


class Electra(BertFamilyConverter):
    """ELECTRA: BERT with a projection behind its embeddings."""

    name = "electra"
    prefix = "electra"
    config_class = ElectraConfig
    heads = {
        "Model": Head(RoFormerLiteModel),
        "ForPreTraining": Head(RoFormerLiteForTokenClassification, DISCRIMINATOR, _discriminator_fields),
        "ForMaskedLM": Head(RoFormerLiteForMaskedLM, LM_HEAD, _lm_fields, COPY_OF_TIED),
        "ForCausalLM": Head(RoFormerLiteForCausalLM, LM_HEAD, _lm_fields, COPY_OF_TIED),
        "ForSequenceClassification": Head(
            RoFormerLiteForSequenceClassification,
            DENSE_CLASSIFIER,
            lambda config: WITH_INPUT_DROPOUT | {"classifier_activation": "gelu"},
        ),
        "ForMultipleChoice": Head(RoFormerLiteForMultipleChoice, SUMMARY, _summary_fields),
        "ForTokenClassification": TOKEN_CLASSIFICATION,
        "ForQuestionAnswering": QUESTION_ANSWERING,
    }

    def computed_fields(self, theirs: PreTrainedConfig) -> dict[str, Any]:
        return super().computed_fields(theirs) | {"embedding_size": theirs.embedding_size}

    def their_fields(self, ours: RoFormerLiteConfig) -> dict[str, Any]:
        fields = {"embedding_size": ours.embedding_size, "summary_activation": ours.classifier_activation}
        return super().their_fields(ours) | {name: value for name, value in fields.items() if value is not None}

    def stack_rules(self, ours: RoFormerLiteConfig, source_config: SourceConfig) -> Rules:
        projection = WeightRule("embeddings_project.*", "embeddings.projection.*")
        return (*embedding_and_layer_rules(), POSITIONS, projection)

    def output_rules(self, ours: RoFormerLiteConfig) -> Rules:
        untied = (WeightRule("generator_lm_head.weight", "lm_head.weight"),)
        return () if ours.tie_word_embeddings else untied


CONVERTER = Electra()
