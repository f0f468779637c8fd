"""HF RoFormer, all heads; models of this package can also be exported to it.

Example:
    >>> model = convert("roformer", hf_model.state_dict(), hf_model.config.to_dict())
    >>> state_dict, config = export("roformer", model)

Its rotation pairs neighbouring channels (2j, 2j + 1), ours the two halves (j, j + head_dim / 2): the rows of query and
key projections are permuted, and with `rotary_value` those of the value projection and the columns that read them.
Nothing is computed, so that weights which are exported and converted again are equal bit for bit.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel, RoFormerConfig
from transformers.models.roformer.modeling_roformer import RoFormerSinusoidalPositionalEmbedding

from hf_roformer_lite import (
    RoFormerLiteConfig,
    RoFormerLiteForMultipleChoice,
    RoFormerLiteForSequenceClassification,
    RoFormerLiteJiebaTokenizer,
    RoFormerLiteModel,
)
from roformer_lite.errors import InputError

from .bert_family import (
    BERT_FIELDS,
    CAUSAL_LM,
    MASKED_LM,
    POST_NORM,
    QUESTION_ANSWERING,
    TOKEN_CLASSIFICATION,
    WITH_INPUT_DROPOUT,
    BertFamilyConverter,
    embedding_and_layer_rules,
)
from .converter import SourceConfig, Tensors
from .hugging_face import Head, Rules, same_names
from .reference_systems import sinusoids
from .weight_map import WeightRule
from .weight_operations import UNCHANGED, PermuteForRope

SECOND_VERSION = (
    "this is a RoFormerV2 checkpoint: it has no biases, and its RMS norms have no weights. RoFormer's own classes "
    "would load it without an error and fill the missing weights with random numbers; its source is roformer_v2"
)
SIM = (
    "this is a RoFormer-Sim checkpoint: it has a pooler, and while it generates, each token of the source sees the "
    "whole source. Causal models here see earlier tokens alone; `train --model_name_or_path` can start from its stack"
)
POOLING = {"first": "cls", "last": "last"}  # their summary_type, our classifier_pooling

# The values that fields of our config must have for RoFormer to have an equivalent. Train with them to export later.
EXPRESSIBLE: dict[str, Any] = {
    "classifier_text_features": 0,
    "layer_style": "standard",
    "norm_type": "layernorm",
    "norm_placement": "post",
    "norm_bias": True,
    "final_norm": False,
    "embedding_norm": True,
    "embedding_norm_eps": None,
    "scale_embeddings": False,
    "gated_mlp": False,
    "attention_bias": True,
    "mlp_bias": True,
    "position_embedding_type": "rope",
    "add_pooling_layer": False,
    "sliding_window": None,
    "cross_attention_hidden_size": None,
}


def _sequence_classification_fields(theirs: PreTrainedConfig) -> dict[str, Any]:
    return WITH_INPUT_DROPOUT | {"classifier_activation": theirs.hidden_act}


def _multiple_choice_fields(theirs: PreTrainedConfig) -> dict[str, Any]:
    summary = getattr(theirs, "summary_type", "last")
    if summary not in POOLING or getattr(theirs, "summary_use_proj", False):
        raise InputError(
            f"summary_type={summary!r}, summary_use_proj={getattr(theirs, 'summary_use_proj', False)}: only 'first' "
            "and 'last' without a projection have an equivalent here"
        )
    return {"classifier_pooling": POOLING[summary], "classifier_dropout": getattr(theirs, "summary_last_dropout", 0.0)}


def is_second_version(source_config: SourceConfig) -> bool:
    """Whether the config is one of RoFormerV2, which mostly has RoFormer's model_type."""
    kind = source_config.get("model_type")
    without_gains = source_config.get("norm_type") == "rms_norm" or source_config.get("use_bias") is False
    return kind == "roformer_v2" or kind in (None, "roformer") and without_gains


HEADS = {
    "Model": Head(RoFormerLiteModel),
    "ForMaskedLM": MASKED_LM,
    "ForCausalLM": CAUSAL_LM,
    "ForSequenceClassification": Head(
        RoFormerLiteForSequenceClassification,
        (
            WeightRule("classifier.dense.*", "classifier.dense.*"),
            WeightRule("classifier.out_proj.*", "classifier.out_proj.*"),
        ),
        _sequence_classification_fields,
    ),
    "ForMultipleChoice": Head(
        RoFormerLiteForMultipleChoice,
        (WeightRule("classifier.*", "classifier.out_proj.*"),),
        _multiple_choice_fields,
    ),
    "ForTokenClassification": TOKEN_CLASSIFICATION,
    "ForQuestionAnswering": QUESTION_ANSWERING,
}


class RoFormer(BertFamilyConverter):
    """Config: the fields of RoFormerConfig, with `architectures` for the head."""

    name = "roformer"
    prefix = "roformer"
    tokenizer_class = RoFormerLiteJiebaTokenizer
    config_class = RoFormerConfig
    fields = {**BERT_FIELDS, **same_names("rotary_value")}
    constants = POST_NORM
    ignored = ("encoder.embed_positions.weight",)
    reads_padding = True  # by multiple choice
    heads = HEADS

    def reads(self, source_config: SourceConfig) -> bool:
        return super().reads(source_config) and not is_second_version(source_config)

    def complete_config(self, source_config: SourceConfig, state_dict: Mapping[str, torch.Tensor]) -> dict[str, Any]:
        has_biases = any(name.endswith("attention.self.query.bias") for name in state_dict)
        has_layers = any(name.endswith("attention.self.query.weight") for name in state_dict)
        without_biases = {"use_bias": False} if has_layers and not has_biases else {}
        has_pooler = any(name.endswith("pooler.dense.weight") for name in state_dict)
        return super().complete_config(source_config, state_dict) | without_biases | {"add_pooling_layer": has_pooler}

    def our_config(self, source_config: SourceConfig) -> RoFormerLiteConfig:
        if is_second_version(source_config):
            raise InputError(SECOND_VERSION)
        if source_config.get("add_pooling_layer"):
            raise InputError(SIM)
        return super().our_config(source_config)

    def computed_fields(self, theirs: PreTrainedConfig) -> dict[str, Any]:
        return {"embedding_size": theirs.embedding_size}

    def their_fields(self, ours: RoFormerLiteConfig) -> dict[str, Any]:
        fields = {"embedding_size": ours.embedding_size, "type_vocab_size": max(1, ours.type_vocab_size)}
        pooling = {ours: theirs for theirs, ours in POOLING.items()}.get(ours.classifier_pooling)
        return fields | ({} if pooling is None else {"summary_type": pooling})

    def stack_rules(self, ours: RoFormerLiteConfig, source_config: SourceConfig) -> Rules:
        rows, columns = (PermuteForRope(ours.num_attention_heads, dim) for dim in (0, 1))
        value, output = (rows, columns) if ours.rotary_value else (UNCHANGED, UNCHANGED)
        return (
            *embedding_and_layer_rules(rows, value, output),
            WeightRule("embeddings_project.*", "embeddings.projection.*"),
        )

    def cast_reference(self, reference: nn.Module, dtype: torch.dtype) -> nn.Module:
        reference = reference.to(dtype)
        for module in reference.modules():
            if isinstance(module, RoFormerSinusoidalPositionalEmbedding):  # always computed in float32
                pairs = sinusoids(*module.weight.shape, torch.float64)
                module.weight.data = torch.cat((pairs[:, 0::2], pairs[:, 1::2]), -1).to(dtype)
        return reference

    def export(self, model: PreTrainedModel) -> tuple[Tensors, dict[str, Any]]:
        state_dict, source_config = super().export(model)
        prefix = self.stack_prefixes(self.head(source_config))[0]
        positions = RoFormerSinusoidalPositionalEmbedding(model.config.max_position_embeddings, model.config.head_dim)
        state_dict[f"{prefix}encoder.embed_positions.weight"] = positions.create_weight().to(model.dtype)
        return state_dict, source_config


CONVERTER = RoFormer()
