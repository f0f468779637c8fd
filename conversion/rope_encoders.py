"""NomicBERT, Jina-embeddings-v3 and GTE: BERTs with rotary positions instead of a table.

Their files have older names than the classes of transformers; both are read. Jina's LoRA adapters
for specific tasks are part neither of the transformers class nor of ours.
"""

from typing import Any

from transformers import GteConfig, JinaEmbeddingsV3Config, NomicBertConfig, PreTrainedConfig

from hf_roformer_lite import RoFormerLiteConfig

from .bert import (
    EMBEDDINGS,
    ENCODER_FIELDS,
    LM_FIELDS,
    POOLER,
    POST_NORM,
    QUESTION_ANSWERING,
    ROBERTA_CLASSIFIER,
    ROBERTA_LM,
    ROBERTA_TRANSFORM,
    TOKEN_CLASSIFICATION,
    TRANSFORM,
    gelu_lm_fields,
    pooled_classifier,
    transform_rules,
)
from .hugging_face import Head, HuggingFaceConverter, same_names
from .weight_map import Rules, StoredNames, in_layers, projections, renamed

QKV = tuple(f"self_attn.{part}_proj" for part in "qkv")
GATED = {f"mlp.{name}_proj.*": f"mlp.{name}_proj.*" for name in ("gate", "up", "down")}
# The files of NomicBERT and Jina come from the same older implementation.
LAYER_NAMES = {
    r"(^|\.)encoder\.layers\.": r"\1layers.",
    r"(^|\.)emb_ln\.": r"\1embeddings.LayerNorm.",
    r"\.norm1\.": ".post_attention_layernorm.",
    r"\.norm2\.": ".post_mlp_layernorm.",
}


def stack_rules(feed_forward: dict[str, str]) -> Rules:
    """The rules of embeddings and layers. The three families differ in their feed-forward."""
    names = projections(*(f"self_attn.{part}_proj" for part in "qkvo"))
    names |= {
        "post_attention_layernorm.*": "self_attn_norm.*",
        "post_mlp_layernorm.*": "mlp_norm.*",
        **feed_forward,
    }
    return (*EMBEDDINGS, *in_layers(names))


class RopeEncoder(HuggingFaceConverter):
    """The common part of the three families."""

    fields = {
        **ENCODER_FIELDS,
        **same_names(
            "hidden_act", "type_vocab_size", "max_position_embeddings", "classifier_dropout"
        ),
        **same_names("rope_parameters"),
    }
    rules = stack_rules(GATED)
    ignored = ("embeddings.position_ids", "embeddings.token_type_ids")


class NomicBert(RopeEncoder):
    """NomicBERT, v1 and v1.5: a gated feed-forward, and no biases in its layers."""

    name = "nomic_bert"
    prefix = "nomic_bert"
    config_class = NomicBertConfig
    has_pooler = False
    fields = {**RopeEncoder.fields, **same_names("head_dim")}
    constants = {**POST_NORM, "gated_mlp": True, "attention_bias": False, "mlp_bias": False}
    output_matrix = "cls.predictions.decoder.weight"
    output_bias = "cls.predictions.bias"
    heads = {
        "Model": Head(POOLER),
        "ForMaskedLM": Head(
            transform_rules(f"{TRANSFORM}.dense", f"{TRANSFORM}.layer_norm"), LM_FIELDS
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


class JinaV3(RopeEncoder):
    """Jina-embeddings-v3: XLM-R with rotary positions."""

    name = "jina_embeddings_v3"
    prefix = "roberta"
    config_class = JinaEmbeddingsV3Config
    has_pooler = True
    constants = POST_NORM
    rules = stack_rules({"mlp.fc1.*": "mlp.up_proj.*", "mlp.fc2.*": "mlp.down_proj.*"})
    output_matrix = "lm_head.decoder.weight"
    output_bias = "lm_head.bias"
    heads = {
        "Model": Head(POOLER),
        "ForMaskedLM": ROBERTA_LM,
        "ForSequenceClassification": ROBERTA_CLASSIFIER,
        "ForTokenClassification": TOKEN_CLASSIFICATION,
        "ForQuestionAnswering": QUESTION_ANSWERING,
    }
    stored_names = StoredNames(
        {**LAYER_NAMES, r"\.mixer\.out_proj\.": ".self_attn.o_proj."}, {"mixer.Wqkv": QKV}
    )


class Gte(RopeEncoder):
    """GTE v1.5 and multilingual: a gated feed-forward with a bias only in its last matrix."""

    name = "gte"
    prefix = "gte"
    config_class = GteConfig
    has_pooler = False
    constants = {**POST_NORM, "gated_mlp": True, "mlp_bias": ["down"]}
    output_matrix = "lm_head.decoder.weight"
    heads = {
        "Model": Head(POOLER),
        "ForMaskedLM": Head(
            ROBERTA_TRANSFORM + renamed({"lm_head.decoder.bias": "lm_head.bias"}), gelu_lm_fields
        ),
        "ForSequenceClassification": pooled_classifier("gte"),
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
        return {"mlp_dropout": theirs.hidden_dropout_prob}

    def their_fields(self, ours: RoFormerLiteConfig) -> dict[str, Any]:
        return {"type_vocab_size": ours.type_vocab_size}


CONVERTERS = (NomicBert(), JinaV3(), Gte())
