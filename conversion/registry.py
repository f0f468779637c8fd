"""All sources by name, and conversion of a state dict in memory."""

from collections.abc import Mapping

import torch
from transformers import PreTrainedModel

from hf_roformer_lite.errors import InputError

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
    roberta,
    roformer,
    rope_encoders,
    system_a_deeplotx,
    system_b_prenorm,
    system_c_bert_like,
    system_d_walkthrough,
    system_e_seq2seq,
    torch_transformer,
)
from .converter import Converter, SourceConfig

CONVERTERS: dict[str, Converter] = {
    converter.name: converter
    for converter in (
        system_a_deeplotx.CONVERTER,
        *system_b_prenorm.CONVERTERS,
        system_c_bert_like.CONVERTER,
        system_d_walkthrough.CONVERTER,
        system_e_seq2seq.CONVERTER,
        *torch_transformer.CONVERTERS,
        roformer.CONVERTER,
        *bert.CONVERTERS,
        *roberta.CONVERTERS,
        electra.CONVERTER,
        distilbert.CONVERTER,
        albert.CONVERTER,
        *rope_encoders.CONVERTERS,
        *llama.CONVERTERS,
        *modernbert.CONVERTERS,
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
    """Tensors and config of the source `name` for a model of this package.

    Raises:
        InputError: when that source has no equivalent of the model, or exporting to it is not supported.
    """
    return find_converter(name).export(model)
