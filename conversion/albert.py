"""ALBERT, all heads. Its layers share weights; here each layer has a copy, and a training makes them differ.

Their projection behind the embeddings is there even where it changes no width; ours is not, and such a checkpoint is
refused.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from transformers import AlbertConfig, PreTrainedModel

from hf_roformer_lite import (
    RoFormerLiteConfig,
    RoFormerLiteForMaskedLM,
    RoFormerLiteForMultipleChoice,
    RoFormerLiteForSequenceClassification,
    RoFormerLiteForTokenClassification,
    RoFormerLiteModel,
)
from roformer_lite.errors import InputError

from .bert_family import EMBEDDINGS, ENCODER_FIELDS, LINEAR, LM_FIELDS, POOLED_FIELDS, POSITIONS, POST_NORM
from .bert_family import QUESTION_ANSWERING as LINEAR_ON_TOKENS
from .converter import SourceConfig
from .hugging_face import Head, HuggingFaceConverter, Rules, same_names
from .weight_map import WeightRule
from .weight_operations import Duplicates, Repeat

LAYER = (
    *((f"attention.{part}.*", f"self_attn.{part[0]}_proj.*") for part in ("query", "key", "value")),
    ("attention.dense.*", "self_attn.o_proj.*"),
    ("attention.LayerNorm.*", "self_attn_norm.*"),
    ("ffn.*", "mlp.up_proj.*"),
    ("ffn_output.*", "mlp.down_proj.*"),
    ("full_layer_layer_norm.*", "mlp_norm.*"),
)
LM_HEAD = (
    WeightRule("predictions.dense.*", "lm_transform.dense.*"),
    WeightRule("predictions.LayerNorm.*", "lm_transform.norm.*"),
)
COPIES_OF_TIED = ("predictions.decoder.weight", "predictions.decoder.bias")
LEFTOVERS = ("albert.pooler.*", "sop_classifier.classifier.*")
MASKED_LM = Head(RoFormerLiteForMaskedLM, LM_HEAD, lambda config: LM_FIELDS, (*COPIES_OF_TIED, *LEFTOVERS))


def layer_rules(layers: int, groups: int) -> Rules:
    """Rules of all layers, of which each belongs to one of `groups` that follow one another."""
    rules = []
    for group, members in enumerate(groups_of_layers(layers, groups)):
        for theirs, ours in LAYER:
            copies = tuple(f"layers.{layer}.{ours}" for layer in members)
            stored = f"encoder.albert_layer_groups.{group}.albert_layers.0.{theirs}"
            rules.append(WeightRule(stored, copies, Repeat()))
    return tuple(rules)


def groups_of_layers(layers: int, groups: int) -> list[list[int]]:
    """Which layers share their weights."""
    members = [[] for _ in range(groups)]
    for layer in range(layers):
        members[int(layer / (layers / groups))].append(layer)
    return members


def are_copies(weights: Mapping[str, torch.Tensor], members: Sequence[int]) -> bool:
    """Whether our layers `members` are equal."""
    first = f"layers.{members[0]}."
    names = [name for name in weights if first in name]
    return all(
        torch.equal(weights[name], weights[name.replace(first, f"layers.{layer}.")])
        for layer in members[1:]
        for name in names
    )


def _pooled(model_class: type[PreTrainedModel]) -> Head:
    pooler = WeightRule("albert.pooler.*", "classifier.dense.*")
    fields = POOLED_FIELDS
    return Head(model_class, (pooler, *LINEAR), lambda config: fields | _dropout(config))


def _dropout(theirs: AlbertConfig) -> dict[str, Any]:
    return {"classifier_dropout": theirs.classifier_dropout_prob}


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
    ignored = ("embeddings.position_ids", "embeddings.token_type_ids")
    heads = {
        "Model": Head(RoFormerLiteModel, (WeightRule("pooler.*", "pooler.dense.*"),)),
        "ForPreTraining": MASKED_LM,
        "ForMaskedLM": MASKED_LM,
        "ForSequenceClassification": _pooled(RoFormerLiteForSequenceClassification),
        "ForMultipleChoice": _pooled(RoFormerLiteForMultipleChoice),
        "ForTokenClassification": Head(RoFormerLiteForTokenClassification, LINEAR, _dropout, LEFTOVERS),
        "ForQuestionAnswering": LINEAR_ON_TOKENS.ignoring(*LEFTOVERS),
    }

    def computed_fields(self, theirs: AlbertConfig) -> dict[str, Any]:
        if theirs.embedding_size == theirs.hidden_size:
            raise InputError(
                f"embedding_size={theirs.embedding_size} is hidden_size: ALBERT has a projection between the two in "
                "any case, ours only where they differ"
            )
        if theirs.inner_group_num != 1:
            raise InputError(f"inner_group_num={theirs.inner_group_num}: only groups of one layer can be converted")
        return {}

    def their_fields(self, ours: RoFormerLiteConfig) -> dict[str, Any]:
        dropout = ours.hidden_dropout if ours.classifier_dropout is None else ours.classifier_dropout
        return {"type_vocab_size": max(1, ours.type_vocab_size), "classifier_dropout_prob": dropout}

    def settle(self, theirs: AlbertConfig, weights: Mapping[str, torch.Tensor]) -> None:
        """As few groups as the layers allow: after a training here each layer is one of its own."""
        layers = theirs.num_hidden_layers
        theirs.num_hidden_groups = next(
            groups
            for groups in range(1, layers + 1)
            if all(are_copies(weights, members) for members in groups_of_layers(layers, groups))
        )

    def stack_rules(self, ours: RoFormerLiteConfig, source_config: SourceConfig) -> Rules:
        groups = source_config.get("num_hidden_groups", 1)
        mapping = WeightRule("encoder.embedding_hidden_mapping_in.*", "embeddings.projection.*")
        return (*EMBEDDINGS, POSITIONS, mapping, *layer_rules(ours.num_hidden_layers, groups))

    def output_rules(self, ours: RoFormerLiteConfig) -> Rules:
        if ours.tie_word_embeddings:
            return (WeightRule("predictions.bias", "lm_head.bias"),)
        biases = ("predictions.decoder.bias", "predictions.bias")
        return (
            WeightRule("predictions.decoder.weight", "lm_head.weight"),
            WeightRule(biases, "lm_head.bias", Duplicates()),
        )


CONVERTER = Albert()
