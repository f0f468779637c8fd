"""HF RoFormer and RoFormerV2, all heads.

Their rotation pairs neighbouring channels (2j, 2j + 1), ours the two halves (j, j + head_dim / 2):
the rows of query and key projections are permuted, and with `rotary_value` those of the value
projection and the columns that read them. Nothing is computed, so that weights which are exported
and converted again are equal bit for bit.

RoFormerV2 is RoFormer without biases, and with norms that divide by the root mean square and have
no gain. Its published code, which is not part of transformers, writes RoFormer's model type;
`norm_type="rms_norm"` in the config tells the two apart. Here the norms have a gain, which is one
after the conversion; a model whose gains have been trained cannot go back.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from transformers import BertTokenizerFast, PreTrainedConfig, PreTrainedModel, RoFormerConfig
from transformers.models.roformer.modeling_roformer import RoFormerSinusoidalPositionalEmbedding

from hf_roformer_lite import RoFormerLiteConfig, RoFormerLiteJiebaTokenizer

from .bert import (
    BERT_FIELDS,
    DENSE_CLASSIFIER,
    EMBEDDINGS,
    FEED_FORWARD,
    LANGUAGE_MODEL,
    LINEAR,
    POST_NORM,
    QUESTION_ANSWERING,
    TOKEN_CLASSIFICATION,
    WITH_INPUT_DROPOUT,
    BertFamilyConverter,
    attention_rules,
)
from .converter import SourceConfig, Tensors
from .hugging_face import Head, same_names
from .weight_map import UNCHANGED, ConversionError, Rules, WeightRule, constant, permute_for_rope

SECOND_VERSION = (
    "this is a RoFormerV2 checkpoint: it has no biases, and its RMS norms have no weights. RoFormer's own classes "
    "would load it without an error and fill the missing weights with random numbers; its source is roformer_v2"
)
SIM = (
    "this is a RoFormer-Sim checkpoint: it has a pooler, and while it generates, each token of the source sees the "
    "whole source. Causal models here see earlier tokens alone; `train --model_name_or_path` can start from its stack"
)
POOLING = {"first": "cls", "last": "last"}  # their summary_type, our classifier_pooling

# Of the fields of our config, those that must not be at their defaults for RoFormer to have an
# equivalent. Train with these values to export later.
EXPRESSIBLE: dict[str, Any] = {
    "norm_placement": "post",
    "embedding_norm": True,
    "scale_embeddings": False,
}
_OF_DECODERS = ("is_decoder", "use_cache", "add_cross_attention")


def _multiple_choice_fields(theirs: PreTrainedConfig) -> dict[str, Any]:
    summary, projects = (
        getattr(theirs, "summary_type", "last"),
        getattr(theirs, "summary_use_proj", False),
    )
    if summary not in POOLING or projects:
        given = f"summary_type={summary!r}, summary_use_proj={projects}"
        raise ConversionError(
            f"{given}: only 'first' and 'last' without a projection have an equivalent here"
        )
    return {
        "classifier_pooling": POOLING[summary],
        "classifier_dropout": getattr(theirs, "summary_last_dropout", 0.0),
    }


def is_second_version(source_config: SourceConfig) -> bool:
    """Whether the config is one of RoFormerV2, which mostly has RoFormer's model_type."""
    kind = source_config.get("model_type")
    without_gains = (
        source_config.get("norm_type") == "rms_norm" or source_config.get("use_bias") is False
    )
    return kind == "roformer_v2" or kind in (None, "roformer") and without_gains


class RoFormer(BertFamilyConverter):
    """Config: the fields of RoFormerConfig, with `architectures` for the head."""

    name = "roformer"
    prefix = "roformer"
    tokenizer_class = RoFormerLiteJiebaTokenizer
    config_class = RoFormerConfig
    fields = {**BERT_FIELDS, **same_names("rotary_value", "embedding_size")}
    constants = POST_NORM
    rules = (
        *EMBEDDINGS,
        *FEED_FORWARD,
        WeightRule("embeddings_project.*", "embeddings.projection.*"),
    )
    ignored = ("encoder.embed_positions.weight",)
    heads = {
        "Model": Head(),
        "ForMaskedLM": LANGUAGE_MODEL,
        "ForCausalLM": LANGUAGE_MODEL,
        "ForSequenceClassification": Head(
            DENSE_CLASSIFIER,
            lambda theirs: WITH_INPUT_DROPOUT | {"classifier_activation": theirs.hidden_act},
        ),
        "ForMultipleChoice": Head(LINEAR, _multiple_choice_fields),
        "ForTokenClassification": TOKEN_CLASSIFICATION,
        "ForQuestionAnswering": QUESTION_ANSWERING,
    }

    def reads(self, source_config: SourceConfig) -> bool:
        return super().reads(source_config) and not is_second_version(source_config)

    def complete_config(
        self, source_config: SourceConfig, state_dict: Mapping[str, torch.Tensor]
    ) -> dict[str, Any]:
        has_weights, has_biases, has_pooler = (
            any(name.endswith(part) for name in state_dict)
            for part in (
                "attention.self.query.weight",
                "attention.self.query.bias",
                "pooler.dense.weight",
            )
        )
        without_biases = {"use_bias": False} if has_weights and not has_biases else {}
        return dict(source_config) | without_biases | {"add_pooling_layer": has_pooler}

    def our_config(self, source_config: SourceConfig) -> RoFormerLiteConfig:
        if is_second_version(source_config):
            raise ConversionError(SECOND_VERSION)
        if source_config.get("add_pooling_layer"):
            raise ConversionError(SIM)
        return super().our_config(source_config)

    def their_fields(self, ours: RoFormerLiteConfig) -> dict[str, Any]:
        pooling = {ours: theirs for theirs, ours in POOLING.items()}.get(ours.classifier_pooling)
        return {} if pooling is None else {"summary_type": pooling}

    def stack_rules(self, ours: RoFormerLiteConfig, source_config: SourceConfig) -> Rules:
        rows, columns = (permute_for_rope(ours.num_attention_heads, dim) for dim in (0, 1))
        value, output = (rows, columns) if ours.rotary_value else (UNCHANGED, UNCHANGED)
        attention = attention_rules("attention", "self_attn", rows, value, output)
        return (*self.rules, *attention, *attention_rules("crossattention", "cross_attn"))

    def needs_full_rows(self, our_config: PreTrainedConfig) -> bool:
        # multiple choice, which reads the last position in any case
        return our_config.classifier_pooling == "last"

    def computed_tensors(self, model: PreTrainedModel, theirs: RoFormerConfig) -> Tensors:
        positions = RoFormerSinusoidalPositionalEmbedding(
            model.config.max_position_embeddings, model.config.head_dim
        )
        return {"encoder.embed_positions.weight": positions.create_weight().to(model.dtype)}


class RoFormerV2(RoFormer):
    """Config: the fields of RoFormerConfig, `norm_type`, `use_bias`, and `architectures` for the
    head."""

    name = "roformer_v2"
    tokenizer_class = BertTokenizerFast
    in_transformers = False
    fields = {ours: theirs for ours, theirs in RoFormer.fields.items() if ours not in _OF_DECODERS}
    constants = {**POST_NORM, "norm_type": "rmsnorm", "attention_bias": False, "mlp_bias": False}
    heads = {
        **{
            name: head
            for name, head in RoFormer.heads.items()
            if name not in ("ForCausalLM", "ForMultipleChoice")
        },
        "ForMaskedLM": Head(),
    }
    refused = {
        "ForCausalLM": "each of its tokens sees the whole prompt, causal models here see earlier ones alone"
    }
    output_bias = None
    # a language model with the transform of the first version would lose it without an error
    unread_heads = ()

    def reads(self, source_config: SourceConfig) -> bool:
        return is_second_version(source_config)

    def complete_config(
        self, source_config: SourceConfig, state_dict: Mapping[str, torch.Tensor]
    ) -> dict[str, Any]:
        return dict(source_config)

    def our_config(self, source_config: SourceConfig) -> RoFormerLiteConfig:
        norm_type, use_bias = (
            source_config.get("norm_type", "rms_norm"),
            source_config.get("use_bias", False),
        )
        if norm_type != "rms_norm" or use_bias:
            given = f"norm_type={norm_type!r}, use_bias={use_bias}"
            raise ConversionError(
                f"{given}: RoFormerV2 has rms_norm and no biases; others have the source roformer"
            )
        if source_config.get("is_decoder") or source_config.get("add_cross_attention"):
            raise ConversionError("is_decoder=True: only encoders of RoFormerV2 can be converted")
        return super(RoFormer, self).our_config(source_config)

    def their_fields(self, ours: RoFormerLiteConfig) -> dict[str, Any]:
        return {"norm_type": "rms_norm", "use_bias": False}

    def stack_rules(self, ours: RoFormerLiteConfig, source_config: SourceConfig) -> Rules:
        stored = (
            rule
            for rule in super().stack_rules(ours, source_config)
            if "LayerNorm" not in rule.theirs
        )
        gains = {"embeddings.norm": ours.embedding_size}
        gains |= {
            f"layers.{{i}}.{branch}_norm": ours.hidden_size for branch in ("self_attn", "mlp")
        }
        return (
            *stored,
            *(
                WeightRule((), f"{norm}.weight", constant(1.0, size))
                for norm, size in gains.items()
            ),
        )

    def computed_tensors(self, model: PreTrainedModel, theirs: RoFormerConfig) -> Tensors:
        return {}

    def build_reference(self, source_config: SourceConfig) -> nn.Module:
        """RoFormer's own class, after what the description of the second version changes (Su et al.
        2022)."""
        reference = super().build_reference(source_config)
        eps = reference.config.layer_norm_eps
        for module in list(reference.modules()):
            for name, child in module.named_children():
                if isinstance(child, nn.LayerNorm):
                    setattr(
                        module,
                        name,
                        nn.RMSNorm(child.normalized_shape, eps, elementwise_affine=False),
                    )
        for module in reference.base_model.encoder.modules():
            if isinstance(module, nn.Linear):
                module.bias = None
        if hasattr(reference, "cls"):
            predictions = reference.cls.predictions
            predictions.transform, predictions.decoder.bias, predictions.bias = (
                nn.Identity(),
                None,
                None,
            )
            reference.all_tied_weights_keys.pop("cls.predictions.decoder.bias", None)
        return reference


CONVERTERS = (RoFormer(), RoFormerV2())
