"""What BERT and RoFormer have in common in transformers: the names of their tensors, and their heads."""

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import transformers
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from hf_roformer_lite import (
    RoFormerLiteConfig,
    RoFormerLiteForCausalLM,
    RoFormerLiteForMaskedLM,
    RoFormerLiteForMultipleChoice,
    RoFormerLiteForQuestionAnswering,
    RoFormerLiteForTokenClassification,
    RoFormerLiteModel,
)
from hf_roformer_lite.errors import InputError

from .converter import PLAIN, Converter, SourceConfig, Tensors
from .weight_map import SAME, Copies, Name, NameTable, Operation

EMBEDDINGS = (
    Name("embeddings.word_embeddings.weight", "embeddings.word_embeddings.weight"),
    Name("embeddings.token_type_embeddings.weight", "embeddings.token_type_embeddings.weight"),
    Name("embeddings.LayerNorm.*", "embeddings.norm.*"),
)
LM_HEAD = (
    Name("cls.predictions.transform.dense.*", "lm_transform.dense.*"),
    Name("cls.predictions.transform.LayerNorm.*", "lm_transform.norm.*"),
)
TIED = (Name("cls.predictions.bias", "lm_head.bias"),)
UNTIED = (
    Name("cls.predictions.decoder.weight", "lm_head.weight"),
    Name(("cls.predictions.decoder.bias", "cls.predictions.bias"), "lm_head.bias", Copies()),
)
TIED_COPIES = ("cls.predictions.decoder.weight", "cls.predictions.decoder.bias")


def attention_names(
    theirs: str, ours: str, rotary: Operation = SAME, value: Operation = SAME, output: Operation = SAME
) -> tuple[Name, ...]:
    """Rows of one attention; the operations put rotary channels in order."""
    return (
        Name(f"encoder.layer.{{i}}.{theirs}.self.query.*", f"layers.{{i}}.{ours}.q_proj.*", rotary),
        Name(f"encoder.layer.{{i}}.{theirs}.self.key.*", f"layers.{{i}}.{ours}.k_proj.*", rotary),
        Name(f"encoder.layer.{{i}}.{theirs}.self.value.*", f"layers.{{i}}.{ours}.v_proj.*", value),
        Name(f"encoder.layer.{{i}}.{theirs}.output.dense.weight", f"layers.{{i}}.{ours}.o_proj.weight", output),
        Name(f"encoder.layer.{{i}}.{theirs}.output.dense.bias", f"layers.{{i}}.{ours}.o_proj.bias"),
        Name(f"encoder.layer.{{i}}.{theirs}.output.LayerNorm.*", f"layers.{{i}}.{ours}_norm.*"),
    )


def stack_names(rotary: Operation = SAME, value: Operation = SAME, output: Operation = SAME) -> tuple[Name, ...]:
    """Rows of embeddings and layers."""
    return (
        *EMBEDDINGS,
        *attention_names("attention", "self_attn", rotary, value, output),
        *attention_names("crossattention", "cross_attn"),
        Name("encoder.layer.{i}.intermediate.dense.*", "layers.{i}.mlp.up_proj.*"),
        Name("encoder.layer.{i}.output.dense.*", "layers.{i}.mlp.down_proj.*"),
        Name("encoder.layer.{i}.output.LayerNorm.*", "layers.{i}.mlp_norm.*"),
    )


@dataclass(frozen=True)
class Head:
    """What a class of theirs becomes: our class, rows of the head, config fields, and what is left behind."""

    model_class: type[PreTrainedModel]
    names: tuple[Name, ...] = ()
    fields: Callable[[PreTrainedConfig], dict[str, Any]] = lambda config: {}
    dropped: tuple[str, ...] = ()


LM_FIELDS = {"lm_head_transform": True, "lm_head_bias": True}
MASKED_LM = Head(RoFormerLiteForMaskedLM, LM_HEAD, lambda config: LM_FIELDS, TIED_COPIES)
CAUSAL_LM = Head(RoFormerLiteForCausalLM, LM_HEAD, lambda config: LM_FIELDS, TIED_COPIES)
TOKEN_CLASSES = Head(RoFormerLiteForTokenClassification, (Name("classifier.*", "classifier.out_proj.*"),))
QUESTIONS = Head(RoFormerLiteForQuestionAnswering, (Name("qa_outputs.*", "classifier.out_proj.*"),))


class BertLayoutConverter(Converter):
    """A source whose classes are transformers' own.

    Attributes:
        prefix: Name of the stack inside their classes with a head.
        heads: What follows the prefix in the name of a class of theirs, and what it becomes.
        config_class: Theirs.
        dropped: Names of the stack that say nothing.
    """

    prefix: ClassVar[str]
    heads: ClassVar[Mapping[str, Head]]
    config_class: ClassVar[type[PreTrainedConfig]]
    dropped: ClassVar[tuple[str, ...]]

    @abstractmethod
    def stack_config(self, theirs: PreTrainedConfig) -> dict[str, Any]:
        """Fields of ours that the stack needs, beside those both sources share."""

    @abstractmethod
    def stack_rows(self, config: RoFormerLiteConfig) -> tuple[Name, ...]:
        """Rows of embeddings and layers."""

    def architecture(self, source: SourceConfig) -> str:
        """Name of their class: the config's first, or the stack alone."""
        names = source.get("architectures") or [self.class_name("Model")]
        known = [self.class_name(head) for head in self.heads]
        if names[0] not in known:
            raise InputError(f"architectures={names!r}: a {self.name} source is one of {', '.join(known)}")
        return names[0]

    def class_name(self, head: str) -> str:
        return self.config_class.__name__.removesuffix("Config") + head

    def head(self, source: SourceConfig) -> Head:
        return self.heads[self.architecture(source).removeprefix(self.class_name(""))]

    def config(self, source: SourceConfig) -> RoFormerLiteConfig:
        theirs = self.config_class.from_dict(dict(source))
        head = self.head(source)
        if head.model_class is RoFormerLiteForCausalLM and not theirs.is_decoder:
            raise InputError("is_decoder=False: without it their causal model sees what comes next; ours never does")
        fields = {
            **PLAIN,
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
        return RoFormerLiteConfig(**{**fields, **self.stack_config(theirs), **head.fields(theirs)})

    def model_class(self, source: SourceConfig) -> type[PreTrainedModel]:
        return self.head(source).model_class

    def table(self, config: RoFormerLiteConfig, source: SourceConfig) -> NameTable:
        head = self.head(source)
        theirs, ours = ("", "") if head.model_class is RoFormerLiteModel else (f"{self.prefix}.", "model.")
        rows = [Name(theirs + row.theirs, ours + row.ours, row.operation) for row in self.stack_rows(config)]
        dropped = [theirs + name for name in self.dropped]
        renamed = {r"LayerNorm\.gamma": "LayerNorm.weight", r"LayerNorm\.beta": "LayerNorm.bias"}
        output = TIED if config.tie_word_embeddings else UNTIED
        return NameTable((*rows, *head.names, *output), (*dropped, *head.dropped), renamed)

    def reference(self, source: SourceConfig) -> nn.Module:
        theirs = self.config_class.from_dict({**source, "attn_implementation": "eager"})
        return getattr(transformers, self.architecture(source))(theirs)

    def inputs(self, model: PreTrainedModel, generator: torch.Generator) -> Tensors:
        config, shape = model.config, (3, 12)
        mask = torch.ones(shape, dtype=torch.bool)
        if config.classifier_pooling != "last":  # theirs reads the last place, real or not
            mask[1, 7:] = False
        inputs = {
            "input_ids": torch.randint(1, config.vocab_size, shape, generator=generator),
            "attention_mask": mask,
            "token_type_ids": torch.randint(config.type_vocab_size, shape, generator=generator),
        }
        return self._fitting(inputs, model, generator)

    def real_inputs(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, lines: Sequence[str]) -> Tensors:
        limit = model.config.max_position_embeddings
        is_last = model.config.classifier_pooling == "last"
        encoded = tokenizer(
            list(lines[:1] if is_last else lines), padding=True, truncation=True, max_length=limit, return_tensors="pt"
        )
        inputs = {name: encoded[name] for name in ("input_ids", "token_type_ids") if name in encoded}
        inputs["attention_mask"] = encoded["attention_mask"].bool()
        return self._fitting(inputs, model, torch.Generator().manual_seed(0))

    def _fitting(self, inputs: Tensors, model: PreTrainedModel, generator: torch.Generator) -> Tensors:
        if isinstance(model, RoFormerLiteForMultipleChoice):
            return {name: tensor.unsqueeze(0) for name, tensor in inputs.items()}  # (1, choices, L)
        if model.config.add_cross_attention:
            rows = len(inputs["input_ids"])
            inputs["encoder_hidden_states"] = torch.randn(rows, 5, model.config.hidden_size, generator=generator)
        return inputs

    def run_reference(self, reference: nn.Module, inputs: Tensors) -> Tensors:
        return _outputs(reference(**{**inputs, "attention_mask": inputs["attention_mask"].long()}), inputs)

    def run_ours(self, model: PreTrainedModel, inputs: Tensors) -> Tensors:
        return _outputs(model(**inputs), inputs)


def _outputs(output: Any, inputs: Tensors) -> Tensors:
    """What the two sides have in common, the real positions of what there is for each token."""
    mask, found = inputs["attention_mask"], {}
    for name in ("last_hidden_state", "start_logits", "end_logits", "pooler_output", "logits", "prediction_logits"):
        value = getattr(output, name, None)
        if value is not None:
            is_by_token = name in ("last_hidden_state", "start_logits", "end_logits") or value.ndim == 3
            found[name.removeprefix("prediction_")] = value[mask] if is_by_token else value
    return found
