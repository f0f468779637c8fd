"""All sources by name, and conversion of a state dict in memory."""

from collections.abc import Mapping

import torch
from transformers import PreTrainedModel

from roformer_lite.errors import InputError
from roformer_lite.saved_model import without_reports

from . import (
    albert,
    bart,
    bert,
    distilbert,
    electra,
    esm,
    gpt_neox,
    llama,
    modernbert,
    neobert,
    roberta,
    roformer,
    roformer_v2,
    rope_encoders,
    system_a_deeplotx,
    system_b_prenorm,
    system_c_bert_like,
    system_d_walkthrough,
    system_e_seq2seq,
    torch_transformer,
)
from .converter import Converter, SourceConfig
from .going_back import find_route
from .hugging_face import HuggingFaceConverter

CONVERTERS: dict[str, Converter] = {
    converter.name: converter
    for converter in (
        system_a_deeplotx.CONVERTER,
        *system_b_prenorm.CONVERTERS,
        system_c_bert_like.CONVERTER,
        system_d_walkthrough.CONVERTER,
        system_e_seq2seq.CONVERTER,
        *torch_transformer.CONVERTERS,
        *bert.CONVERTERS,
        *roberta.CONVERTERS,
        electra.CONVERTER,
        distilbert.CONVERTER,
        albert.CONVERTER,
        *rope_encoders.CONVERTERS,
        roformer.CONVERTER,
        roformer_v2.CONVERTER,
        *llama.CONVERTERS,
        *modernbert.CONVERTERS,
        neobert.CONVERTER,
        esm.CONVERTER,
        gpt_neox.CONVERTER,
        *bart.CONVERTERS,
    )
}


def find_converter(name: str) -> Converter:
    """The converter of the source `name`.

    Raises:
        InputError: when there is no such source.
    """
    if name not in CONVERTERS:
        raise InputError(f"there is no source {name!r}; choose one of {', '.join(CONVERTERS)}")
    return CONVERTERS[name]


def convert(
    name: str, state_dict: Mapping[str, torch.Tensor] | None, config_dict: SourceConfig | None = None
) -> PreTrainedModel:
    """A ready model of this package from the weights of another system.

    Args:
        name: The source, one of `CONVERTERS`.
        state_dict: Its tensors under its own names; None gives a freshly initialised model.
        config_dict: Its config in its own field names.

    Returns:
        The model in evaluation mode, with a copy of the weights in their own dtype.

    Raises:
        InputError: for an unknown source, for names, shapes and fields that do not fit it, and for a config from which
            no model can be built.
    """
    return find_converter(name).convert(state_dict, dict(config_dict or {}))


def export(name: str, model: PreTrainedModel) -> tuple[dict[str, torch.Tensor], dict]:
    """Tensors and config of the source `name` for a model of this package; `auto` is the family that fits.

    Raises:
        InputError: when that source has no equivalent of the model, or exporting to it is not supported; for `auto`
            naming the nearest family and the fields in the way.
    """
    return find_converter(fitting_family(model) if name == "auto" else name).export(model)


def families() -> list[HuggingFaceConverter]:
    """The sources whose models are classes of transformers, in it or published with their weights."""
    return [converter for converter in CONVERTERS.values() if isinstance(converter, HuggingFaceConverter)]


def family_of(source_config: SourceConfig) -> str:
    """The source that a config of transformers belongs to, by its `model_type`.

    Raises:
        InputError: when it is none of `families`.
    """
    converter = converter_of(source_config)
    if converter is not None:
        return converter.name
    known = ", ".join(converter.name for converter in families())
    raise InputError(
        f"model_type={source_config.get('model_type')!r} tells no source that can be converted; those it can tell are "
        f"{known}"
    )


def converter_of(source_config: SourceConfig) -> HuggingFaceConverter | None:
    """The converter of checkpoints with this config; None where no converter reads them."""
    return next((converter for converter in families() if converter.reads(source_config)), None)


def fitting_family(model: PreTrainedModel) -> str:
    """The family of transformers whose class computes what `model` does; of several the one that needs the fewest
    additions.

    Raises:
        InputError: when there is none, naming the nearest one and the fields in the way.
    """
    routes = []
    for converter in (one for one in families() if one.in_transformers):
        try:
            with without_reports():  # of ids that are outside the vocabulary of a family tried
                routes.append(find_route(converter, model))
        except InputError:  # the family has no such head
            continue
    if not routes:
        raise InputError(f"no family has an equivalent of {type(model).__name__}")
    best = min(routes, key=lambda route: (route.back is None, len(route.faults), route.scales + len(route.zeros)))
    if best.faults:
        raise InputError(
            f"no family has an equivalent of this model; the nearest is {best.converter.name}, without "
            f"{', '.join(best.faults)}"
        )
    return best.converter.name
