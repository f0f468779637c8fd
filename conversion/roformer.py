"""HF RoFormer and RoFormerV2, with all heads.

Their rotation pairs neighbouring channels (2j, 2j + 1), and ours pairs channels of the two halves
(j, j + head_dim / 2). The rows of query and key projections are therefore permuted, and with
`rotary_value` also the rows of the value projection and the columns that read them. No number
changes, so weights that are exported and converted again are identical.

RoFormerV2 is RoFormer without biases, and with norms that divide by the root mean square and have
no gain. Its published code, which is not part of transformers, writes RoFormer's model type;
`norm_type="rms_norm"` in the config distinguishes the two. Here the norms have a gain, which is one
after the conversion; a model whose gains have been trained cannot be exported.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

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
from .hugging_face import Head, dropout_of_head, same_names
from .poolings import POOLINGS
from .weight_map import UNCHANGED, ConversionError, Rules, WeightRule, constant, permute_for_rope

SECOND_VERSION = (
    "this is a RoFormerV2 checkpoint: it has no biases, and its RMS norms have no weights. "
    "RoFormer's own classes would load it without an error and fill the missing weights with "
    "random numbers; its source is roformer_v2"
)
SIM = (
    "this is a RoFormer-Sim checkpoint: it has a pooler, and while it generates, each token of "
    "the source sees the whole source. In causal RoFormerLite models, tokens see only earlier "
    "ones; `train --model_name_or_path` can start from its stack"
)

# RoFormer has an equivalent only of models with these values, which are not the defaults. To
# export a model later, train it with them.
EXPRESSIBLE: dict[str, Any] = {
    "norm_placement": "post",
    "embedding_norm": True,
    "scale_embeddings": False,
}
FIELDS_OF_DECODERS = ("is_decoder", "use_cache", "add_cross_attention")


def _multiple_choice_fields(theirs: PreTrainedConfig) -> dict[str, Any]:
    summary = getattr(theirs, "summary_type", "last")
    has_projection = getattr(theirs, "summary_use_proj", False)
    poolings = POOLINGS["roformer"]
    if summary not in poolings or has_projection:
        raise ConversionError(
            f"summary_type={summary!r}, summary_use_proj={has_projection}: "
            "only 'first' and 'last' without a projection have an equivalent in RoFormerLite"
        )
    return {
        "classifier_pooling": poolings[summary],
        "classifier_dropout": getattr(theirs, "summary_last_dropout", 0.0),
    }


def is_second_version(source_config: SourceConfig) -> bool:
    """Whether the config belongs to RoFormerV2, which usually has RoFormer's model_type."""
    model_type = source_config.get("model_type")
    if model_type == "roformer_v2":
        return True
    if model_type not in (None, "roformer"):
        return False
    return source_config.get("norm_type") == "rms_norm" or source_config.get("use_bias") is False


def _classifier_fields(theirs: RoFormerConfig) -> dict[str, Any]:
    return WITH_INPUT_DROPOUT | {"classifier_activation": theirs.hidden_act}


class RoFormer(BertFamilyConverter):
    """Config: the fields of RoFormerConfig, with `architectures` for the head.

    Attributes:
        own_tokenizer: The class that opens a tokenizer for which the files name no other class.
    """

    name = "roformer"
    prefix = "roformer"
    config_class = RoFormerConfig
    pooling_field = "summary_type"
    fields = {**BERT_FIELDS, **same_names("rotary_value", "embedding_size")}
    constants = POST_NORM
    rules = (
        *EMBEDDINGS,
        *FEED_FORWARD,
        WeightRule("embeddings_project.*", "embeddings.projection.*"),
    )
    ignored = ("encoder.embed_positions.weight",)
    own_tokenizer: ClassVar[type] = RoFormerLiteJiebaTokenizer
    heads = {
        "Model": Head(),
        "ForMaskedLM": LANGUAGE_MODEL,
        "ForCausalLM": LANGUAGE_MODEL,
        "ForSequenceClassification": Head(DENSE_CLASSIFIER, _classifier_fields),
        "ForMultipleChoice": Head(LINEAR, _multiple_choice_fields),
        "ForTokenClassification": TOKEN_CLASSIFICATION,
        "ForQuestionAnswering": QUESTION_ANSWERING,
    }

    def reads(self, source_config: SourceConfig) -> bool:
        return super().reads(source_config) and not is_second_version(source_config)

    def complete_config(
        self, source_config: SourceConfig, state_dict: Mapping[str, torch.Tensor]
    ) -> dict[str, Any]:
        def has(name: str) -> bool:
            return any(stored.endswith(name) for stored in state_dict)

        completed = {**source_config, "add_pooling_layer": has("pooler.dense.weight")}
        if has("attention.self.query.weight") and not has("attention.self.query.bias"):
            completed["use_bias"] = False
        return completed

    def tokenizer_class(self, declared: str | None) -> type:
        if declared is None or declared.startswith("RoFormer"):
            return self.own_tokenizer
        # Character-based models declare BERT's tokenizer.
        return super().tokenizer_class(declared)

    def our_config(self, source_config: SourceConfig) -> RoFormerLiteConfig:
        if is_second_version(source_config):
            raise ConversionError(SECOND_VERSION)
        if source_config.get("add_pooling_layer"):
            raise ConversionError(SIM)
        return super().our_config(source_config)

    def their_fields(self, ours: RoFormerLiteConfig) -> dict[str, Any]:
        return {"summary_last_dropout": dropout_of_head(ours)}

    def stack_rules(self, ours: RoFormerLiteConfig, source_config: SourceConfig) -> Rules:
        rows = permute_for_rope(ours.num_attention_heads)
        value = UNCHANGED
        output = UNCHANGED
        if ours.rotary_value:
            value = rows
            output = permute_for_rope(ours.num_attention_heads, dim=1)
        attention = attention_rules("attention", "self_attn", rows, value, output)
        return (*self.rules, *attention, *attention_rules("crossattention", "cross_attn"))

    def needs_full_rows(self, our_config: PreTrainedConfig) -> bool:
        # Their multiple choice reads the last position, which may be padding.
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
    in_transformers = False
    fields = {
        ours: theirs for ours, theirs in RoFormer.fields.items() if ours not in FIELDS_OF_DECODERS
    }
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
        "ForCausalLM": "each of its tokens sees the whole prompt, but in causal RoFormerLite "
        "models, tokens see only earlier ones"
    }
    output_bias = None
    # Otherwise a language model of the first version would silently lose its transform.
    unread_heads = ()
    own_tokenizer = BertTokenizerFast

    def reads(self, source_config: SourceConfig) -> bool:
        return is_second_version(source_config)

    def complete_config(
        self, source_config: SourceConfig, state_dict: Mapping[str, torch.Tensor]
    ) -> dict[str, Any]:
        return dict(source_config)

    def our_config(self, source_config: SourceConfig) -> RoFormerLiteConfig:
        norm_type = source_config.get("norm_type", "rms_norm")
        use_bias = source_config.get("use_bias", False)
        if norm_type != "rms_norm" or use_bias:
            raise ConversionError(
                f"norm_type={norm_type!r}, use_bias={use_bias}: RoFormerV2 has rms_norm and no "
                "biases; for other models, the source is roformer"
            )
        if source_config.get("is_decoder") or source_config.get("add_cross_attention"):
            raise ConversionError("is_decoder=True: only encoders of RoFormerV2 can be converted")
        return super(RoFormer, self).our_config(source_config)

    def their_fields(self, ours: RoFormerLiteConfig) -> dict[str, Any]:
        return {"norm_type": "rms_norm", "use_bias": False}

    def stack_rules(self, ours: RoFormerLiteConfig, source_config: SourceConfig) -> Rules:
        rules = [
            rule
            for rule in super().stack_rules(ours, source_config)
            if "LayerNorm" not in rule.theirs
        ]
        widths = {
            "embeddings.norm": ours.embedding_size,
            "layers.{i}.self_attn_norm": ours.hidden_size,
            "layers.{i}.mlp_norm": ours.hidden_size,
        }
        for norm, width in widths.items():
            rules.append(WeightRule((), f"{norm}.weight", constant(1.0, width)))
        return tuple(rules)

    def computed_tensors(self, model: PreTrainedModel, theirs: RoFormerConfig) -> Tensors:
        return {}

    def build_reference(self, source_config: SourceConfig) -> nn.Module:
        """RoFormer's own class, changed according to the description of the second version (Su et
        al. 2022)."""
        reference = super().build_reference(source_config)
        eps = reference.config.layer_norm_eps
        for module in list(reference.modules()):
            for name, child in module.named_children():
                if isinstance(child, nn.LayerNorm):
                    norm = nn.RMSNorm(child.normalized_shape, eps, elementwise_affine=False)
                    setattr(module, name, norm)
        for module in reference.base_model.encoder.modules():
            if isinstance(module, nn.Linear):
                module.bias = None
        if hasattr(reference, "cls"):
            predictions = reference.cls.predictions
            predictions.transform = nn.Identity()
            predictions.decoder.bias = None
            predictions.bias = None
            reference.all_tied_weights_keys.pop("cls.predictions.decoder.bias", None)
        return reference


CONVERTERS = (RoFormer(), RoFormerV2())
