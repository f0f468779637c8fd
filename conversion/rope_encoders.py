"""NomicBERT, Jina-embeddings-v3 and GTE: BERTs with rotary positions in place of a table.

Their files have older names than the classes of transformers; both are read. Jina's LoRA adapters for single tasks are
not part of the class of transformers, nor of ours.
"""

from typing import Any

from transformers import GteConfig, JinaEmbeddingsV3Config, NomicBertConfig, PreTrainedConfig

from hf_roformer_lite import (
    RoFormerLiteConfig,
    RoFormerLiteForMaskedLM,
    RoFormerLiteForSequenceClassification,
    RoFormerLiteModel,
)

from .bert_family import (
    EMBEDDINGS,
    ENCODER_FIELDS,
    LM_FIELDS,
    POOLER,
    POST_NORM,
    QUESTION_ANSWERING,
    TIED_OUTPUT,
    TOKEN_CLASSIFICATION,
    UNTIED_OUTPUT,
    pooled_classifier,
)
from .converter import SourceConfig
from .hugging_face import Head, HuggingFaceConverter, Rules, same_names
from .roberta import COPIES_OF_TIED, MASKED_LM, SEQUENCE_CLASSIFICATION, lm_fields
from .roberta import LM_HEAD as ROBERTA_LM_HEAD
from .roberta import UNTIED_OUTPUT as ROBERTA_UNTIED_OUTPUT
from .rope_fields import plain_rope
from .stored_names import StoredNames
from .weight_map import WeightRule

QKV = tuple(f"self_attn.{part}_proj" for part in "qkv")
GATED = tuple((f"mlp.{name}_proj", f"mlp.{name}_proj") for name in ("gate", "up", "down"))
CLASSIC = (("mlp.fc1", "mlp.up_proj"), ("mlp.fc2", "mlp.down_proj"))
# Files of NomicBERT and of Jina come from one older implementation.
LAYER_NAMES = {
    r"(^|\.)encoder\.layers\.": r"\1layers.",
    r"(^|\.)emb_ln\.": r"\1embeddings.LayerNorm.",
    r"\.norm1\.": ".post_attention_layernorm.",
    r"\.norm2\.": ".post_mlp_layernorm.",
}


def layer_rules(feed_forward: tuple[tuple[str, str], ...]) -> Rules:
    """Rules of embeddings and layers; the three differ in their feed-forward."""
    names = [(f"self_attn.{part}_proj", f"self_attn.{part}_proj") for part in "qkvo"]
    names += [("post_attention_layernorm", "self_attn_norm"), ("post_mlp_layernorm", "mlp_norm"), *feed_forward]
    layers = (WeightRule(f"layers.{{i}}.{theirs}.*", f"layers.{{i}}.{ours}.*") for theirs, ours in names)
    return (*EMBEDDINGS, *layers)


class RopeEncoder(HuggingFaceConverter):
    """What the three share."""

    fields = {
        **ENCODER_FIELDS,
        **same_names("hidden_act", "type_vocab_size", "max_position_embeddings", "classifier_dropout"),
    }
    ignored = ("embeddings.position_ids", "embeddings.token_type_ids")
    feed_forward = GATED

    def computed_fields(self, theirs: PreTrainedConfig) -> dict[str, Any]:
        return {"rope_parameters": theirs.rope_parameters}

    def their_fields(self, ours: RoFormerLiteConfig) -> dict[str, Any]:
        return {"rope_parameters": plain_rope(ours), "type_vocab_size": max(1, ours.type_vocab_size)}

    def stack_rules(self, ours: RoFormerLiteConfig, source_config: SourceConfig) -> Rules:
        return layer_rules(self.feed_forward)


class NomicBert(RopeEncoder):
    """NomicBERT, v1 and v1.5: no biases in its layers, a gated feed-forward."""

    name = "nomic_bert"
    prefix = "nomic_bert"
    config_class = NomicBertConfig
    has_pooler = False
    fields = {**RopeEncoder.fields, **same_names("head_dim")}
    constants = {**POST_NORM, "gated_mlp": True, "attention_bias": False, "mlp_bias": False}
    heads = {
        "Model": Head(RoFormerLiteModel, POOLER),
        "ForMaskedLM": Head(
            RoFormerLiteForMaskedLM,
            (
                WeightRule("cls.predictions.transform.dense.*", "lm_transform.dense.*"),
                WeightRule("cls.predictions.transform.layer_norm.*", "lm_transform.norm.*"),
            ),
            lambda config: LM_FIELDS,
            ("cls.predictions.decoder.weight", "cls.predictions.decoder.bias"),
        ),
        "ForSequenceClassification": pooled_classifier("nomic_bert"),
        "ForTokenClassification": TOKEN_CLASSIFICATION,
    }
    stored_names = StoredNames(
        {
            **LAYER_NAMES,
            r"\.attn\.out_proj\.": ".self_attn.o_proj.",
            r"\.fc11\.": ".up_proj.",
            r"\.fc12\.": ".gate_proj.",
            r"\.fc2\.": ".down_proj.",
        },
        {"attn.Wqkv": QKV},
    )

    def output_rules(self, ours: RoFormerLiteConfig) -> Rules:
        return TIED_OUTPUT if ours.tie_word_embeddings else UNTIED_OUTPUT


class JinaV3(RopeEncoder):
    """Jina-embeddings-v3: XLM-R with rotary positions."""

    name = "jina_embeddings_v3"
    prefix = "roberta"
    config_class = JinaEmbeddingsV3Config
    has_pooler = True
    constants = POST_NORM
    feed_forward = CLASSIC
    heads = {
        "Model": Head(RoFormerLiteModel, POOLER),
        "ForMaskedLM": MASKED_LM,
        "ForSequenceClassification": SEQUENCE_CLASSIFICATION,
        "ForTokenClassification": TOKEN_CLASSIFICATION,
        "ForQuestionAnswering": QUESTION_ANSWERING,
    }
    stored_names = StoredNames(
        {
            **LAYER_NAMES,
            r"\.mixer\.out_proj\.": ".self_attn.o_proj.",
        },
        {"mixer.Wqkv": QKV},
    )

    def output_rules(self, ours: RoFormerLiteConfig) -> Rules:
        bias = (WeightRule("lm_head.bias", "lm_head.bias"),)
        return bias if ours.tie_word_embeddings else ROBERTA_UNTIED_OUTPUT


class Gte(RopeEncoder):
    """GTE v1.5 and multilingual: a gated feed-forward whose last matrix alone has a bias."""

    name = "gte"
    prefix = "gte"
    config_class = GteConfig
    has_pooler = False
    constants = {**POST_NORM, "gated_mlp": True, "mlp_bias": ["down"]}
    output_matrix = "lm_head.decoder.weight"
    heads = {
        "Model": Head(RoFormerLiteModel, POOLER),
        "ForMaskedLM": Head(RoFormerLiteForMaskedLM, ROBERTA_LM_HEAD, lm_fields, COPIES_OF_TIED[:1]),
        "ForSequenceClassification": pooled_classifier("gte", RoFormerLiteForSequenceClassification),
        "ForTokenClassification": TOKEN_CLASSIFICATION,
    }
    stored_names = StoredNames(
        {
            r"^new\.": "gte.",
            r"(^|\.)encoder\.layer\.": r"\1layers.",
            r"\.attention\.o_proj\.": ".self_attn.o_proj.",
            r"\.attn_ln\.": ".post_attention_layernorm.",
            r"\.mlp_ln\.": ".post_mlp_layernorm.",
            r"^lm_head\.norm\.": "lm_head.layer_norm.",
        },
        {"attention.qkv_proj": QKV, "mlp.up_gate_proj": ("mlp.up_proj", "mlp.gate_proj")},
    )

    def computed_fields(self, theirs: PreTrainedConfig) -> dict[str, Any]:
        return super().computed_fields(theirs) | {"mlp_dropout": theirs.hidden_dropout_prob}

    def their_fields(self, ours: RoFormerLiteConfig) -> dict[str, Any]:
        return super().their_fields(ours) | {"type_vocab_size": ours.type_vocab_size}

    def output_rules(self, ours: RoFormerLiteConfig) -> Rules:
        return (WeightRule("lm_head.decoder.bias", "lm_head.bias"), *super().output_rules(ours))


CONVERTERS = (NomicBert(), JinaV3(), Gte())
