"""ModernBERT (also mmBERT, Ettin's encoders, gte-modernbert, granite-embedding-english-r2) and its
decoder (Ettin's).

Their dropout of attention probabilities is also applied after the output projection of attention;
ours is not. In all published checkpoints its probability is zero, so nothing differs.
"""

from typing import Any

from transformers import ModernBertConfig, ModernBertDecoderConfig, PreTrainedConfig

from hf_roformer_lite import RoFormerLiteConfig

from .bert import LINEAR, transform_rules
from .hugging_face import COMMON_FIELDS, SIZES, Head, HuggingFaceConverter, same_names
from .weight_map import CHUNK, ConversionError, Rules, WeightRule, in_layers, renamed

QKV = tuple(f"layers.{{i}}.self_attn.{part}_proj.*" for part in "qkv")
STACK = (
    *renamed(
        {"tok_embeddings.weight": "word_embeddings.weight", "norm.*": "norm.*"},
        "embeddings.",
        "embeddings.",
    ),
    *in_layers(
        {
            "attn_norm.*": "self_attn_norm.*",
            "attn.Wo.*": "self_attn.o_proj.*",
            "mlp_norm.*": "mlp_norm.*",
            "mlp.Wo.*": "mlp.down_proj.*",
        }
    ),
    WeightRule(
        "layers.{i}.mlp.Wi.*", ("layers.{i}.mlp.gate_proj.*", "layers.{i}.mlp.up_proj.*"), CHUNK
    ),
    WeightRule("final_norm.*", "final_norm.*"),
)
WITHOUT_BIAS = WeightRule("classifier.weight", "classifier.out_proj.weight")


def _lm_fields(theirs: PreTrainedConfig) -> dict[str, Any]:
    if theirs.classifier_activation != theirs.hidden_activation:
        raise ConversionError(
            f"classifier_activation={theirs.classifier_activation!r}: the LM head of RoFormerLite "
            "has the activation of the layers, "
            f"hidden_activation={theirs.hidden_activation!r}"
        )
    return {"lm_head_transform": True, "lm_head_bias": theirs.decoder_bias}


def _classifier_fields(theirs: PreTrainedConfig) -> dict[str, Any]:
    return {
        "classifier_activation": theirs.classifier_activation,
        "classifier_norm": True,
        # The decoder always reads the last token, and has no such field.
        "classifier_pooling": getattr(theirs, "classifier_pooling", "last"),
    }


def language_model(transform: str) -> Head:
    """A language model whose transform is called `transform`."""
    rules = transform_rules(f"{transform}.dense", f"{transform}.norm")
    return Head((*rules, WeightRule("decoder.bias", "lm_head.bias")), _lm_fields)


CLASSIFIER_LAYER = renamed(
    {"head.dense.*": "classifier.dense.*", "head.norm.*": "classifier.norm.*"}
)
CLASSIFIER = Head((*CLASSIFIER_LAYER, *LINEAR), _classifier_fields)


class ModernBert(HuggingFaceConverter):
    """ModernBERT and all encoders of its type."""

    name = "modernbert"
    prefix = "model"
    config_class = ModernBertConfig
    fields = {
        **COMMON_FIELDS,
        **SIZES,
        **same_names(
            "norm_eps",
            "norm_bias",
            "attention_bias",
            "mlp_bias",
            "mlp_dropout",
            "attention_dropout",
        ),
        **same_names(
            *("layer_types", "max_position_embeddings", "rope_parameters", "classifier_dropout"),
            hidden_act="hidden_activation",
            hidden_dropout="embedding_dropout",
            head_bias="classifier_bias",
        ),
    }
    constants = {
        "norm_placement": "pre",
        "final_norm": True,
        "embedding_norm": True,
        "first_attention_norm": False,
        "gated_mlp": True,
        "hidden_dropout_places": ["embeddings"],
    }
    rules = (*STACK, WeightRule("layers.{i}.attn.Wqkv.*", QKV, CHUNK))
    output_matrix = "decoder.weight"
    heads = {
        "Model": Head(),
        "ForMaskedLM": language_model("head"),
        "ForSequenceClassification": CLASSIFIER,
        "ForTokenClassification": CLASSIFIER,
        "ForQuestionAnswering": CLASSIFIER,
        "ForMultipleChoice": CLASSIFIER,
    }

    def computed_fields(self, theirs: PreTrainedConfig) -> dict[str, Any]:
        return {"sliding_window": theirs.local_attention // 2}

    def their_fields(self, ours: RoFormerLiteConfig) -> dict[str, Any]:
        return {
            "local_attention": 2 * (ours.sliding_window or 1),
            "classifier_activation": ours.classifier_activation or ours.hidden_act,
            "decoder_bias": ours.lm_head_bias,
            "cls_token_id": ours.bos_token_id,
            "sep_token_id": ours.eos_token_id,
        }


class ModernBertDecoder(ModernBert):
    """Ettin's decoders: the same layers, causal."""

    name = "modernbert-decoder"
    config_class = ModernBertDecoderConfig
    fields = {**ModernBert.fields, **same_names("use_cache")}
    constants = {**ModernBert.constants, "is_decoder": True}
    rules = (
        *STACK,
        *in_layers({f"attn.{part}_proj.*": f"self_attn.{part}_proj.*" for part in "qkv"}),
    )
    heads = {
        "Model": Head(),
        "ForCausalLM": language_model("lm_head"),
        "ForSequenceClassification": CLASSIFIER,
    }

    def computed_fields(self, theirs: PreTrainedConfig) -> dict[str, Any]:
        # Their files may hold a window of their own, which wins over `local_attention`.
        return {"sliding_window": theirs.sliding_window}

    def head_rules(self, head: Head, ours: PreTrainedConfig) -> Rules:
        if ours.head_bias or head is not CLASSIFIER:
            return head.rules
        return (*CLASSIFIER_LAYER, WITHOUT_BIAS)


CONVERTERS = (ModernBert(), ModernBertDecoder())
