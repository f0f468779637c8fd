"""What BERT's relatives share: the names of their tensors, their heads, and most fields of their configs."""

from typing import Any

from transformers import PreTrainedConfig, PreTrainedModel

from hf_roformer_lite import (
    RoFormerLiteConfig,
    RoFormerLiteForCausalLM,
    RoFormerLiteForMaskedLM,
    RoFormerLiteForMultipleChoice,
    RoFormerLiteForQuestionAnswering,
    RoFormerLiteForSequenceClassification,
    RoFormerLiteForTokenClassification,
    RoFormerLiteModel,
)
from roformer_lite.errors import InputError

from .converter import SourceConfig
from .hugging_face import COMMON_FIELDS, Head, HuggingFaceConverter, Rules, same_names
from .weight_map import WeightRule
from .weight_operations import UNCHANGED, Duplicates, Operation

EMBEDDINGS = (
    WeightRule("embeddings.word_embeddings.weight", "embeddings.word_embeddings.weight"),
    WeightRule("embeddings.token_type_embeddings.weight", "embeddings.token_type_embeddings.weight"),
    WeightRule("embeddings.LayerNorm.*", "embeddings.norm.*"),
)
POSITIONS = WeightRule("embeddings.position_embeddings.weight", "embeddings.position_embeddings.weight")
POOLER = (WeightRule("pooler.dense.*", "pooler.dense.*"),)
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
POOLED_FIELDS = {"classifier_pooling": "cls", "classifier_activation": "tanh"}
WITH_INPUT_DROPOUT = POOLED_FIELDS | {"classifier_input_dropout": True}
MASKED_LM = Head(RoFormerLiteForMaskedLM, LM_HEAD, lambda config: LM_FIELDS, COPIES_OF_TIED)
CAUSAL_LM = Head(RoFormerLiteForCausalLM, LM_HEAD, lambda config: LM_FIELDS, COPIES_OF_TIED)
LINEAR = (WeightRule("classifier.*", "classifier.out_proj.*"),)
TOKEN_CLASSIFICATION = Head(RoFormerLiteForTokenClassification, LINEAR)
QUESTION_ANSWERING = Head(
    RoFormerLiteForQuestionAnswering,
    (WeightRule("qa_outputs.*", "classifier.out_proj.*"),),
    lambda config: {"classifier_dropout": 0.0},
)

# Fields of BERT's config and of those that were made after it.
ENCODER_FIELDS = {
    **same_names(*COMMON_FIELDS, "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size"),
    "hidden_dropout": "hidden_dropout_prob",
    "attention_dropout": "attention_probs_dropout_prob",
    "norm_eps": "layer_norm_eps",
}
BERT_FIELDS = {
    **ENCODER_FIELDS,
    **same_names("hidden_act", "type_vocab_size", "max_position_embeddings", "use_cache"),
    **same_names("is_decoder", "add_cross_attention"),
}
POST_NORM = {"norm_placement": "post", "final_norm": False, "embedding_norm": True}


def pooled_classifier(prefix: str, model_class: type[PreTrainedModel] = RoFormerLiteForSequenceClassification) -> Head:
    """A linear layer on BERT's pooler, which is the dense layer of the classifier here."""
    pooler = WeightRule(f"{prefix}.pooler.dense.*", "classifier.dense.*")
    return Head(model_class, (pooler, *LINEAR), lambda config: POOLED_FIELDS)


def bert_heads(prefix: str, causal: str = "ForCausalLM") -> dict[str, Head]:
    """The heads of BERT and of classes with the same names; `causal` is what their causal class is called.

    Checkpoints of one head usually still hold the other heads of pre-training.
    """
    pooler = f"{prefix}.pooler.dense.*"
    leftovers = (pooler, "cls.seq_relationship.*")
    next_sentence = (
        WeightRule(pooler, "classifier.dense.*"),
        WeightRule("cls.seq_relationship.*", "classifier.out_proj.*"),
    )
    names = ("*", "transform.dense.*", "transform.LayerNorm.*")
    language_model = tuple(f"cls.predictions.{name}" for name in names)
    return {
        "Model": Head(RoFormerLiteModel, POOLER),
        "ForPreTraining": MASKED_LM.ignoring(*leftovers),
        "ForMaskedLM": MASKED_LM.ignoring(*leftovers),
        causal: CAUSAL_LM.ignoring(*leftovers),
        "ForNextSentencePrediction": Head(
            RoFormerLiteForSequenceClassification,
            next_sentence,
            lambda config: POOLED_FIELDS | {"classifier_dropout": 0.0},
            language_model,
        ),
        "ForSequenceClassification": pooled_classifier(prefix),
        "ForMultipleChoice": pooled_classifier(prefix, RoFormerLiteForMultipleChoice),
        "ForTokenClassification": TOKEN_CLASSIFICATION.ignoring(*leftovers),
        "ForQuestionAnswering": QUESTION_ANSWERING.ignoring(*leftovers),
    }


class BertFamilyConverter(HuggingFaceConverter):
    """A source with BERT's names: post-norm layers, a norm on the embeddings, the heads `cls.predictions`."""

    # As checkpoints of TensorFlow times call them.
    current_names = {r"LayerNorm\.gamma": "LayerNorm.weight", r"LayerNorm\.beta": "LayerNorm.bias"}
    fields = BERT_FIELDS
    constants = {**POST_NORM, "position_embedding_type": "learned"}
    ignored = ("embeddings.position_ids", "embeddings.token_type_ids")

    def computed_fields(self, theirs: PreTrainedConfig) -> dict[str, Any]:
        kind = getattr(theirs, "position_embedding_type", None) or "absolute"
        if kind != "absolute":
            raise InputError(f"position_embedding_type={kind!r}: only 'absolute' positions can be converted")
        return {"classifier_dropout": theirs.classifier_dropout}

    def their_fields(self, ours: RoFormerLiteConfig) -> dict[str, Any]:
        return {"classifier_dropout": ours.classifier_dropout, "type_vocab_size": max(1, ours.type_vocab_size)}

    def our_config(self, source_config: SourceConfig) -> RoFormerLiteConfig:
        config = super().our_config(source_config)
        is_causal = self.head(source_config).model_class is RoFormerLiteForCausalLM
        if is_causal and not config.is_decoder:
            raise InputError(
                "is_decoder=False: without it their causal model attends to later tokens; ours never does"
            )
        return config

    def stack_rules(self, ours: RoFormerLiteConfig, source_config: SourceConfig) -> Rules:
        return (*embedding_and_layer_rules(), POSITIONS)

    def output_rules(self, ours: RoFormerLiteConfig) -> Rules:
        return TIED_OUTPUT if ours.tie_word_embeddings else UNTIED_OUTPUT
