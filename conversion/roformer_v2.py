"""RoFormerV2: RoFormer without biases, and with norms that divide by the root mean square and have no gain.

Its published code writes RoFormer's model type; `norm_type="rms_norm"` in the config tells the two apart. Here the
norms have a gain, which is one after the conversion; a model whose gains have been trained cannot go back.
"""

from typing import Any

from transformers import BertTokenizerFast, PreTrainedConfig, PreTrainedModel, RoFormerConfig

from hf_roformer_lite import RoFormerLiteConfig, RoFormerLiteForMaskedLM, RoFormerLiteModel
from roformer_lite.errors import InputError

from . import published_classes
from .bert_family import EMBEDDINGS, ENCODER_FIELDS, POST_NORM, attention_rules
from .converter import SourceConfig
from .hugging_face import Head, HuggingFaceConverter, Rules, same_names
from .roformer import HEADS, is_second_version
from .weight_map import WeightRule
from .weight_operations import UNCHANGED, Constant, PermuteForRope

LM_MATRIX = "cls.predictions.decoder.weight"
LAYER_NORMS = ("layers.{i}.self_attn_norm.weight", "layers.{i}.mlp_norm.weight")


class RoFormerV2(HuggingFaceConverter):
    """Config: the fields of RoFormerConfig, `norm_type`, `use_bias`, and `architectures` for the head."""

    name = "roformer_v2"
    prefix = "roformer"
    tokenizer_class = BertTokenizerFast
    config_class = RoFormerConfig
    in_transformers = False
    fields = {
        **ENCODER_FIELDS,
        **same_names("hidden_act", "type_vocab_size", "max_position_embeddings", "rotary_value", "embedding_size"),
    }
    constants = {**POST_NORM, "norm_type": "rmsnorm", "attention_bias": False, "mlp_bias": False}
    ignored = ("encoder.embed_positions.weight",)
    output_matrix = LM_MATRIX
    heads = {
        "Model": Head(RoFormerLiteModel),
        "ForMaskedLM": Head(RoFormerLiteForMaskedLM, ignored=(LM_MATRIX,)),
        **{name: HEADS[name] for name in ("ForSequenceClassification", "ForTokenClassification")},
        "ForQuestionAnswering": HEADS["ForQuestionAnswering"],
    }

    refused = {
        "ForCausalLM": "it sees the whole prompt from each of its tokens, causal models here earlier ones alone"
    }

    def reads(self, source_config: SourceConfig) -> bool:
        return is_second_version(source_config)

    def their_class(self, source_config: SourceConfig) -> type[PreTrainedModel]:
        return getattr(published_classes, self.architecture(source_config))

    def computed_fields(self, theirs: PreTrainedConfig) -> dict[str, Any]:
        norm_type, use_bias = getattr(theirs, "norm_type", "rms_norm"), getattr(theirs, "use_bias", False)
        if norm_type != "rms_norm" or use_bias:
            raise InputError(
                f"norm_type={norm_type!r}, use_bias={use_bias}: RoFormerV2 has norm_type='rms_norm' and no biases; "
                "RoFormer with layer norms and biases is the source roformer"
            )
        if theirs.is_decoder or theirs.add_cross_attention:
            raise InputError(f"is_decoder={theirs.is_decoder}: only encoders of RoFormerV2 can be converted")
        return {}

    def their_fields(self, ours: RoFormerLiteConfig) -> dict[str, Any]:
        return {"norm_type": "rms_norm", "use_bias": False, "type_vocab_size": max(1, ours.type_vocab_size)}

    def stack_rules(self, ours: RoFormerLiteConfig, source_config: SourceConfig) -> Rules:
        rows, columns = (PermuteForRope(ours.num_attention_heads, dim) for dim in (0, 1))
        value, output = (rows, columns) if ours.rotary_value else (UNCHANGED, UNCHANGED)
        attention = attention_rules("attention", "self_attn", rows, value, output)
        return (
            *(rule for rule in (*EMBEDDINGS, *attention) if "LayerNorm" not in rule.theirs),
            WeightRule("encoder.layer.{i}.intermediate.dense.*", "layers.{i}.mlp.up_proj.*"),
            WeightRule("encoder.layer.{i}.output.dense.*", "layers.{i}.mlp.down_proj.*"),
            WeightRule("embeddings_project.*", "embeddings.projection.*"),
            WeightRule((), "embeddings.norm.weight", Constant(1.0, ours.embedding_size)),
            *(WeightRule((), name, Constant(1.0, ours.hidden_size)) for name in LAYER_NORMS),
        )


CONVERTER = RoFormerV2()
