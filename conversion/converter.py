"""The base class of all sources of weights. A new checkpoint family is a subclass that is added to
`registry.py`.

A converter has three parts: `our_config` translates the config, `weight_map` translates the names
of the tensors, and `build_reference` with `run_reference` allows `verify` to compare the two
models.
"""

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from functools import reduce
from typing import Any, ClassVar

import torch
from torch import nn
from transformers import AutoTokenizer, PreTrainedConfig, PreTrainedModel
from transformers.initialization import no_init_weights
from transformers.modeling_outputs import ModelOutput

from hf_roformer_lite import RoFormerLiteModel

from .checkpoint_files import check_numbers
from .weight_map import ConversionError, Rules, StoredNames, WeightMap

SourceConfig = Mapping[str, Any]
Tensors = dict[str, torch.Tensor]
# Most sources have the layers of the original Transformer. Converters set these fields explicitly,
# because the defaults of our config differ and may change.
CLASSIC_FIELDS: dict[str, Any] = {
    "norm_type": "layernorm",
    "gated_mlp": False,
    "scale_embeddings": False,
    "embedding_norm": False,
    "initializer_range": 0.02,
}


class Converter(ABC):
    """A source of weights. In all methods `source_config` is the source's config with its own field
    names.

    Attributes:
        name: The name of the source for `--from`.
        tolerances: For each dtype, the largest difference at which outputs count as equal. It is
            absolute if no number of the output is larger than 1, otherwise relative to the largest.
        becomes: The class of this package that every checkpoint becomes.
        rules: The table of tensors, if it is the same for every config.
        ignored: The names of their tensors that our model does not need.
        stored_names: The older names that files may have for names of `weight_map`.
    """

    name: ClassVar[str]
    becomes: ClassVar[type[PreTrainedModel]] = RoFormerLiteModel
    rules: ClassVar[Rules] = ()
    ignored: ClassVar[tuple[str, ...]] = ()
    tolerances: ClassVar[dict[torch.dtype, float]] = {torch.float32: 1e-5, torch.float64: 1e-12}
    stored_names: ClassVar[StoredNames] = StoredNames()

    def complete_config(
        self, source_config: SourceConfig, state_dict: Mapping[str, torch.Tensor]
    ) -> dict[str, Any]:
        """The source's config, completed with facts that only the weights show."""
        return dict(source_config)

    def tokenizer_class(self, declared: str | None) -> type:
        """The class that opens a checkpoint's tokenizer. `declared` is the name of the class in its
        files, if they name one."""
        return AutoTokenizer

    @abstractmethod
    def our_config(self, source_config: SourceConfig) -> PreTrainedConfig:
        """Our config for the source's config."""

    def our_model_class(self, source_config: SourceConfig) -> type[PreTrainedModel]:
        """The class of this package that the checkpoint becomes."""
        return self.becomes

    def weight_map(self, our_config: PreTrainedConfig, source_config: SourceConfig) -> WeightMap:
        """The table that names the tensors of both sides and the operations between them."""
        return WeightMap(self.rules, self.ignored, our_config.num_attention_heads)

    @abstractmethod
    def build_reference(self, source_config: SourceConfig) -> nn.Module:
        """The source's own model, or one written from its specification, with random weights."""

    @abstractmethod
    def run_reference(self, reference: nn.Module, inputs: Tensors) -> ModelOutput | torch.Tensor:
        """The output of the reference for the arguments `inputs` of our model, under our names. A
        single tensor is the last hidden state."""

    def needs_full_rows(self, our_config: PreTrainedConfig) -> bool:
        """Whether the reference reads padding and can therefore be compared only on inputs without
        padding."""
        return False

    def load_reference(
        self,
        reference: nn.Module,
        state_dict: Mapping[str, torch.Tensor],
        source_config: SourceConfig,
    ) -> None:
        """Load the weights of a checkpoint into the reference.

        Raises:
            ConversionError: if the checkpoint lacks a tensor of the reference, which would remain
                random.
        """
        weight_map = self.weight_map(self.our_config(source_config), source_config)
        tensors = dict(self.stored_names.read(state_dict))
        try:
            missing, _ = reference.load_state_dict(tensors, strict=False)
        except RuntimeError as error:
            # A tensor that only the source needs has another shape.
            raise ConversionError(
                f"the source's own model: {' '.join(str(error).split())}"
            ) from error
        lacking = [name for name in missing if not weight_map.ignores(name)]
        if lacking:
            raise ConversionError(
                f"the source's own model needs {', '.join(lacking)}, which the checkpoint lacks"
            )

    def convert(
        self,
        state_dict: Mapping[str, torch.Tensor] | None,
        source_config: SourceConfig,
        copy: bool = True,
    ) -> PreTrainedModel:
        """Like `convert` of `registry.py`. Without `copy` the model may share its weights with
        `state_dict`."""
        if state_dict is not None:
            state_dict = self.stored_names.read(state_dict)
            source_config = self.complete_config(source_config, state_dict)
        try:
            config = self.our_config(source_config)
            model_class = self.our_model_class(source_config)
        except ConversionError:
            raise
        except Exception as error:
            # A config may contain anything, and their classes and ours raise errors of many types.
            # The error about a field is the cause of the error about the class.
            raise ConversionError(f"no model can be made: {error.__cause__ or error}") from error
        if state_dict is None:
            return model_class(config).eval()
        with no_init_weights():
            model = model_class(config)
        tied = set(model.all_tied_weights_keys)
        shapes = {
            name: tensor.shape for name, tensor in model.state_dict().items() if name not in tied
        }
        ours = dict(self.weight_map(config, source_config).to_ours(state_dict, shapes))
        check_numbers({f"the tensor that becomes {name}": tensor for name, tensor in ours.items()})
        dtype = reduce(torch.promote_types, (tensor.dtype for tensor in ours.values()))
        ours = {name: tensor.to(dtype, copy=copy) for name, tensor in ours.items()}
        config.dtype = dtype
        # Only tied tensors are missing: the weight map has checked the names.
        model.load_state_dict(ours, strict=False, assign=True)
        model.tie_weights()
        return model.eval()


class LayerConverter(Converter):
    """Layers that are published without embeddings. They take vectors, `inputs_embeds`, and a
    decoder also takes the vectors of an encoder. Their config has `num_layers`; in checkpoints of
    one layer, names have no prefix `layers.{i}.`. `rules` and `ignored` describe one layer."""

    def weight_map(self, our_config: PreTrainedConfig, source_config: SourceConfig) -> WeightMap:
        prefix = ""
        if our_config.num_hidden_layers > 1:
            prefix = "layers.{i}."
        return WeightMap(
            rules=[rule.prefixed(prefix, "layers.{i}.") for rule in self.rules],
            ignored=[prefix + name for name in self.ignored],
            num_heads=our_config.num_attention_heads,
        )

    @abstractmethod
    def build_layer(self, source_config: SourceConfig) -> nn.Module:
        """One layer of the source, with random weights."""

    @abstractmethod
    def run_layer(self, layer: nn.Module, states: torch.Tensor, inputs: Tensors) -> torch.Tensor:
        """The output of one layer of the source, `(B, L, width)`."""

    def build_reference(self, source_config: SourceConfig) -> nn.Module:
        num_layers = source_config.get("num_layers", 1)
        if num_layers == 1:
            return self.build_layer(source_config)
        layers = nn.ModuleList(self.build_layer(source_config) for _ in range(num_layers))
        return nn.ModuleDict({"layers": layers})

    def run_reference(self, reference: nn.Module, inputs: Tensors) -> torch.Tensor:
        layers = [reference]
        if isinstance(reference, nn.ModuleDict):
            layers = reference["layers"]
        states = inputs["inputs_embeds"]
        for layer in layers:
            states = self.run_layer(layer, states, inputs)
        return states


def read_fields(
    source_config: SourceConfig, source: str, required: Sequence[str], known: Collection[str] = ()
) -> list:
    """The values of the `required` fields of a config that has no class.

    Raises:
        ConversionError: if one of them is missing, or if the config has a field that is neither
            required nor `known`.
    """
    faults = [
        f"has no field {field}" for field in source_config if field not in (*required, *known)
    ]
    faults += [f"needs the field {field!r}" for field in required if field not in source_config]
    if faults:
        fields = ", ".join(sorted({*required, *known}))
        raise ConversionError(
            f"the config of a {source} source {faults[0]}; its fields are {fields}"
        )
    return [source_config[field] for field in required]
