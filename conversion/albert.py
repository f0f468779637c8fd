"""ALBERT, all heads. Its layers share weights; here each layer has a copy, and a training makes them differ.

Their projection after the embeddings is there even where it changes no width; ours is not, and such a checkpoint is
refused.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from transformers import AlbertConfig

from hf_roformer_lite import RoFormerLiteConfig

from .bert import (
    EMBEDDINGS,
    ENCODER_FIELDS,
    LINEAR,
    LM_FIELDS,
    POOLED_FIELDS,
    POSITIONS,
    POST_NORM,
    QUESTION_ANSWERING,
    transform_rules,
)
from .converter import SourceConfig
from .hugging_face import Head, HuggingFaceConverter, dropout_of_classifier, same_names
from .weight_map import REPEAT, ConversionError, Rules, WeightRule, renamed

LAYER = {
    "attention.query.*": "self_attn.q_proj.*",
    "attention.key.*": "self_attn.k_proj.*",
    "attention.value.*": "self_attn.v_proj.*",
    "attention.dense.*": "self_attn.o_proj.*",
    "attention.LayerNorm.*": "self_attn_norm.*",
    "ffn.*": "mlp.up_proj.*",
    "ffn_output.*": "mlp.down_proj.*",
    "full_layer_layer_norm.*": "mlp_norm.*",
}
LEFTOVERS = ("albert.pooler.*", "sop_classifier.classifier.*")
LANGUAGE_MODEL = transform_rules("predictions.dense", "predictions.LayerNorm")
POOLED_CLASSIFIER = Head(
    (*renamed({"albert.pooler.*": "classifier.dense.*"}), *LINEAR),
    lambda theirs: POOLED_FIELDS | {"classifier_dropout": theirs.classifier_dropout_prob},
)


def groups_of_layers(layers: int, groups: int) -> list[list[int]]:
    """Which layers share their weights."""
    members = [[] for _ in range(groups)]
    for layer in range(layers):
        members[int(layer / (layers / groups))].append(layer)
    return members


def are_copies(weights: Mapping[str, torch.Tensor], members: Sequence[int]) -> bool:
    """Whether our layers `members` are equal."""
    first = f"layers.{members[0]}."
    return all(
        torch.equal(weights[name], weights[name.replace(first, f"layers.{layer}.")])
        for layer in members[1:]
        for name in weights
        if first in name
    )


class Albert(HuggingFaceConverter):
    """ALBERT, also with several groups of layers."""

    name = "albert"
    prefix = "albert"
    config_class = AlbertConfig
    has_pooler = True
    fields = {
        **ENCODER_FIELDS,
        **same_names("embedding_size", "hidden_act", "type_vocab_size", "max_position_embeddings"),
    }
    constants = {
        **POST_NORM,
        "position_embedding_type": "learned",
        "hidden_dropout_places": ["embeddings", "attention"],
    }
    rules = (
        *EMBEDDINGS,
        WeightRule(POSITIONS, POSITIONS),
        WeightRule("encoder.embedding_hidden_mapping_in.*", "embeddings.projection.*"),
    )
    ignored = ("embeddings.position_ids", "embeddings.token_type_ids")
    output_matrix = "predictions.decoder.weight"
    output_bias = "predictions.bias"
    heads = {
        "Model": Head(renamed({"pooler.*": "pooler.dense.*"})),
        "ForPreTraining": Head(LANGUAGE_MODEL, LM_FIELDS, LEFTOVERS, becomes="ForMaskedLM"),
        "ForMaskedLM": Head(LANGUAGE_MODEL, LM_FIELDS, LEFTOVERS),
        "ForSequenceClassification": POOLED_CLASSIFIER,
        "ForMultipleChoice": POOLED_CLASSIFIER,
        "ForTokenClassification": Head(
            LINEAR, lambda theirs: {"classifier_dropout": theirs.classifier_dropout_prob}, LEFTOVERS
        ),
        "ForQuestionAnswering": QUESTION_ANSWERING.ignoring(*LEFTOVERS),
    }

    def computed_fields(self, theirs: AlbertConfig) -> dict[str, Any]:
        if theirs.embedding_size == theirs.hidden_size:
            raise ConversionError(
                f"embedding_size={theirs.embedding_size} is hidden_size: ALBERT has a projection between the two in "
                "any case, ours only where they differ"
            )
        if theirs.inner_group_num != 1:
            raise ConversionError(
                f"inner_group_num={theirs.inner_group_num}: only groups of one layer can be converted"
            )
        return {}

    def their_fields(self, ours: RoFormerLiteConfig) -> dict[str, Any]:
        return {"classifier_dropout_prob": dropout_of_classifier(ours)}

    def settle(self, theirs: AlbertConfig, weights: Mapping[str, torch.Tensor]) -> None:
        """As few groups as the layers allow: after a training here each layer is one of its own."""
        layers = theirs.num_hidden_layers
        theirs.num_hidden_groups = next(
            groups
            for groups in range(1, layers + 1)
            if all(are_copies(weights, members) for members in groups_of_layers(layers, groups))
        )

    def stack_rules(self, ours: RoFormerLiteConfig, source_config: SourceConfig) -> Rules:
        groups = groups_of_layers(ours.num_hidden_layers, source_config.get("num_hidden_groups", 1))
        layers = (
            WeightRule(
                f"encoder.albert_layer_groups.{group}.albert_layers.0.{theirs}",
                tuple(f"layers.{layer}.{name}" for layer in members),
                REPEAT,
            )
            for group, members in enumerate(groups)
            for theirs, name in LAYER.items()
        )
        return (*self.rules, *layers)


CONVERTERS = (Albert(),)
