"""What every source has to say about itself."""

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from functools import reduce
from typing import Any, ClassVar

import torch
from huggingface_hub.errors import StrictDataclassError
from torch import nn
from transformers import AutoTokenizer, PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase
from transformers.initialization import no_init_weights

from hf_roformer_lite import RoFormerLiteModel
from hf_roformer_lite.errors import InputError

from .weight_map import Name, NameTable

SourceConfig = Mapping[str, Any]
# What none of the sources has of the newer parts of a layer; whatever our defaults are, converters say so.
PLAIN: dict[str, Any] = {
    "norm_type": "layernorm",
    "gated_mlp": False,
    "scale_embeddings": False,
    "embedding_norm": False,
    "initializer_range": 0.02,
}
Tensors = dict[str, torch.Tensor]


class Converter(ABC):
    """A source of weights.

    Attributes:
        name: As it is given to `--from`.
        tolerances: Largest absolute difference of an output that counts as the same, in each dtype.
        tokenizer_class: What opens the tokenizer of a checkpoint's directory.
    """

    name: ClassVar[str]
    tokenizer_class: ClassVar[type] = AutoTokenizer
    tolerances: ClassVar[dict[torch.dtype, float]] = {torch.float32: 1e-5, torch.float64: 1e-12}

    def complete(self, source: SourceConfig, state_dict: Mapping[str, torch.Tensor]) -> dict[str, Any]:
        """The source's config with what only the weights tell."""
        return dict(source)

    @abstractmethod
    def config(self, source: SourceConfig) -> PreTrainedConfig:
        """Our config for a source's config, in the source's own field names."""

    @abstractmethod
    def model_class(self, source: SourceConfig) -> type[PreTrainedModel]:
        """The class of this package that the checkpoint becomes."""

    @abstractmethod
    def table(self, config: PreTrainedConfig, source: SourceConfig) -> NameTable:
        """Which tensors become which."""

    @abstractmethod
    def reference(self, source: SourceConfig) -> nn.Module:
        """The source's own model, or a plain one written from its specification, with random weights."""

    def reference_state_dict(self, reference: nn.Module) -> Tensors:
        """The reference's weights under the names of its checkpoints."""
        return reference.state_dict()

    def load_reference(
        self, reference: nn.Module, state_dict: Mapping[str, torch.Tensor], source: SourceConfig
    ) -> None:
        """Fill the reference with the weights of a checkpoint.

        Raises:
            InputError: when something of it stays as it was, that would then be compared.
        """
        table = self.table(self.config(source), source)
        current = {table.current(name): tensor for name, tensor in state_dict.items()}
        lacking = [name for name in reference.load_state_dict(current, strict=False)[0] if not table.drops(name)]
        if lacking:
            raise InputError(f"the source's own model needs {', '.join(lacking)}, which the checkpoint lacks")

    def cast_reference(self, reference: nn.Module, dtype: torch.dtype) -> nn.Module:
        """The reference computing in `dtype` throughout."""
        return reference.to(dtype)

    @abstractmethod
    def inputs(self, model: PreTrainedModel, generator: torch.Generator) -> Tensors:
        """Random inputs with padding, for `run_reference` and `run_ours`."""

    def real_inputs(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, lines: Sequence[str]) -> Tensors:
        """The same for lines of text, where checkpoints of the source come with a tokenizer."""
        raise InputError(f"a {self.name} source has no tokenizer")

    @abstractmethod
    def run_reference(self, reference: nn.Module, inputs: Tensors) -> Tensors:
        """Outputs of the source by name, those of padding left out."""

    @abstractmethod
    def run_ours(self, model: PreTrainedModel, inputs: Tensors) -> Tensors:
        """The same outputs of our model."""

    def export(self, model: PreTrainedModel) -> tuple[Tensors, dict[str, Any]]:
        """Tensors and config of the source for our model.

        Raises:
            InputError: when the source cannot say what the model does, or there is no way back.
        """
        raise InputError(f"there is no way back to {self.name}")

    def convert(
        self, state_dict: Mapping[str, torch.Tensor] | None, source: SourceConfig, copy: bool = True
    ) -> PreTrainedModel:
        """A ready model in evaluation mode, in the dtype of the checkpoint.

        Args:
            state_dict: Tensors by the source's names; None gives a freshly initialised model.
            source: Its config, in its own field names.
            copy: Whether the model gets weights of its own; without, it may share those of `state_dict`.

        Raises:
            InputError: when names or shapes do not fit, or the config asks for what cannot be built.
        """
        if state_dict is not None:
            source = self.complete(source, state_dict)
        try:
            config, model_class = self.config(source), self.model_class(source)
        except (StrictDataclassError, ValueError) as error:
            raise error if isinstance(error, InputError) else InputError(f"no model can be made: {error}") from error
        if state_dict is None:
            return model_class(config).eval()
        with no_init_weights():
            model = model_class(config)
        tied = set(model.all_tied_weights_keys)
        shapes = {name: tensor.shape for name, tensor in model.state_dict().items() if name not in tied}
        ours = dict(self.table(config, source).to_ours(state_dict, shapes))
        dtype = reduce(torch.promote_types, (tensor.dtype for tensor in ours.values()))
        ours = {name: tensor.to(dtype, copy=copy) for name, tensor in ours.items()}
        config.dtype = dtype
        model.load_state_dict(ours, strict=False, assign=True)  # the table has checked the names
        model.tie_weights()
        return model.eval()


def require(source: SourceConfig, converter: str, *fields: str) -> list[Any]:
    """The values of `fields`, or an error that names the one that is not there."""
    for field in fields:
        if field not in source:
            raise InputError(f"the config of a {converter} source needs the field {field!r}; it has {sorted(source)}")
    return [source[field] for field in fields]


def refuse_others(source: SourceConfig, converter: str, known: Collection[str]) -> None:
    """An error for fields that nobody would read."""
    unknown = sorted(set(source) - set(known))
    if unknown:
        raise InputError(
            f"the config of a {converter} source has no field {', '.join(unknown)}; it may have "
            f"{', '.join(sorted(known))}"
        )


class VectorConverter(Converter):
    """A source of one stack that takes vectors, `inputs_embeds`, and perhaps an encoder's."""

    def model_class(self, source: SourceConfig) -> type[PreTrainedModel]:
        return RoFormerLiteModel

    def inputs(self, model: PreTrainedModel, generator: torch.Generator) -> Tensors:
        config = model.config
        width = config.hidden_size
        mask = torch.ones(3, 7, dtype=torch.bool)
        mask[1, 4:] = mask[2, 1:] = False
        inputs = {"states": torch.randn(3, 7, width, generator=generator), "mask": mask}
        if config.add_cross_attention:
            memory_mask = torch.ones(3, 5, dtype=torch.bool)
            memory_mask[0, 2:] = False
            width = config.cross_attention_hidden_size or width
            inputs |= {"memory": torch.randn(3, 5, width, generator=generator), "memory_mask": memory_mask}
        return inputs

    def run_ours(self, model: PreTrainedModel, inputs: Tensors) -> Tensors:
        output = model(
            inputs_embeds=inputs["states"],
            attention_mask=inputs["mask"],
            encoder_hidden_states=inputs.get("memory"),
            encoder_attention_mask=inputs.get("memory_mask"),
            use_cache=False,
        )
        return {"hidden states": output.last_hidden_state[inputs["mask"]]}

    def reference_state_dict(self, reference: nn.Module) -> Tensors:
        if not isinstance(reference, nn.ModuleList):
            return reference.state_dict()
        return reference[0].state_dict() if len(reference) == 1 else nn.ModuleDict({"layers": reference}).state_dict()

    def load_reference(
        self, reference: nn.Module, state_dict: Mapping[str, torch.Tensor], source: SourceConfig
    ) -> None:
        if isinstance(reference, nn.ModuleList):
            reference = reference[0] if len(reference) == 1 else nn.ModuleDict({"layers": reference})
        super().load_reference(reference, state_dict, source)

    def run_reference(self, reference: nn.Module, inputs: Tensors) -> Tensors:
        states = inputs["states"]
        for layer in reference:
            states = self.run_layer(layer, states, inputs)
        return {"hidden states": states[inputs["mask"]]}

    def run_layer(self, layer: nn.Module, states: torch.Tensor, inputs: Tensors) -> torch.Tensor:
        """One layer of the source, for those that are published as layers."""
        raise TypeError(f"{self.name} is not run by layers")


def in_layers(rows: Sequence[Name], num_layers: int) -> list[Name]:
    """The rows of one layer for a stack: checkpoints of a single layer have no `layers.{i}.` before their names."""
    return [
        Name(
            tuple(f"layers.{{i}}.{name}" if num_layers > 1 else name for name in row.their_names),
            tuple(f"layers.{{i}}.{name}" for name in row.our_names),
            row.operation,
        )
        for row in rows
    ]
