"""What HF BERT and HF RoFormer share: the names of their tensors, their heads, and most fields of their configs."""

from abc import abstractmethod
from typing import Any

from transformers import PreTrainedConfig

from hf_roformer_lite import (
    RoFormerLiteConfig,
    RoFormerLiteForCausalLM,
    RoFormerLiteForMaskedLM,
    RoFormerLiteForQuestionAnswering,
    RoFormerLiteForTokenClassification,
)
from hf_roformer_lite.errors import InputError

from .converter import CLASSIC_FIELDS, SourceConfig
from .hugging_face import Head, HuggingFaceConverter
from .weight_map import WeightRule
from .weight_operations import UNCHANGED, Duplicates, Operation

EMBEDDINGS = (
    WeightRule("embeddings.word_embeddings.weight", "embeddings.word_embeddings.weight"),
    WeightRule("embeddings.token_type_embeddings.weight", "embeddings.token_type_embeddings.weight"),
    WeightRule("embeddings.LayerNorm.*", "embeddings.norm.*"),
)
LM_HEAD = (
    WeightRule("cls.predictions.transform.dense.*", "lm_transform.dense.*"),
    WeightRule("cls.predictions.transform.LayerNorm.*", "lm_transform.norm.*"),
)
TIED_OUTPUT = (WeightRule("cls.predictions.bias", "lm_head.bias"),)
UNTIED_OUTPUT = (
    WeightRule("cls.predictions.decoder.weight", "lm_head.weight"),
    WeightRule(("cls.predictions.decoder.bias", "cls.predictions.bias"), "lm_head.bias", Duplicates()),
)
COPIES_OF_TIED = ("cls.predictions.decoder.weight", "cls.predictions.decoder.bias")


def attention_rules(
    theirs: str,
    ours: str,
    rotary: Operation = UNCHANGED,
    value: Operation = UNCHANGED,
    output: Operation = UNCHANGED,
) -> tuple[WeightRule, ...]:
    """Rules of one attention. The operations reorder rotary channels: `rotary` those of queries and keys, `value`
    those of values, `output` the columns that read the values."""
    return (
        WeightRule(f"encoder.layer.{{i}}.{theirs}.self.query.*", f"layers.{{i}}.{ours}.q_proj.*", rotary),
        WeightRule(f"encoder.layer.{{i}}.{theirs}.self.key.*", f"layers.{{i}}.{ours}.k_proj.*", rotary),
        WeightRule(f"encoder.layer.{{i}}.{theirs}.self.value.*", f"layers.{{i}}.{ours}.v_proj.*", value),
        WeightRule(f"encoder.layer.{{i}}.{theirs}.output.dense.weight", f"layers.{{i}}.{ours}.o_proj.weight", output),
        WeightRule(f"encoder.layer.{{i}}.{theirs}.output.dense.bias", f"layers.{{i}}.{ours}.o_proj.bias"),
        WeightRule(f"encoder.layer.{{i}}.{theirs}.output.LayerNorm.*", f"layers.{{i}}.{ours}_norm.*"),
    )


def embedding_and_layer_rules(
    rotary: Operation = UNCHANGED, value: Operation = UNCHANGED, output: Operation = UNCHANGED
) -> tuple[WeightRule, ...]:
    """Rules of embeddings and layers; the operations as in `attention_rules`."""
    return (
        *EMBEDDINGS,
        *attention_rules("attention", "self_attn", rotary, value, output),
        *attention_rules("crossattention", "cross_attn"),
        WeightRule("encoder.layer.{i}.intermediate.dense.*", "layers.{i}.mlp.up_proj.*"),
        WeightRule("encoder.layer.{i}.output.dense.*", "layers.{i}.mlp.down_proj.*"),
        WeightRule("encoder.layer.{i}.output.LayerNorm.*", "layers.{i}.mlp_norm.*"),
    )


LM_FIELDS = {"lm_head_transform": True, "lm_head_bias": True}
MASKED_LM = Head(RoFormerLiteForMaskedLM, LM_HEAD, lambda config: LM_FIELDS, COPIES_OF_TIED)
CAUSAL_LM = Head(RoFormerLiteForCausalLM, LM_HEAD, lambda config: LM_FIELDS, COPIES_OF_TIED)
TOKEN_CLASSIFICATION = Head(RoFormerLiteForTokenClassification, (WeightRule("classifier.*", "classifier.out_proj.*"),))
QUESTION_ANSWERING = Head(RoFormerLiteForQuestionAnswering, (WeightRule("qa_outputs.*", "classifier.out_proj.*"),))


class BertFamilyConverter(HuggingFaceConverter):
    """A source with BERT's names: post-norm layers, a norm on the embeddings, the heads `cls.predictions`."""

    # As checkpoints of TensorFlow times call them.
    current_names = {r"LayerNorm\.gamma": "LayerNorm.weight", r"LayerNorm\.beta": "LayerNorm.bias"}

    @abstractmethod
    def stack_fields(self, theirs: PreTrainedConfig) -> dict[str, Any]:
        """Fields of our config that differ between the members of the family, such as the kind of positions."""

    def our_config(self, source_config: SourceConfig) -> RoFormerLiteConfig:
        theirs = self.config_class.from_dict(dict(source_config))
        head = self.head(source_config)
        if head.model_class is RoFormerLiteForCausalLM and not theirs.is_decoder:
            raise InputError(
                "is_decoder=False: without it their causal model attends to later tokens; ours never does"
            )
        fields = {
            **CLASSIC_FIELDS,
            "vocab_size": theirs.vocab_size,
            "hidden_size": theirs.hidden_size,
            "type_vocab_size": theirs.type_vocab_size,
            "num_hidden_layers": theirs.num_hidden_layers,
            "num_attention_heads": theirs.num_attention_heads,
            "intermediate_size": theirs.intermediate_size,
            "hidden_act": theirs.hidden_act,
            "hidden_dropout": theirs.hidden_dropout_prob,
            "attention_dropout": theirs.attention_probs_dropout_prob,
            "norm_placement": "post",
            "final_norm": False,
            "norm_eps": theirs.layer_norm_eps,
            "embedding_norm": True,
            "max_position_embeddings": theirs.max_position_embeddings,
            "initializer_range": theirs.initializer_range,
            "pad_token_id": theirs.pad_token_id,
            "bos_token_id": theirs.bos_token_id,
            "eos_token_id": theirs.eos_token_id,
            "is_decoder": theirs.is_decoder,
            "add_cross_attention": theirs.add_cross_attention,
            "use_cache": theirs.use_cache,
            "tie_word_embeddings": theirs.tie_word_embeddings,
            "id2label": theirs.id2label,
            "label2id": theirs.label2id,
            "problem_type": theirs.problem_type,
        }
        return RoFormerLiteConfig(**{**fields, **self.stack_fields(theirs), **head.config_fields(theirs)})

    def output_rules(self, our_config: RoFormerLiteConfig) -> tuple[WeightRule, ...]:
        return TIED_OUTPUT if our_config.tie_word_embeddings else UNTIED_OUTPUT
