"""The base class of sources that are one stack and take vectors, `inputs_embeds`, instead of ids."""

from collections.abc import Mapping, Sequence

import torch
from torch import nn
from transformers import PreTrainedModel

from hf_roformer_lite import RoFormerLiteModel

from .converter import Converter, SourceConfig, Tensors
from .weight_map import WeightRule


class VectorConverter(Converter):
    """One stack of layers on vectors; with cross-attention it also takes vectors of an encoder, called `memory`.

    Sources that are published as layers give a `ModuleList` as reference and implement `run_layer`; others override
    `run_reference`.
    """

    def our_model_class(self, source_config: SourceConfig) -> type[PreTrainedModel]:
        return RoFormerLiteModel

    def random_inputs(self, model: PreTrainedModel, generator: torch.Generator) -> Tensors:
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
        return _as_checkpoint(reference).state_dict()

    def load_reference(
        self, reference: nn.Module, state_dict: Mapping[str, torch.Tensor], source_config: SourceConfig
    ) -> None:
        super().load_reference(_as_checkpoint(reference), state_dict, source_config)

    def run_reference(self, reference: nn.Module, inputs: Tensors) -> Tensors:
        states = inputs["states"]
        for layer in reference:
            states = self.run_layer(layer, states, inputs)
        return {"hidden states": states[inputs["mask"]]}

    def run_layer(self, layer: nn.Module, states: torch.Tensor, inputs: Tensors) -> torch.Tensor:
        """The output of one layer of the source, `(B, L, width)`."""
        raise NotImplementedError(f"{self.name}: run_layer or run_reference must be implemented")


def _as_checkpoint(reference: nn.Module) -> nn.Module:
    """The module whose names are those of a checkpoint: a single layer has no `layers.{i}.` before its names."""
    if not isinstance(reference, nn.ModuleList):
        return reference
    return reference[0] if len(reference) == 1 else nn.ModuleDict({"layers": reference})


def layer_rules(rules: Sequence[WeightRule], num_layers: int) -> list[WeightRule]:
    """The rules of one layer for a stack; checkpoints of a single layer have no `layers.{i}.` before their names."""
    theirs = "layers.{i}." if num_layers > 1 else ""
    return [rule.prefixed(theirs, "layers.{i}.") for rule in rules]
