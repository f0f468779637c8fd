"""The base class of sources whose models are classes of transformers, or are published as such classes with their
weights: a stack, alone or inside a class with a head.

A family is data: which of their config's fields is which of ours, which fields of ours are the same in all its
checkpoints, and the names of the tensors of stack and heads. From the same data a model of this package goes back
(`going_back.py`).
"""

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
import transformers
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from hf_roformer_lite import RoFormerLiteConfig, RoFormerLiteModel
from roformer_lite.errors import InputError

from .converter import CLASSIC_FIELDS, Converter, SourceConfig, Tensors
from .exact_reference import computing_in, make_exact
from .going_back import export
from .model_inputs import comparable_outputs, inputs_of_text, random_inputs
from .stored_names import StoredNames
from .weight_map import WeightMap, WeightRule

Rules = tuple[WeightRule, ...]
# Fields that have one name here and in every config of transformers.
COMMON_FIELDS = (
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


def same_names(*fields: str) -> dict[str, str]:
    """Fields with one name on both sides, for `HuggingFaceConverter.fields`."""
    return {field: field for field in fields}


@dataclass(frozen=True)
class Head:
    """What one of their classes becomes.

    Args:
        model_class: Our class.
        rules: Rules of the head's tensors, with full names on both sides.
        config_fields: From their config the fields of ours that the head needs.
        ignored: Their tensors that our class does not need.
        prefix: The name of the stack inside their class, where it is not the family's.
    """

    model_class: type[PreTrainedModel]
    rules: tuple[WeightRule, ...] = ()
    config_fields: Callable[[PreTrainedConfig], dict[str, Any]] = lambda config: {}
    ignored: tuple[str, ...] = ()
    prefix: str | None = None

    def ignoring(self, *names: str) -> "Head":
        """The same, without need of `names` either."""
        return replace(self, ignored=(*self.ignored, *names))


class HuggingFaceConverter(Converter):
    """A source whose models are classes of transformers. Config: the fields of their config class, with
    `architectures` for the head.

    Attributes:
        config_class: Their config class.
        prefix: The name of the stack inside their classes with a head, such as `bert`.
        heads: For each of their classes, by what follows the family's name in its name (`ForMaskedLM`), its `Head`.
        refused: For classes without an equivalent here, by the same part of their names, the reason.
        fields: The names of our config's fields and of theirs, where the value is the same.
        constants: Fields of our config that have one value in all checkpoints.
        ignored: Names of the stack's tensors that our model does not need.
        current_names: As in `WeightMap`.
        stored_names: How files spell names that their classes have changed since.
        output_matrix: Their output matrix of a language model whose weights are not tied; None where `output_rules`
            says more.
        has_pooler: Whether their bare stack has BERT's pooler; None where it never has one.
        reads_padding: Whether pooling by the last position reads padding there; ours reads the last real token.
        in_transformers: Whether transformers has their classes.
    """

    config_class: ClassVar[type[PreTrainedConfig]]
    prefix: ClassVar[str]
    heads: ClassVar[Mapping[str, Head]]
    refused: ClassVar[Mapping[str, str]] = {}
    fields: ClassVar[Mapping[str, str]]
    constants: ClassVar[Mapping[str, Any]] = {}
    ignored: ClassVar[tuple[str, ...]] = ()
    current_names: ClassVar[Mapping[str, str]] = {}
    stored_names: ClassVar[StoredNames] = StoredNames()
    output_matrix: ClassVar[str | None] = None
    has_pooler: ClassVar[bool | None] = None
    reads_padding: ClassVar[bool] = False
    in_transformers: ClassVar[bool] = True

    @abstractmethod
    def stack_rules(self, ours: RoFormerLiteConfig, source_config: SourceConfig) -> Rules:
        """Rules of embeddings and layers, without the names of the stack itself (`bert.`, `model.`)."""

    def computed_fields(self, theirs: PreTrainedConfig) -> dict[str, Any]:
        """Fields of ours that are not simply copied.

        Raises:
            InputError: for an option without an equivalent here.
        """
        return {}

    def their_fields(self, ours: RoFormerLiteConfig) -> dict[str, Any]:
        """Their fields that are not simply copied, for a model that goes back."""
        return {}

    def output_rules(self, ours: RoFormerLiteConfig) -> Rules:
        """Rules of a language model's output matrix and bias, which depend on whether the weights are tied."""
        if self.output_matrix is None or ours.tie_word_embeddings:
            return ()
        return (WeightRule(self.output_matrix, "lm_head.weight"),)

    def our_config(self, source_config: SourceConfig) -> PreTrainedConfig:
        theirs, head = self.config_class.from_dict(dict(source_config)), self.head(source_config)
        fields = {**CLASSIC_FIELDS, **self.constants}
        fields |= {ours: getattr(theirs, name) for ours, name in self.fields.items()}
        fields |= {**self.computed_fields(theirs), **head.config_fields(theirs)}
        if head.model_class is RoFormerLiteModel and self.has_pooler is not None:
            fields["add_pooling_layer"] = source_config.get("add_pooling_layer", self.has_pooler)
        return RoFormerLiteConfig(**fields)

    def their_config(self, ours: PreTrainedConfig, head: str) -> PreTrainedConfig:
        """Their config for `ours`, as far as it can say it; `our_config` of the result tells how far."""
        fields = {name: getattr(ours, field) for field, name in self.fields.items()}
        for name in {"attention_bias", "mlp_bias"} & fields.keys():  # all matrices or none
            fields[name] = bool(fields[name])
        return self.config_class(architectures=[self.class_name(head)], **{**fields, **self.their_fields(ours)})

    def settle(self, theirs: PreTrainedConfig, weights: Mapping[str, torch.Tensor]) -> None:
        """Set the fields of their config that depend on our `weights`, by our names."""

    def complete_config(self, source_config: SourceConfig, state_dict: Mapping[str, torch.Tensor]) -> dict[str, Any]:
        completed = super().complete_config(source_config, state_dict)
        if self.has_pooler is not None:
            completed["add_pooling_layer"] = any(name.startswith("pooler.") for name in state_dict)
        return completed

    def read(self, state_dict: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
        return self.stored_names.read(state_dict)

    def reads(self, source_config: SourceConfig) -> bool:
        """Whether a checkpoint with this config is one of this family."""
        return source_config.get("model_type") == self.config_class.model_type

    def architecture(self, source_config: SourceConfig) -> str:
        """The name of their class: the first of the config's `architectures`, by default the stack alone."""
        names = source_config.get("architectures") or [self.class_name("Model")]
        for head, reason in self.refused.items():
            if names[0] == self.class_name(head):
                raise InputError(f"architectures={names!r} has no equivalent here: {reason}")
        known = [self.class_name(head) for head in self.heads]
        if names[0] not in known:
            raise InputError(f"architectures={names!r}: a {self.name} source is one of {', '.join(known)}")
        return names[0]

    def class_name(self, head: str) -> str:
        """The name of their class with `head`, such as BertForMaskedLM."""
        return self.config_class.__name__.removesuffix("Config") + head

    def head(self, source_config: SourceConfig) -> Head:
        architecture = self.architecture(source_config)
        return next(head for name, head in self.heads.items() if self.class_name(name) == architecture)

    def head_for(self, model_class: type[PreTrainedModel]) -> str:
        """Which of `heads` a model of `model_class` goes back to; of several the one of the same name.

        Raises:
            InputError: when there is none.
        """
        names = [name for name, head in self.heads.items() if head.model_class is model_class]
        if not names:
            raise InputError(f"{self.name} has no equivalent of {model_class.__name__}")
        same = model_class.__name__.removeprefix("RoFormerLite")
        return same if same in names else names[0]

    def our_model_class(self, source_config: SourceConfig) -> type[PreTrainedModel]:
        return self.head(source_config).model_class

    def stack_prefixes(self, head: Head) -> tuple[str, str]:
        """What precedes their and our names of the stack's tensors in models with `head`."""
        if head.model_class is RoFormerLiteModel:
            return "", ""
        return f"{head.prefix or self.prefix}.", "model."

    def weight_map(self, our_config: PreTrainedConfig, source_config: SourceConfig) -> WeightMap:
        head = self.head(source_config)
        theirs, ours = self.stack_prefixes(head)
        stack = [rule.prefixed(theirs, ours) for rule in self.stack_rules(our_config, source_config)]
        ignored = [theirs + name for name in self.ignored]
        rules = (*stack, *head.rules, *self.output_rules(our_config))
        return WeightMap(rules, (*ignored, *head.ignored), self.current_names)

    def export(self, model: PreTrainedModel) -> tuple[Tensors, dict[str, Any]]:
        return export(self, model)

    def their_class(self, source_config: SourceConfig) -> type[PreTrainedModel]:
        """The class with the head that the config names."""
        return getattr(transformers, self.architecture(source_config))

    def build_reference(self, source_config: SourceConfig) -> nn.Module:
        their_class = self.their_class(source_config)
        # Their own eager attention computes probabilities in float32 in any dtype. `_supports_sdpa` is private to
        # transformers; nothing else says what a class supports before a model of it is made.
        backend = "sdpa" if their_class._supports_sdpa else "eager"
        theirs = self.config_class.from_dict({**source_config, "attn_implementation": backend})
        options = {}
        if self.has_pooler is not None and self.head(source_config).model_class is RoFormerLiteModel:
            options["add_pooling_layer"] = source_config.get("add_pooling_layer", self.has_pooler)
        return their_class(theirs, **options)

    def cast_reference(self, reference: nn.Module, dtype: torch.dtype) -> nn.Module:
        return make_exact(super().cast_reference(reference, dtype), dtype)

    def random_inputs(self, model: PreTrainedModel, generator: torch.Generator) -> Tensors:
        return random_inputs(model, generator, self.reads_padding)

    def text_inputs(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, lines: Sequence[str]) -> Tensors:
        return inputs_of_text(model, tokenizer, lines, self.reads_padding)

    def run_reference(self, reference: nn.Module, inputs: Tensors) -> Tensors:
        given = {name: value.long() if value.dtype == torch.bool else value for name, value in inputs.items()}
        with computing_in(reference.dtype):
            return comparable_outputs(reference(**given), inputs)

    def run_ours(self, model: PreTrainedModel, inputs: Tensors) -> Tensors:
        return comparable_outputs(model(**inputs), inputs)
