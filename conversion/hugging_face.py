"""The base class of sources whose models are classes of transformers: a stack, alone or inside a class with a head."""

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import transformers
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from hf_roformer_lite import RoFormerLiteConfig, RoFormerLiteForMultipleChoice, RoFormerLiteModel
from hf_roformer_lite.errors import InputError

from .converter import Converter, SourceConfig, Tensors
from .weight_map import WeightMap, WeightRule


@dataclass(frozen=True)
class Head:
    """What one of their classes becomes.

    Args:
        model_class: Our class.
        rules: Rules of the head's tensors, with full names on both sides.
        config_fields: From their config the fields of ours that the head needs.
        ignored: Their tensors that our class does not need.
    """

    model_class: type[PreTrainedModel]
    rules: tuple[WeightRule, ...] = ()
    config_fields: Callable[[PreTrainedConfig], dict[str, Any]] = lambda config: {}
    ignored: tuple[str, ...] = ()


class HuggingFaceConverter(Converter):
    """A source whose models are classes of transformers.

    Attributes:
        config_class: Their config class.
        prefix: The name of the stack inside their classes with a head, such as `bert`.
        heads: For each of their classes, by what follows the family's name in its name (`ForMaskedLM`), its `Head`.
        ignored: Names of the stack's tensors that our model does not need.
        current_names: As in `WeightMap`.
    """

    config_class: ClassVar[type[PreTrainedConfig]]
    prefix: ClassVar[str]
    heads: ClassVar[Mapping[str, Head]]
    ignored: ClassVar[tuple[str, ...]] = ()
    current_names: ClassVar[Mapping[str, str]] = {}

    @abstractmethod
    def stack_rules(self, our_config: RoFormerLiteConfig) -> tuple[WeightRule, ...]:
        """Rules of embeddings and layers, without the names of the stack itself (`bert.`, `model.`)."""

    def output_rules(self, our_config: RoFormerLiteConfig) -> tuple[WeightRule, ...]:
        """Rules of a language model's output matrix and bias, which depend on whether the weights are tied."""
        return ()

    def architecture(self, source_config: SourceConfig) -> str:
        """The name of their class: the first of the config's `architectures`, by default the stack alone."""
        names = source_config.get("architectures") or [self.class_name("Model")]
        known = [self.class_name(head) for head in self.heads]
        if names[0] not in known:
            raise InputError(f"architectures={names!r}: a {self.name} source is one of {', '.join(known)}")
        return names[0]

    def class_name(self, head: str) -> str:
        """The name of their class with `head`, such as BertForMaskedLM."""
        return self.config_class.__name__.removesuffix("Config") + head

    def head(self, source_config: SourceConfig) -> Head:
        return self.heads[self.architecture(source_config).removeprefix(self.class_name(""))]

    def our_model_class(self, source_config: SourceConfig) -> type[PreTrainedModel]:
        return self.head(source_config).model_class

    def stack_prefixes(self, model_class: type[PreTrainedModel]) -> tuple[str, str]:
        """What precedes their and our names of the stack's tensors in models that become `model_class`."""
        return ("", "") if model_class is RoFormerLiteModel else (f"{self.prefix}.", "model.")

    def weight_map(self, our_config: RoFormerLiteConfig, source_config: SourceConfig) -> WeightMap:
        head = self.head(source_config)
        theirs, ours = self.stack_prefixes(head.model_class)
        stack = [rule.prefixed(theirs, ours) for rule in self.stack_rules(our_config)]
        ignored = [theirs + name for name in self.ignored]
        rules = (*stack, *head.rules, *self.output_rules(our_config))
        return WeightMap(rules, (*ignored, *head.ignored), self.current_names)

    def build_reference(self, source_config: SourceConfig) -> nn.Module:
        theirs = self.config_class.from_dict({**source_config, "attn_implementation": "eager"})
        return getattr(transformers, self.architecture(source_config))(theirs)

    def random_inputs(self, model: PreTrainedModel, generator: torch.Generator) -> Tensors:
        config, shape = model.config, (3, 12)
        mask = torch.ones(shape, dtype=torch.bool)
        if config.classifier_pooling != "last":  # theirs reads the last position of a row, padding or not
            mask[1, 7:] = False
        inputs = {"input_ids": torch.randint(1, config.vocab_size, shape, generator=generator), "attention_mask": mask}
        if config.type_vocab_size:
            inputs["token_type_ids"] = torch.randint(config.type_vocab_size, shape, generator=generator)
        return self._inputs_for(model, inputs, generator)

    def text_inputs(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, lines: Sequence[str]) -> Tensors:
        limit = model.config.max_position_embeddings
        needs_full_rows = model.config.classifier_pooling == "last"
        encoded = tokenizer(
            list(lines[:1] if needs_full_rows else lines),
            padding=True,
            truncation=True,
            max_length=limit,
            return_tensors="pt",
        )
        inputs = {name: encoded[name] for name in ("input_ids", "token_type_ids") if name in encoded}
        inputs["attention_mask"] = encoded["attention_mask"].bool()
        return self._inputs_for(model, inputs, torch.Generator().manual_seed(0))

    def _inputs_for(self, model: PreTrainedModel, inputs: Tensors, generator: torch.Generator) -> Tensors:
        if isinstance(model, RoFormerLiteForMultipleChoice):
            return {name: tensor.unsqueeze(0) for name, tensor in inputs.items()}  # (1, choices, L)
        if model.config.add_cross_attention:
            rows = len(inputs["input_ids"])
            inputs["encoder_hidden_states"] = torch.randn(rows, 5, model.config.hidden_size, generator=generator)
        return inputs

    def run_reference(self, reference: nn.Module, inputs: Tensors) -> Tensors:
        return _comparable_outputs(reference(**{**inputs, "attention_mask": inputs["attention_mask"].long()}), inputs)

    def run_ours(self, model: PreTrainedModel, inputs: Tensors) -> Tensors:
        return _comparable_outputs(model(**inputs), inputs)


def _comparable_outputs(output: Any, inputs: Tensors) -> Tensors:
    """The outputs that both models have; of those with one entry per token only the entries of real tokens."""
    mask, found = inputs["attention_mask"], {}
    for name in ("last_hidden_state", "start_logits", "end_logits", "pooler_output", "logits", "prediction_logits"):
        value = getattr(output, name, None)
        if value is not None:
            is_by_token = name in ("last_hidden_state", "start_logits", "end_logits") or value.ndim == 3
            found[name.removeprefix("prediction_")] = value[mask] if is_by_token else value
    return found
