"""The base class of sources whose models are classes of transformers, or are published with such
classes: a bare stack, or one inside a class with a head.

A family is described by data: the correspondence between their config fields and ours, the fields
of ours that are the same in all its checkpoints, and the names of the tensors of stack and heads.
The same data is used to export a RoFormerLite model to the family (`going_back.py`).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
import transformers
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.modeling_outputs import ModelOutput

import hf_roformer_lite
from hf_roformer_lite import RoFormerLiteConfig
from hf_roformer_lite.model.configuration_roformer_lite import LAYER_TYPES

from .converter import CLASSIC_FIELDS, Converter, SourceConfig, Tensors
from .poolings import POOLINGS
from .weight_map import DUPLICATES, ConversionError, Rules, WeightMap, WeightRule, constant

OUR_PREFIX = "RoFormerLite"
WORDS = "embeddings.word_embeddings.weight"
# This entry of rope_parameters has no effect.
WHOLE_HEAD = ("partial_rotary_factor", 1.0)


def same_names(*fields: str, **renamed: str) -> dict[str, str]:
    """The names of our fields and of theirs, for `HuggingFaceConverter.fields`: `fields` have the
    same name, `renamed` are ours=theirs."""
    return {**{name: name for name in fields}, **renamed}


# These fields have the same name here and in every config of transformers.
COMMON_FIELDS = same_names(
    "vocab_size",
    "tie_word_embeddings",
    "initializer_range",
    "pad_token_id",
    "bos_token_id",
    "eos_token_id",
    "id2label",
    "label2id",
    "problem_type",
)
# These fields have the same name in most configs.
SIZES = same_names("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")


@dataclass(frozen=True)
class Head:
    """One of their classes, which becomes our class of the same name, such as ForMaskedLM.

    Args:
        rules: The rules of the head's tensors, with full names on both sides.
        fields: The fields of ours that the head needs, or a function that makes them from their
            config.
        becomes: Our class, if it has another name.
        prefix: The name of the stack inside their class, if it is not the family's.
    """

    rules: Rules = ()
    fields: Mapping[str, Any] | Callable[[Any], Mapping[str, Any]] = field(default_factory=dict)
    becomes: str | None = None
    prefix: str | None = None

    def fields_for(self, theirs: Any) -> Mapping[str, Any]:
        """The fields of ours for their config."""
        if callable(self.fields):
            return self.fields(theirs)
        return self.fields


class HuggingFaceConverter(Converter):
    """A source whose models are classes of transformers. Config: the fields of their config class,
    with `architectures` for the head.

    Attributes:
        config_class: Their config class.
        prefix: The name of the stack inside their classes with a head, such as `bert`.
        heads: The `Head` of each of their classes, by the part of its name after the family's name
            (`ForMaskedLM`); `Model` is the bare stack.
        refused: The reason why a class has no equivalent, by the same part of its name.
        fields: The names of our config's fields and of theirs, if the value is the same.
        constants: Fields of our config that have one value in all checkpoints.
        rules: The rules of embeddings and layers, without the name of the stack itself (`bert.`,
            `model.`).
        ignored: The names of the stack's tensors that our model does not need unless a rule reads
            them.
        unread_heads: Tensors of other heads, which checkpoints of one head may still contain.
        output_matrix: Their output matrix of a language model; with tied weights, a copy of the
            table of words.
        output_bias: The bias of this layer, which they also store under the name of the matrix;
            None if the rules of the head include it.
        has_pooler: Whether their bare stack has BERT's pooler; None if it never has one.
        pooling_field: The field of their config for the pooling of a head, whose values are in
            `POOLINGS`. Heads that do not read the field are exported with their default.
        in_transformers: Whether transformers has their classes.
        rotates_parts: Whether their attention reads `partial_rotary_factor`.
    """

    config_class: ClassVar[type[PreTrainedConfig]]
    prefix: ClassVar[str]
    heads: ClassVar[Mapping[str, Head]]
    refused: ClassVar[Mapping[str, str]] = {}
    fields: ClassVar[Mapping[str, str]]
    constants: ClassVar[Mapping[str, Any]] = {}
    unread_heads: ClassVar[tuple[str, ...]] = ()
    output_matrix: ClassVar[str]
    output_bias: ClassVar[str | None] = None
    has_pooler: ClassVar[bool | None] = None
    pooling_field: ClassVar[str] = "classifier_pooling"
    in_transformers: ClassVar[bool] = True
    rotates_parts: ClassVar[bool] = False

    def stack_rules(self, ours: RoFormerLiteConfig, source_config: SourceConfig) -> Rules:
        """`rules`, and rules that depend on the config."""
        return self.rules

    def computed_fields(self, theirs: Any) -> dict[str, Any]:
        """The RoFormerLite fields that are not simply copied. An option without an equivalent
        raises an error."""
        return {}

    def their_fields(self, ours: Any) -> dict[str, Any]:
        """Their fields that are not simply copied, for an export."""
        return {}

    def head_rules(self, head: Head, ours: PreTrainedConfig) -> Rules:
        """The rules of `head`, which may depend on the config."""
        return head.rules

    def output_rules(self, ours: PreTrainedConfig) -> Rules:
        """The rules of a language model's output matrix and bias, which depend on whether the
        weights are tied."""
        if ours.tie_word_embeddings:
            if self.output_bias is None:
                return ()
            return (WeightRule(self.output_bias, "lm_head.bias"),)
        matrix = WeightRule(self.output_matrix, "lm_head.weight")
        if self.output_bias is None:
            return (matrix,)
        copies = (_bias_of(self.output_matrix), self.output_bias)
        return (matrix, WeightRule(copies, "lm_head.bias", DUPLICATES))

    def output_copies(self, table: Sequence[WeightRule]) -> dict[str, str]:
        """Their output matrix and its bias, with the names of the tensors in `table` to which they
        are tied."""
        words = next(rule.theirs[0] for rule in table if rule.ours[0].endswith(WORDS))
        copies = {self.output_matrix: words}
        if self.output_bias is not None:
            copies[_bias_of(self.output_matrix)] = self.output_bias
        return copies

    def read_config(self, source_config: SourceConfig) -> PreTrainedConfig:
        """Their config as their model reads it."""
        theirs = self.config_class.from_dict(dict(source_config))
        if getattr(theirs, "rope_parameters", None):
            # The model takes over a length from outside these parameters only when it is made.
            theirs.standardize_rope_params()
        return theirs

    def our_config(self, source_config: SourceConfig) -> PreTrainedConfig:
        theirs = self.read_config(source_config)
        name, head = self.head(source_config)
        fields = {**CLASSIC_FIELDS, **self.constants}
        fields |= {ours: getattr(theirs, name) for ours, name in self.fields.items()}
        rope = fields.get("rope_parameters") or {}
        if LAYER_TYPES[0] in rope:
            # There may be parameters for types of layers that the stack does not have. Their class
            # looks for `truncate` beside these sets, so it ignores one within them.
            fields["rope_parameters"] = {
                kind: {name: value for name, value in rope[kind].items() if name != "truncate"}
                for kind in LAYER_TYPES
                if kind in theirs.layer_types
            }
        fields |= self.computed_fields(theirs)
        fields |= head.fields_for(theirs)
        if name == "Model" and self.has_pooler is not None:
            fields["add_pooling_layer"] = source_config.get("add_pooling_layer", self.has_pooler)
        ours = RoFormerLiteConfig(**fields)
        check_direction(theirs, is_causal=ours.is_decoder)
        sets = ours.rope_parameters_of_layers().values()
        shares = {parameters.get("partial_rotary_factor", 1.0) for parameters in sets}
        if not self.rotates_parts and shares != {1.0}:
            raise ConversionError(
                f"partial_rotary_factor in rope_parameters, as {self.class_name(name)} ignores it "
                "and rotates whole heads"
            )
        return ours

    def their_config(self, ours: PreTrainedConfig, head: str) -> PreTrainedConfig:
        """Their config for `ours`. If a field has no equivalent, `our_config` of the result differs
        from `ours`."""
        defaults = self.config_class()
        fields = {name: getattr(ours, field) for field, name in self.fields.items()}
        for name in {"attention_bias", "mlp_bias"} & fields.keys():
            # All of their matrices have a bias, or none.
            fields[name] = bool(fields[name])
        if "type_vocab_size" in fields:
            fields["type_vocab_size"] = max(1, fields["type_vocab_size"])
        dropout = self.fields.get("classifier_dropout")
        if dropout and getattr(defaults, dropout) is not None:
            fields[dropout] = dropout_of_head(ours)
        if "rope_parameters" in fields:
            fields["rope_parameters"] = _rope_like(defaults.rope_parameters, ours)
        fields |= self.their_fields(ours)
        if head == "ForQuestionAnswering":
            # Some of their classes would have an output for each label, instead of two.
            fields |= {"id2label": None, "label2id": None}
        poolings = POOLINGS.get(self.name)
        if poolings and "classifier_pooling" in self.heads[head].fields_for(defaults):
            # Without an equivalent it is their first one, and so differs when it comes back.
            their_names = {our_name: name for name, our_name in poolings.items()}
            first = next(iter(poolings))
            fields[self.pooling_field] = their_names.get(ours.classifier_pooling, first)
        fields["architectures"] = [self.class_name(head)]
        return self.config_class(**fields)

    def settle(self, theirs: PreTrainedConfig, weights: Mapping[str, torch.Tensor]) -> None:
        """Set the fields of their config that depend on `weights`, which are ours."""

    def computed_tensors(self, model: PreTrainedModel, theirs: Any) -> Tensors:
        """The tensors in their files that are not weights, for an export; names as in `rules`."""
        return {}

    def complete_config(
        self, source_config: SourceConfig, state_dict: Mapping[str, torch.Tensor]
    ) -> dict[str, Any]:
        completed = super().complete_config(source_config, state_dict)
        if self.has_pooler is not None:
            completed["add_pooling_layer"] = any(name.startswith("pooler.") for name in state_dict)
        return completed

    def reads(self, source_config: SourceConfig) -> bool:
        """Whether a checkpoint with this config belongs to this family."""
        return source_config.get("model_type") == self.config_class.model_type

    def class_name(self, head: str) -> str:
        """The name of their class with `head`, such as BertForMaskedLM."""
        return self.config_class.__name__.removesuffix("Config") + head

    def head(self, source_config: SourceConfig) -> tuple[str, Head]:
        """The name of their class's head, and the head. The class is the first of the config's
        `architectures`, by default the bare stack. One without an equivalent is rejected."""
        given = (source_config.get("architectures") or [self.class_name("Model")])[0]
        for head, reason in self.refused.items():
            if given == self.class_name(head):
                raise ConversionError(f"architectures={[given]} has no equivalent: {reason}")
        known = {self.class_name(name): name for name in self.heads}
        if given not in known:
            raise ConversionError(
                f"architectures={[given]}: a {self.name} source is one of {', '.join(known)}"
            )
        return known[given], self.heads[known[given]]

    def heads_for(self, model_class: type[PreTrainedModel]) -> list[str]:
        """The `heads` to which a model of `model_class` can be exported, the one of the same name
        first."""
        ours = model_class.__name__.removeprefix(OUR_PREFIX)
        names = [name for name, head in self.heads.items() if (head.becomes or name) == ours]
        if not names:
            raise ConversionError(f"{self.name} has no equivalent of {model_class.__name__}")
        return sorted(names, key=lambda name: name != ours)

    def our_model_class(self, source_config: SourceConfig) -> type[PreTrainedModel]:
        name, head = self.head(source_config)
        return getattr(hf_roformer_lite, f"{OUR_PREFIX}{head.becomes or name}")

    def stack_prefixes(self, source_config: SourceConfig) -> tuple[str, str]:
        """The prefixes of their and our names of the stack's tensors in models with the head of the
        config."""
        name, head = self.head(source_config)
        if name == "Model":
            return "", ""
        return f"{head.prefix or self.prefix}.", "model."

    def weight_map(self, our_config: PreTrainedConfig, source_config: SourceConfig) -> WeightMap:
        theirs, ours = self.stack_prefixes(source_config)
        _, head = self.head(source_config)
        table = [
            rule.prefixed(theirs, ours) for rule in self.stack_rules(our_config, source_config)
        ]
        ignored = [*(theirs + name for name in self.ignored), *self.unread_heads]
        table += self.head_rules(head, our_config)
        copies = {}
        if self.our_model_class(source_config).__name__.endswith("LM"):
            if our_config.tie_word_embeddings:
                copies = self.output_copies(table)
            table += self.output_rules(our_config)
        if any(rule.ours == "classifier.out_proj.weight" for rule in table):
            # Their matrix has no bias; ours gets zeros.
            zeros = constant(0.0, our_config.num_labels)
            table.append(WeightRule((), "classifier.out_proj.bias", zeros))
        return WeightMap(table, ignored, copies=copies)

    def build_reference(self, source_config: SourceConfig) -> nn.Module:
        head, _ = self.head(source_config)
        options = {}
        if head == "Model" and self.has_pooler is not None:
            options["add_pooling_layer"] = source_config.get("add_pooling_layer", self.has_pooler)
        # None selects sdpa if a class has it. Their eager attention computes probabilities in
        # float32, whatever the dtype.
        theirs = self.config_class.from_dict({**source_config, "attn_implementation": None})
        return getattr(transformers, self.class_name(head))(theirs, **options)

    def run_reference(self, reference: nn.Module, inputs: Tensors) -> ModelOutput:
        masks = {name: value.long() for name, value in inputs.items() if value.dtype == torch.bool}
        return reference(**inputs | masks)


def dropout_of_head(ours: RoFormerLiteConfig) -> float:
    """The dropout before our classifier."""
    if ours.classifier_dropout is None:
        return ours.hidden_dropout
    return ours.classifier_dropout


def check_direction(theirs: PreTrainedConfig, is_causal: bool | None) -> None:
    """Reject a config that sets `is_causal` to another value, so that its tokens attend to others
    than ours do. None rejects every value, as for a pair, one of whose sides it changes."""
    given = getattr(theirs, "is_causal", is_causal)
    if given != is_causal:
        raise ConversionError(
            f"is_causal={given}: RoFormerLite's decoders never attend to later tokens, and its "
            "encoders always do"
        )


def _bias_of(matrix: str) -> str:
    return f"{matrix.removesuffix('weight')}bias"


def _rope_like(default: Mapping[str, Any], ours: RoFormerLiteConfig) -> dict[str, Any] | None:
    """`rope_parameters` in the form of their `default`: one set for each type of layer, or one for
    all. A set that no layer reads repeats another one. If `default` has one set and ours several,
    the result is the first set and thus not equivalent."""
    if ours.rope_parameters is None:
        return None
    sets = {}
    for kind, parameters in ours.rope_parameters_of_layers().items():
        sets[kind] = {
            name: value
            for name, value in parameters.items()
            if name in default or (name, value) != WHOLE_HEAD
        }
    first = next(iter(sets.values()))
    if LAYER_TYPES[0] in default:
        return {kind: sets.get(kind, first) for kind in LAYER_TYPES}
    return first
