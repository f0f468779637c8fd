"""All sources by name, and the conversion of a state dict in memory."""

from collections.abc import Mapping

import torch
from transformers import PreTrainedModel

from . import (
    bart,
    bert,
    deeplotx,
    esm,
    llama,
    modernbert,
    neobert,
    prenorm_layers,
    roformer,
    rope_encoders,
    scratch_seq2seq,
    torch_transformer,
    walkthrough,
)
from .converter import Converter, SourceConfig
from .going_back import carry_back, fitting
from .hugging_face import HuggingFaceConverter
from .weight_map import ConversionError

# The families of transformers come first in messages.
MODULES = (
    bert,
    rope_encoders,
    roformer,
    llama,
    modernbert,
    neobert,
    esm,
    bart,
    deeplotx,
    prenorm_layers,
    walkthrough,
    scratch_seq2seq,
    torch_transformer,
)
CONVERTERS: dict[str, Converter] = {
    converter.name: converter for module in MODULES for converter in module.CONVERTERS
}


def find_converter(name: str) -> Converter:
    """The converter of the source `name`.

    Raises:
        ConversionError: if there is no such source.
    """
    if name not in CONVERTERS:
        raise ConversionError(f"there is no source {name!r}; choose one of {', '.join(CONVERTERS)}")
    return CONVERTERS[name]


def convert(
    name: str,
    state_dict: Mapping[str, torch.Tensor] | None,
    config_dict: SourceConfig | None = None,
) -> PreTrainedModel:
    """Convert the weights of another system to a RoFormerLite model.

    Args:
        name: The source, one of `CONVERTERS`.
        state_dict: Its tensors under its own names; None gives a freshly initialised model.
        config_dict: Its config in its own field names.

    Returns:
        The model in evaluation mode, with a copy of the weights in their own dtype.

    Raises:
        ConversionError: for an unknown source, for names, shapes and fields that do not fit it, and
            for a config from which no model can be built.
    """
    return find_converter(name).convert(state_dict, dict(config_dict or {}))


def export(name: str, model: PreTrainedModel) -> tuple[dict[str, torch.Tensor], dict]:
    """The tensors and the config of the source `name` for a RoFormerLite model. `auto` chooses
    the family that fits.

    Raises:
        ConversionError: if the source has no equivalent of the model, or if exporting to it is not
            supported. For `auto` the message names the nearest family and the fields in the way.
    """
    if name == "auto":
        name = fitting_families(model)[0]
    converter = find_converter(name)
    if not isinstance(converter, HuggingFaceConverter):
        known = ", ".join(family.name for family in families())
        raise ConversionError(f"a model cannot be exported to {name}; choose one of {known}")
    return carry_back(converter, model)


def families() -> list[HuggingFaceConverter]:
    """The sources whose models are classes of transformers, or are published with such classes."""
    return [
        converter
        for converter in CONVERTERS.values()
        if isinstance(converter, HuggingFaceConverter)
    ]


def family_of(source_config: SourceConfig) -> str:
    """The source to which a config of transformers belongs, by its `model_type`.

    Raises:
        ConversionError: if there is none.
    """
    for converter in families():
        if converter.reads(source_config):
            return converter.name
    known = ", ".join(converter.name for converter in families())
    model_type = source_config.get("model_type")
    raise ConversionError(
        f"model_type={model_type!r} is no source that can be converted; choose one of {known}"
    )


def fitting_families(model: PreTrainedModel) -> list[str]:
    """The families of transformers that have an equivalent of a RoFormerLite model, the best one
    first."""
    candidates = [converter for converter in families() if converter.in_transformers]
    return [converter.name for converter in fitting(candidates, model)]
