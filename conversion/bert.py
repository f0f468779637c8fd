"""BERT, ERNIE, RoBERTa, XLM-RoBERTa, CamemBERT, ELECTRA, DistilBERT and ALBERT, with all heads.

BERT's positions count all tokens of a row, ours only the real ones: here, in rows padded on the
left, each token keeps the position that it has without padding. BERT's pre-training class becomes
our masked language model, and its next-sentence class a sequence classifier; the discriminator of
ELECTRA's pre-training becomes a token classifier with one score. RoBERTa's positions begin after
the id of padding: the earlier rows of the table are never read, are left out here, and are exported
as zeros. ALBERT's layers share weights; here each layer has a copy, and after training these
differ. ALBERT always has a projection after its embeddings, and ours only if the two widths differ;
an ALBERT with equal widths is not supported.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from transformers import (
    AlbertConfig,
    BertConfig,
    CamembertConfig,
    DistilBertConfig,
    ElectraConfig,
    ErnieConfig,
    PreTrainedConfig,
    RobertaConfig,
    XLMRobertaConfig,
)

from hf_roformer_lite import RoFormerLiteConfig, RoFormerLiteForCausalLM, RoFormerLiteForMaskedLM

from .converter import SourceConfig
from .hugging_face import (
    COMMON_FIELDS,
    SIZES,
    WORDS,
    Head,
    HuggingFaceConverter,
    dropout_of_head,
    same_names,
)
from .weight_map import (
    REPEAT,
    SUM_OF_ROWS,
    UNCHANGED,
    ConversionError,
    Operation,
    Rules,
    StoredNames,
    WeightRule,
    drop_rows,
    in_layers,
    projections,
    renamed,
)

LAYER = "encoder.layer.{i}."
SEGMENTS = "embeddings.token_type_embeddings.weight"
POSITIONS = "embeddings.position_embeddings.weight"
EMBEDDINGS = renamed(
    {WORDS: WORDS, SEGMENTS: SEGMENTS, "embeddings.LayerNorm.*": "embeddings.norm.*"}
)
POOLER = renamed({"pooler.dense.*": "pooler.dense.*"})


def attention_rules(
    theirs: str,
    ours: str,
    rotary: Operation = UNCHANGED,
    value: Operation = UNCHANGED,
    output: Operation = UNCHANGED,
) -> Rules:
    """The rules of one attention. The operations reorder rotary channels: `rotary` the rows of
    queries and keys, `value` the rows of values, `output` the columns that read the values."""
    theirs = LAYER + theirs
    ours = f"layers.{{i}}.{ours}"
    return (
        WeightRule(f"{theirs}.self.query.*", f"{ours}.q_proj.*", rotary),
        WeightRule(f"{theirs}.self.key.*", f"{ours}.k_proj.*", rotary),
        WeightRule(f"{theirs}.self.value.*", f"{ours}.v_proj.*", value),
        WeightRule(f"{theirs}.output.dense.weight", f"{ours}.o_proj.weight", output),
        WeightRule(f"{theirs}.output.dense.bias", f"{ours}.o_proj.bias"),
        WeightRule(f"{theirs}.output.LayerNorm.*", f"{ours}_norm.*"),
    )


FEED_FORWARD = in_layers(
    {
        "intermediate.dense.*": "mlp.up_proj.*",
        "output.dense.*": "mlp.down_proj.*",
        "output.LayerNorm.*": "mlp_norm.*",
    },
    LAYER,
)
STACK = (
    *EMBEDDINGS,
    *attention_rules("attention", "self_attn"),
    *attention_rules("crossattention", "cross_attn"),
    *FEED_FORWARD,
)
WITH_POSITIONS = (*STACK, WeightRule(POSITIONS, POSITIONS))

ENCODER_FIELDS = {
    **COMMON_FIELDS,
    **SIZES,
    **same_names(
        hidden_dropout="hidden_dropout_prob", attention_dropout="attention_probs_dropout_prob"
    ),
    **same_names(norm_eps="layer_norm_eps"),
}
BERT_FIELDS = {
    **ENCODER_FIELDS,
    **same_names("hidden_act", "type_vocab_size", "max_position_embeddings", "use_cache"),
    **same_names("is_decoder", "add_cross_attention"),
}
POST_NORM = {"norm_placement": "post", "final_norm": False, "embedding_norm": True}
LEARNED_POSITIONS = {**POST_NORM, "position_embedding_type": "learned"}
# Checkpoints from TensorFlow have these names.
TENSORFLOW_NAMES = StoredNames(
    {r"LayerNorm\.gamma$": "LayerNorm.weight", r"LayerNorm\.beta$": "LayerNorm.bias"}
)

LINEAR = renamed({"classifier.*": "classifier.out_proj.*"})
DENSE_CLASSIFIER = renamed(
    {f"classifier.{part}.*": f"classifier.{part}.*" for part in ("dense", "out_proj")}
)
LM_FIELDS = {"lm_head_transform": True, "lm_head_bias": True}
POOLED_FIELDS = {"classifier_pooling": "cls", "classifier_activation": "tanh"}
WITH_INPUT_DROPOUT = POOLED_FIELDS | {"classifier_input_dropout": True}
WITHOUT_DROPOUT = {"classifier_dropout": 0.0}
TOKEN_CLASSIFICATION = Head(LINEAR)
QUESTION_ANSWERING = Head(renamed({"qa_outputs.*": "classifier.out_proj.*"}), WITHOUT_DROPOUT)


def transform_rules(dense: str, norm: str) -> Rules:
    """The rules of the dense layer and the norm before a language model's output."""
    return renamed({f"{dense}.*": "lm_transform.dense.*", f"{norm}.*": "lm_transform.norm.*"})


TRANSFORM = "cls.predictions.transform"
LANGUAGE_MODEL = Head(transform_rules(f"{TRANSFORM}.dense", f"{TRANSFORM}.LayerNorm"), LM_FIELDS)


def pooled_classifier(prefix: str) -> Head:
    """A linear layer on BERT's pooler, which becomes the dense layer of our classifier."""
    return Head(
        (*renamed({f"{prefix}.pooler.dense.*": "classifier.dense.*"}), *LINEAR), POOLED_FIELDS
    )


def bert_heads(prefix: str, causal: str = "ForCausalLM") -> dict[str, Head]:
    """The heads of BERT and of classes with the same names; `causal` is the name of their causal
    class."""
    next_sentence = {
        f"{prefix}.pooler.dense.*": "classifier.dense.*",
        "cls.seq_relationship.*": "classifier.out_proj.*",
    }
    return {
        "Model": Head(POOLER),
        "ForPreTraining": replace(LANGUAGE_MODEL, becomes="ForMaskedLM"),
        "ForMaskedLM": LANGUAGE_MODEL,
        causal: replace(LANGUAGE_MODEL, becomes="ForCausalLM"),
        "ForNextSentencePrediction": Head(
            renamed(next_sentence),
            POOLED_FIELDS | WITHOUT_DROPOUT,
            becomes="ForSequenceClassification",
        ),
        "ForSequenceClassification": pooled_classifier(prefix),
        "ForMultipleChoice": pooled_classifier(prefix),
        "ForTokenClassification": TOKEN_CLASSIFICATION,
        "ForQuestionAnswering": QUESTION_ANSWERING,
    }


def gelu_lm_fields(theirs: PreTrainedConfig) -> dict[str, Any]:
    """The fields of a language model whose transform always has gelu.

    Raises:
        ConversionError: for layers with another activation.
    """
    if theirs.hidden_act != "gelu":
        raise ConversionError(
            f"hidden_act={theirs.hidden_act!r}: their LM head always has 'gelu', "
            "but RoFormerLite's has the activation of the layers"
        )
    return LM_FIELDS


class BertFamilyConverter(HuggingFaceConverter):
    """A source with BERT's names: post-norm layers, a norm after the embeddings, and the heads
    `cls.predictions`."""

    stored_names = TENSORFLOW_NAMES
    fields = {**BERT_FIELDS, **same_names("classifier_dropout")}
    constants = LEARNED_POSITIONS
    rules = WITH_POSITIONS
    ignored = ("embeddings.position_ids", "embeddings.token_type_ids", "pooler.dense.*")
    unread_heads = (
        "cls.seq_relationship.*",
        "cls.predictions.*",
        f"{TRANSFORM}.dense.*",
        f"{TRANSFORM}.LayerNorm.*",
    )
    output_matrix = "cls.predictions.decoder.weight"
    output_bias = "cls.predictions.bias"

    def our_config(self, source_config: SourceConfig) -> RoFormerLiteConfig:
        config = super().our_config(source_config)
        kind = source_config.get("position_embedding_type") or "absolute"
        if kind != "absolute" and config.position_embedding_type == "learned":
            raise ConversionError(
                f"position_embedding_type={kind!r}: only 'absolute' positions can be converted"
            )
        model_class = self.our_model_class(source_config)
        if model_class is RoFormerLiteForCausalLM and not config.is_decoder:
            raise ConversionError(
                "is_decoder=False: their causal model then attends to later tokens, but "
                "RoFormerLite's never does"
            )
        if model_class is RoFormerLiteForMaskedLM and config.is_decoder:
            raise ConversionError(
                "is_decoder=True: their masked language model then attends only to earlier tokens, "
                "but RoFormerLite's attends to all"
            )
        return config


class Bert(BertFamilyConverter):
    """BERT, and sentence encoders of its shape."""

    name = "bert"
    prefix = "bert"
    config_class = BertConfig
    has_pooler = True
    heads = bert_heads("bert", causal="LMHeadModel")


TASKS = "embeddings.task_type_embeddings.weight"


class Ernie(BertFamilyConverter):
    """ERNIE 2 and 3. Each token also has a task embedding; here the embedding of the first task is
    added to those of the segments."""

    name = "ernie"
    prefix = "ernie"
    config_class = ErnieConfig
    has_pooler = True
    heads = bert_heads("ernie")

    def complete_config(
        self, source_config: SourceConfig, state_dict: Mapping[str, torch.Tensor]
    ) -> dict[str, Any]:
        has_tasks = any(name.endswith(TASKS) for name in state_dict)
        return super().complete_config(source_config, state_dict) | {"use_task_id": has_tasks}

    def stack_rules(self, ours: RoFormerLiteConfig, source_config: SourceConfig) -> Rules:
        if not source_config.get("use_task_id"):
            return self.rules
        others = (rule for rule in self.rules if rule.theirs != SEGMENTS)
        return (*others, WeightRule((SEGMENTS, TASKS), SEGMENTS, SUM_OF_ROWS))


def _discriminator_fields(theirs: ElectraConfig) -> dict[str, Any]:
    return {
        **WITHOUT_DROPOUT,
        "num_labels": 1,
        "id2label": None,
        "label2id": None,
        "classifier_activation": theirs.hidden_act,
    }


def _summary_fields(theirs: ElectraConfig) -> dict[str, Any]:
    if theirs.summary_type != "first" or not theirs.summary_use_proj:
        raise ConversionError(
            f"summary_type={theirs.summary_type!r}, summary_use_proj={theirs.summary_use_proj}: "
            "only 'first' with a projection has an equivalent in RoFormerLite"
        )
    return {
        "classifier_pooling": "cls",
        "classifier_activation": theirs.summary_activation,
        "classifier_dropout": theirs.summary_last_dropout,
    }


ELECTRA_LM = Head(
    transform_rules("generator_predictions.dense", "generator_predictions.LayerNorm")
    + renamed({"generator_lm_head.bias": "lm_head.bias"}),
    gelu_lm_fields,
)


DISCRIMINATOR = renamed(
    {"dense.*": "dense.*", "dense_prediction.*": "out_proj.*"},
    "discriminator_predictions.",
    "classifier.",
)


class Electra(BertFamilyConverter):
    """ELECTRA: BERT with a projection after its embeddings."""

    name = "electra"
    prefix = "electra"
    config_class = ElectraConfig
    fields = {**BertFamilyConverter.fields, **same_names("embedding_size")}
    rules = (*WITH_POSITIONS, WeightRule("embeddings_project.*", "embeddings.projection.*"))
    output_matrix = "generator_lm_head.weight"
    output_bias = None
    heads = {
        "Model": Head(),
        "ForPreTraining": Head(
            DISCRIMINATOR, _discriminator_fields, becomes="ForTokenClassification"
        ),
        "ForMaskedLM": ELECTRA_LM,
        "ForCausalLM": ELECTRA_LM,
        "ForSequenceClassification": Head(
            DENSE_CLASSIFIER, WITH_INPUT_DROPOUT | {"classifier_activation": "gelu"}
        ),
        "ForMultipleChoice": Head(
            (*renamed({"sequence_summary.summary.*": "classifier.dense.*"}), *LINEAR),
            _summary_fields,
        ),
        "ForTokenClassification": TOKEN_CLASSIFICATION,
        "ForQuestionAnswering": QUESTION_ANSWERING,
    }

    def their_fields(self, ours: RoFormerLiteConfig) -> dict[str, Any]:
        fields: dict[str, Any] = {"summary_last_dropout": dropout_of_head(ours)}
        if ours.classifier_activation is not None:
            fields["summary_activation"] = ours.classifier_activation
        return fields


def _distilbert_classifier_fields(theirs: DistilBertConfig) -> dict[str, Any]:
    return {
        "classifier_pooling": "cls",
        "classifier_activation": "relu",
        "classifier_dropout": theirs.seq_classif_dropout,
    }


DISTILBERT_CLASSIFIER = Head(
    (*renamed({"pre_classifier.*": "classifier.dense.*"}), *LINEAR), _distilbert_classifier_fields
)


class DistilBert(HuggingFaceConverter):
    """DistilBERT: BERT without segments, with a fixed eps."""

    name = "distilbert"
    prefix = "distilbert"
    config_class = DistilBertConfig
    fields = {
        **COMMON_FIELDS,
        **same_names("max_position_embeddings", "attention_dropout", hidden_dropout="dropout"),
        **same_names(
            hidden_size="dim", num_hidden_layers="n_layers", num_attention_heads="n_heads"
        ),
        **same_names(intermediate_size="hidden_dim", hidden_act="activation"),
    }
    constants = {
        **LEARNED_POSITIONS,
        "norm_eps": 1e-12,
        "hidden_dropout_places": ["embeddings", "mlp"],
    }
    rules = (
        *(rule for rule in EMBEDDINGS if rule.theirs != SEGMENTS),
        WeightRule(POSITIONS, POSITIONS),
        *in_layers(
            {
                **projections(
                    "attention.q_lin", "attention.k_lin", "attention.v_lin", "attention.out_lin"
                ),
                "sa_layer_norm.*": "self_attn_norm.*",
                "ffn.lin1.*": "mlp.up_proj.*",
                "ffn.lin2.*": "mlp.down_proj.*",
                "output_layer_norm.*": "mlp_norm.*",
            },
            "transformer.layer.{i}.",
        ),
    )
    output_matrix = "vocab_projector.weight"
    heads = {
        "Model": Head(),
        "ForMaskedLM": Head(
            transform_rules("vocab_transform", "vocab_layer_norm")
            + renamed({"vocab_projector.bias": "lm_head.bias"}),
            LM_FIELDS,
        ),
        "ForSequenceClassification": DISTILBERT_CLASSIFIER,
        "ForMultipleChoice": DISTILBERT_CLASSIFIER,
        "ForTokenClassification": TOKEN_CLASSIFICATION,
        "ForQuestionAnswering": replace(
            QUESTION_ANSWERING, fields=lambda theirs: {"classifier_dropout": theirs.qa_dropout}
        ),
    }

    def their_fields(self, ours: RoFormerLiteConfig) -> dict[str, Any]:
        return dict.fromkeys(("seq_classif_dropout", "qa_dropout"), dropout_of_head(ours))


ROBERTA_TRANSFORM = transform_rules("lm_head.dense", "lm_head.layer_norm")
ROBERTA_LM = Head(ROBERTA_TRANSFORM, gelu_lm_fields)
ROBERTA_CLASSIFIER = Head(DENSE_CLASSIFIER, WITH_INPUT_DROPOUT)


def _multiple_choice_fields(theirs: RobertaConfig) -> dict[str, Any]:
    return POOLED_FIELDS | {"classifier_dropout": theirs.hidden_dropout_prob}


class Roberta(BertFamilyConverter):
    """RoBERTa and its relatives of the same shape."""

    name = "roberta"
    prefix = "roberta"
    config_class = RobertaConfig
    has_pooler = True
    fields = {
        ours: theirs
        for ours, theirs in BertFamilyConverter.fields.items()
        if ours != "max_position_embeddings"
    }
    output_matrix = "lm_head.decoder.weight"
    output_bias = "lm_head.bias"
    heads = {
        "Model": Head(POOLER),
        "ForMaskedLM": ROBERTA_LM,
        "ForCausalLM": ROBERTA_LM,
        "ForSequenceClassification": ROBERTA_CLASSIFIER,
        "ForMultipleChoice": replace(pooled_classifier("roberta"), fields=_multiple_choice_fields),
        "ForTokenClassification": TOKEN_CLASSIFICATION,
        "ForQuestionAnswering": QUESTION_ANSWERING,
    }

    def computed_fields(self, theirs: PreTrainedConfig) -> dict[str, Any]:
        return {"max_position_embeddings": theirs.max_position_embeddings - unused_rows(theirs)}

    def their_fields(self, ours: RoFormerLiteConfig) -> dict[str, Any]:
        return {"max_position_embeddings": ours.max_position_embeddings + unused_rows(ours)}

    def stack_rules(self, ours: RoFormerLiteConfig, source_config: SourceConfig) -> Rules:
        return (*STACK, WeightRule(POSITIONS, POSITIONS, drop_rows(unused_rows(ours))))


class XLMRoberta(Roberta):
    """XLM-R, and the many multilingual sentence encoders of its shape."""

    name = "xlm-roberta"
    config_class = XLMRobertaConfig


class Camembert(Roberta):
    """CamemBERT."""

    name = "camembert"
    config_class = CamembertConfig


def unused_rows(config: PreTrainedConfig) -> int:
    """The number of rows of their table of positions up to the id of padding, which no token reads.

    Raises:
        ConversionError: for a config without this id.
    """
    if config.pad_token_id is None:
        raise ConversionError("pad_token_id=None: their positions begin after this id; set one")
    return config.pad_token_id + 1


ALBERT_LAYER = {
    **projections("attention.query", "attention.key", "attention.value", "attention.dense"),
    "attention.LayerNorm.*": "self_attn_norm.*",
    "ffn.*": "mlp.up_proj.*",
    "ffn_output.*": "mlp.down_proj.*",
    "full_layer_layer_norm.*": "mlp_norm.*",
}
ALBERT_LM = transform_rules("predictions.dense", "predictions.LayerNorm")
ALBERT_CLASSIFIER = Head(
    (*renamed({"albert.pooler.*": "classifier.dense.*"}), *LINEAR), POOLED_FIELDS
)


def groups_of_layers(layers: int, groups: int) -> list[list[int]]:
    """The layers of each group, which share their weights."""
    group_of = [int(layer / (layers / groups)) for layer in range(layers)]
    return [
        [layer for layer in range(layers) if group_of[layer] == group] for group in range(groups)
    ]


def are_copies(weights: Mapping[str, torch.Tensor], members: Sequence[int]) -> bool:
    """Whether our layers `members` are equal."""
    first = f"layers.{members[0]}."
    names = [name for name in weights if first in name]
    return all(
        torch.equal(weights[name], weights[name.replace(first, f"layers.{layer}.")])
        for layer in members[1:]
        for name in names
    )


class Albert(HuggingFaceConverter):
    """ALBERT, also with several groups of layers."""

    name = "albert"
    prefix = "albert"
    config_class = AlbertConfig
    has_pooler = True
    fields = {
        **ENCODER_FIELDS,
        **same_names("embedding_size", "hidden_act", "type_vocab_size", "max_position_embeddings"),
        **same_names(classifier_dropout="classifier_dropout_prob"),
    }
    constants = {**LEARNED_POSITIONS, "hidden_dropout_places": ["embeddings", "attention"]}
    rules = (
        *EMBEDDINGS,
        WeightRule(POSITIONS, POSITIONS),
        WeightRule("encoder.embedding_hidden_mapping_in.*", "embeddings.projection.*"),
    )
    ignored = ("embeddings.position_ids", "embeddings.token_type_ids", "pooler.*")
    unread_heads = ("sop_classifier.classifier.*",)
    output_matrix = "predictions.decoder.weight"
    output_bias = "predictions.bias"
    heads = {
        "Model": Head(renamed({"pooler.*": "pooler.dense.*"})),
        "ForPreTraining": Head(ALBERT_LM, LM_FIELDS, becomes="ForMaskedLM"),
        "ForMaskedLM": Head(ALBERT_LM, LM_FIELDS),
        "ForSequenceClassification": ALBERT_CLASSIFIER,
        "ForMultipleChoice": ALBERT_CLASSIFIER,
        "ForTokenClassification": TOKEN_CLASSIFICATION,
        "ForQuestionAnswering": QUESTION_ANSWERING,
    }

    def computed_fields(self, theirs: AlbertConfig) -> dict[str, Any]:
        if theirs.embedding_size == theirs.hidden_size:
            raise ConversionError(
                f"embedding_size={theirs.embedding_size} is hidden_size: ALBERT always has a "
                "projection between the two, but RoFormerLite only if they differ"
            )
        if theirs.inner_group_num != 1:
            raise ConversionError(
                f"inner_group_num={theirs.inner_group_num}: groups must have a single layer"
            )
        return {}

    def settle(self, theirs: AlbertConfig, weights: Mapping[str, torch.Tensor]) -> None:
        """Set the smallest possible number of groups. After training here, each layer is a group of
        its own."""
        num_layers = theirs.num_hidden_layers
        for num_groups in range(1, num_layers + 1):
            groups = groups_of_layers(num_layers, num_groups)
            if all(are_copies(weights, members) for members in groups):
                theirs.num_hidden_groups = num_groups
                return

    def stack_rules(self, ours: RoFormerLiteConfig, source_config: SourceConfig) -> Rules:
        rules = list(self.rules)
        groups = groups_of_layers(ours.num_hidden_layers, source_config.get("num_hidden_groups", 1))
        for group, members in enumerate(groups):
            prefix = f"encoder.albert_layer_groups.{group}.albert_layers.0."
            for theirs, name in ALBERT_LAYER.items():
                copies = tuple(f"layers.{layer}.{name}" for layer in members)
                rules.append(WeightRule(prefix + theirs, copies, REPEAT))
        return tuple(rules)


CONVERTERS = (
    Bert(),
    Ernie(),
    Roberta(),
    XLMRoberta(),
    Camembert(),
    Electra(),
    DistilBert(),
    Albert(),
)
