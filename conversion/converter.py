"""The base class of all sources of weights. A new checkpoint family is a subclass, added to `registry.py`.

A converter has three parts: `our_config` translates the config, `weight_map` the names of the tensors, and
`build_reference` with `run_reference` and `run_ours` lets `verify` compare the two models.
"""

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from functools import reduce
from typing import Any, ClassVar

import torch
from huggingface_hub.errors import StrictDataclassError
from torch import nn
from transformers import AutoTokenizer, PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase
from transformers.initialization import no_init_weights

from roformer_lite.errors import InputError

from .weight_map import WeightMap

SourceConfig = Mapping[str, Any]
Tensors = dict[str, torch.Tensor]
# All sources have the layer of the original Transformer. Converters say so in full, so that they do not depend on the
# defaults of our config.
CLASSIC_FIELDS: dict[str, Any] = {
    "norm_type": "layernorm",
    "gated_mlp": False,
    "scale_embeddings": False,
    "embedding_norm": False,
    "initializer_range": 0.02,
}


class Converter(ABC):
    """A source of weights. In all methods `source_config` is the source's config, in its own field names.

    Attributes:
        name: The name of the source for `--from`.
        tolerances: In each dtype, the largest difference of an output that counts as equal: an absolute one where no
            number of the output is larger than 1, otherwise relative to the largest.
        tokenizer_class: The class that opens the tokenizer in a checkpoint's directory.
    """

    name: ClassVar[str]
    tokenizer_class: ClassVar[type] = AutoTokenizer
    tolerances: ClassVar[dict[torch.dtype, float]] = {torch.float32: 1e-5, torch.float64: 1e-12}

    def complete_config(self, source_config: SourceConfig, state_dict: Mapping[str, torch.Tensor]) -> dict[str, Any]:
        """The source's config together with what only the weights show."""
        return dict(source_config)

    def read(self, state_dict: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
        """The tensors of a checkpoint by the names that `weight_map` has; files may have older ones."""
        return state_dict

    @abstractmethod
    def our_config(self, source_config: SourceConfig) -> PreTrainedConfig:
        """Our config for the source's config."""

    @abstractmethod
    def our_model_class(self, source_config: SourceConfig) -> type[PreTrainedModel]:
        """The class of this package that the checkpoint becomes."""

    @abstractmethod
    def weight_map(self, our_config: PreTrainedConfig, source_config: SourceConfig) -> WeightMap:
        """The table of which tensor becomes which."""

    @abstractmethod
    def build_reference(self, source_config: SourceConfig) -> nn.Module:
        """The source's own model, or one written from its specification, with random weights."""

    def reference_state_dict(self, reference: nn.Module) -> Tensors:
        """The reference's weights under the names that its checkpoints use."""
        return reference.state_dict()

    def load_reference(
        self, reference: nn.Module, state_dict: Mapping[str, torch.Tensor], source_config: SourceConfig
    ) -> None:
        """Load the weights of a checkpoint into the reference.

        Raises:
            InputError: when the checkpoint lacks a tensor of the reference, whose random numbers would otherwise be
                compared.
        """
        weight_map = self.weight_map(self.our_config(source_config), source_config)
        current = {weight_map.current_name(name): tensor for name, tensor in self.read(state_dict).items()}
        missing = reference.load_state_dict(current, strict=False)[0]
        lacking = [name for name in missing if not weight_map.ignores(name)]
        if lacking:
            raise InputError(f"the source's own model needs {', '.join(lacking)}, which the checkpoint lacks")

    def cast_reference(self, reference: nn.Module, dtype: torch.dtype) -> nn.Module:
        """The reference with all its computation in `dtype`."""
        return reference.to(dtype)

    @abstractmethod
    def random_inputs(self, model: PreTrainedModel, generator: torch.Generator) -> Tensors:
        """Random inputs with padding, for `run_reference` and `run_ours`."""

    def text_inputs(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, lines: Sequence[str]) -> Tensors:
        """Inputs made of lines of text, for sources whose checkpoints have a tokenizer."""
        raise InputError(f"a {self.name} source has no tokenizer")

    @abstractmethod
    def run_reference(self, reference: nn.Module, inputs: Tensors) -> Tensors:
        """Outputs of the reference by name, without those of padding."""

    @abstractmethod
    def run_ours(self, model: PreTrainedModel, inputs: Tensors) -> Tensors:
        """The same outputs of our model."""

    def export(self, model: PreTrainedModel) -> tuple[Tensors, dict[str, Any]]:
        """Tensors and config of the source for our model.

        Raises:
            InputError: when the source has no equivalent of the model, or exporting to it is not supported.
        """
        raise InputError(f"a model cannot be exported to {self.name}")

    def convert(
        self, state_dict: Mapping[str, torch.Tensor] | None, source_config: SourceConfig, copy: bool = True
    ) -> PreTrainedModel:
        """A ready model in evaluation mode, in the dtype of the checkpoint.

        Args:
            state_dict: Tensors by the source's names; None gives a freshly initialised model.
            source_config: The source's config, in its own field names.
            copy: Whether the weights are copied; otherwise the model may share them with `state_dict`.

        Raises:
            InputError: when names or shapes do not fit, or no model can be built from the config.
        """
        if state_dict is not None:
            state_dict = self.read(state_dict)
            source_config = self.complete_config(source_config, state_dict)
        try:
            config, model_class = self.our_config(source_config), self.our_model_class(source_config)
        except (StrictDataclassError, ValueError) as error:
            raise error if isinstance(error, InputError) else InputError(f"no model can be made: {error}") from error
        if state_dict is None:
            return model_class(config).eval()
        with no_init_weights():
            model = model_class(config)
        tied = set(model.all_tied_weights_keys)
        shapes = {name: tensor.shape for name, tensor in model.state_dict().items() if name not in tied}
        ours = dict(self.weight_map(config, source_config).to_ours(state_dict, shapes))
        dtype = reduce(torch.promote_types, (tensor.dtype for tensor in ours.values()))
        ours = {name: tensor.to(dtype, copy=copy) for name, tensor in ours.items()}
        config.dtype = dtype
        model.load_state_dict(ours, strict=False, assign=True)  # the weight map has checked the names
        model.tie_weights()
        return model.eval()


def require_fields(source_config: SourceConfig, converter: str, *fields: str) -> list[Any]:
    """The values of `fields`, or an error that names the first one that is missing."""
    for field in fields:
        if field not in source_config:
            raise InputError(
                f"the config of a {converter} source needs the field {field!r}; it has {sorted(source_config)}"
            )
    return [source_config[field] for field in fields]


def refuse_unknown_fields(source_config: SourceConfig, converter: str, known: Collection[str]) -> None:
    """An error for fields that the converter does not read."""
    unknown = sorted(set(source_config) - set(known))
    if unknown:
        raise InputError(
            f"the config of a {converter} source has no field {', '.join(unknown)}; it may have "
            f"{', '.join(sorted(known))}"
        )
