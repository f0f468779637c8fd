"""Llama (and SmolLM and others of the same architecture), Qwen2, EuroBERT, UltraBERT and GPT-NeoX:
pre-norm, rotary positions.

Llama, Qwen2 and GPT-NeoX become causal models, EuroBERT and UltraBERT become encoders. GPT-NeoX and
Pythia models are converted only if their branches are sequential (`use_parallel_residual=False`).
"""

from dataclasses import replace
from typing import Any

from transformers import EuroBertConfig, GPTNeoXConfig, LlamaConfig, Qwen2Config

try:
    from transformers import UltrabertConfig
except ImportError:
    # It was added in transformers 5.21.
    UltrabertConfig = None

from hf_roformer_lite import RoFormerLiteConfig

from .bert import LINEAR, QUESTION_ANSWERING, TOKEN_CLASSIFICATION, WITHOUT_DROPOUT
from .converter import SourceConfig
from .hugging_face import COMMON_FIELDS, SIZES, Head, HuggingFaceConverter, same_names
from .poolings import POOLINGS
from .weight_map import (
    ConversionError,
    Rules,
    StoredNames,
    WeightRule,
    in_layers,
    projections,
    renamed,
    split_heads,
)

PRE_RMS_NORM = {
    "norm_type": "rmsnorm",
    "norm_placement": "pre",
    "final_norm": True,
    "gated_mlp": True,
}
LAYER_FIELDS = {
    **COMMON_FIELDS,
    **SIZES,
    **same_names(
        "num_key_value_heads", "hidden_act", "max_position_embeddings", "attention_dropout"
    ),
    **same_names("rope_parameters", norm_eps="rms_norm_eps"),
}
# This matrix has no bias.
SCORE = renamed({"score.weight": "classifier.out_proj.weight"})
LAST_TOKEN = {"classifier_pooling": "last"}


class LlamaFamilyConverter(HuggingFaceConverter):
    """A source with Llama's names."""

    prefix = "model"
    fields = {**LAYER_FIELDS, **same_names("head_dim", "attention_bias", "mlp_bias")}
    constants = {**PRE_RMS_NORM, "hidden_dropout": 0.0}
    rules = (
        WeightRule("embed_tokens.weight", "embeddings.word_embeddings.weight"),
        *in_layers(
            {
                **projections(*(f"self_attn.{part}_proj" for part in "qkvo")),
                **{f"mlp.{part}_proj.*": f"mlp.{part}_proj.*" for part in ("gate", "up", "down")},
                "input_layernorm.weight": "self_attn_norm.weight",
                "post_attention_layernorm.weight": "mlp_norm.weight",
            }
        ),
        WeightRule("norm.weight", "final_norm.weight"),
    )
    ignored = ("rotary_emb.inv_freq", "layers.{i}.self_attn.rotary_emb.inv_freq")
    output_matrix = "lm_head.weight"


class Llama(LlamaFamilyConverter):
    """Llama 1 to 3, SmolLM, TinyLlama and other causal models of this architecture."""

    name = "llama"
    config_class = LlamaConfig
    fields = {**LlamaFamilyConverter.fields, **same_names("use_cache")}
    constants = {**LlamaFamilyConverter.constants, "is_decoder": True}
    heads = {
        "Model": Head(),
        "ForCausalLM": Head(),
        "ForSequenceClassification": Head(SCORE, LAST_TOKEN),
        "ForTokenClassification": Head(
            renamed({"score.*": "classifier.out_proj.*"}), {"classifier_dropout": 0.1}
        ),
        "ForQuestionAnswering": replace(QUESTION_ANSWERING, prefix="transformer"),
    }


class Qwen2(Llama):
    """Qwen 2 and 2.5: Llama with biases of queries, keys and values, and optional windows in some
    layers."""

    name = "qwen2"
    config_class = Qwen2Config
    fields = {**LAYER_FIELDS, **same_names("use_cache", "layer_types")}
    constants = {**Llama.constants, "attention_bias": ["q", "k", "v"], "mlp_bias": False}

    def computed_fields(self, theirs: Qwen2Config) -> dict[str, Any]:
        return {
            "sliding_window": theirs.sliding_window,
            # Their layers read this field, which their configuration does not declare.
            "head_dim": getattr(theirs, "head_dim", None),
        }

    def their_fields(self, ours: RoFormerLiteConfig) -> dict[str, Any]:
        fields: dict[str, Any] = {"use_sliding_window": False}
        if "sliding_attention" in ours.layer_types:
            fields = {"use_sliding_window": True, "sliding_window": ours.sliding_window}
        if ours.head_dim != ours.hidden_size // ours.num_attention_heads:
            fields["head_dim"] = ours.head_dim
        return fields


def _eurobert_classifier_fields(theirs: EuroBertConfig) -> dict[str, Any]:
    return {
        **WITHOUT_DROPOUT,
        "classifier_pooling": POOLINGS["eurobert"][theirs.classifier_pooling],
        "classifier_activation": "gelu",
    }


class EuroBert(LlamaFamilyConverter):
    """EuroBERT: Llama's layers as an encoder."""

    name = "eurobert"
    config_class = EuroBertConfig
    heads = {
        "Model": Head(),
        "ForMaskedLM": Head(
            renamed({"lm_head.bias": "lm_head.bias"}),
            lambda theirs: {"lm_head_bias": theirs.mlp_bias},
        ),
        "ForSequenceClassification": Head(
            (*renamed({"dense.*": "classifier.dense.*"}), *LINEAR), _eurobert_classifier_fields
        ),
        "ForTokenClassification": Head(LINEAR, WITHOUT_DROPOUT),
    }


class UltraBert(LlamaFamilyConverter):
    """UltraBERT: EuroBERT with windows in most layers, and rotations by the type of layer."""

    name = "ultrabert"
    config_class = UltrabertConfig
    fields = {
        **LlamaFamilyConverter.fields,
        **same_names("layer_types", "sliding_window", "classifier_dropout"),
    }
    heads = {
        "Model": Head(),
        "ForSequenceClassification": Head(
            LINEAR, lambda theirs: {"classifier_pooling": theirs.classifier_pooling}
        ),
        "ForTokenClassification": TOKEN_CLASSIFICATION,
        "ForQuestionAnswering": QUESTION_ANSWERING,
    }
    refused = {
        "ForMaskedLM": "it has two matrices before its output, but a masked RoFormerLite model "
        "has one"
    }
    stored_names = StoredNames({r"^ultrabert\.": "model."})

    def their_fields(self, ours: RoFormerLiteConfig) -> dict[str, Any]:
        return {"sliding_window": ours.sliding_window or 1}


class GPTNeoX(HuggingFaceConverter):
    """GPT-NeoX without parallel branches."""

    name = "gpt_neox"
    prefix = "gpt_neox"
    rotates_parts = True
    config_class = GPTNeoXConfig
    fields = {
        **COMMON_FIELDS,
        **SIZES,
        **same_names(
            "hidden_act", "hidden_dropout", "attention_dropout", "max_position_embeddings"
        ),
        **same_names(
            "attention_bias",
            "use_cache",
            "rope_parameters",
            "classifier_dropout",
            norm_eps="layer_norm_eps",
        ),
    }
    constants = {"norm_placement": "pre", "final_norm": True, "is_decoder": True}
    rules = (
        WeightRule("embed_in.weight", "embeddings.word_embeddings.weight"),
        *in_layers(
            {
                "attention.dense.*": "self_attn.o_proj.*",
                "mlp.dense_h_to_4h.*": "mlp.up_proj.*",
                "mlp.dense_4h_to_h.*": "mlp.down_proj.*",
                "input_layernorm.*": "self_attn_norm.*",
                "post_attention_layernorm.*": "mlp_norm.*",
            }
        ),
        WeightRule("final_layer_norm.*", "final_norm.*"),
    )
    ignored = tuple(
        f"layers.{{i}}.attention.{part}" for part in ("rotary_emb.inv_freq", "bias", "masked_bias")
    )
    stored_names = StoredNames({r"^embed_out\.": "lm_head."})
    output_matrix = "lm_head.weight"
    heads = {
        "Model": Head(),
        "ForCausalLM": Head(),
        "ForSequenceClassification": Head(SCORE, LAST_TOKEN | WITHOUT_DROPOUT),
        "ForTokenClassification": TOKEN_CLASSIFICATION,
        "ForQuestionAnswering": QUESTION_ANSWERING,
    }

    def computed_fields(self, theirs: GPTNeoXConfig) -> dict[str, Any]:
        if theirs.use_parallel_residual:
            raise ConversionError(
                "use_parallel_residual=True: attention and feed-forward then read the same states, "
                "but the feed-forward of RoFormerLite reads the sum after the attention"
            )
        return {}

    def their_fields(self, ours: RoFormerLiteConfig) -> dict[str, Any]:
        return {"use_parallel_residual": False}

    def stack_rules(self, ours: RoFormerLiteConfig, source_config: SourceConfig) -> Rules:
        qkv = tuple(f"layers.{{i}}.self_attn.{part}_proj.*" for part in "qkv")
        heads = split_heads(ours.num_attention_heads)
        return (*self.rules, WeightRule("layers.{i}.attention.query_key_value.*", qkv, heads))


CONVERTERS: list[HuggingFaceConverter] = [Llama(), Qwen2(), EuroBert()]
if UltrabertConfig is not None:
    CONVERTERS.append(UltraBert())
CONVERTERS.append(GPTNeoX())
