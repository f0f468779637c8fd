"""The Auto class of checkpoints of other systems: they open as models of this package, without a copy on the disk."""

from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from hf_roformer_lite import RoFormerLiteConfig, RoFormerLiteSeq2SeqConfig
from hf_roformer_lite.errors import InputError
from hf_roformer_lite.saved_files import find_file, read_object

from .beside_weights import take_generation_config
from .checkpoints import load_checkpoint, open_checkpoint, source_of
from .fine_tuning import convert_for_fine_tuning
from .registry import find_converter

_OURS = (RoFormerLiteConfig.model_type, RoFormerLiteSeq2SeqConfig.model_type)


class ConvertedModel:
    """`ConvertedModel.from_pretrained("nomic-ai/nomic-embed-text-v1.5")`, in the manner of transformers' Auto classes.

    Each tensor is read when its place in the model is filled, so that little more memory is needed than the weights
    take.
    """

    def __init__(self):
        raise OSError("ConvertedModel is made by ConvertedModel.from_pretrained(name).")

    @classmethod
    def from_pretrained(
        cls,
        name: str | Path,
        model_class: type[PreTrainedModel] | None = None,
        source: str = "auto",
        dtype: torch.dtype | None = None,
        **fields: Any,
    ) -> PreTrainedModel:
        """A model of this package with the weights of a checkpoint, in evaluation mode.

        Args:
            name: A directory, or a repository on the Hub.
            model_class: One of this package's classes, with a head that the checkpoint may lack and that is new then
                (float32, for a training). Default: the one that the checkpoint is.
            source: The system it comes from. Default: the family that its config.json names.
            dtype: Of the weights. Default: that of the checkpoint.
            fields: Fields of our config that shall not be the checkpoint's, such as `num_labels`; they need
                `model_class`.

        Raises:
            InputError: when a file is missing or wrong, names or shapes do not fit, or nothing says which system the
                weights come from.
        """
        path = find_file(name, "config.json")
        if path is not None and read_object(path).get("model_type") in _OURS:
            raise InputError(
                f"{name} is a model of this package already; open it with a class of transformers or ours"
            )
        if model_class is None:
            if fields:
                raise InputError(f"{', '.join(fields)}: a field can be changed where model_class= says what is made")
            model = load_checkpoint(name, source)[0]
        else:
            state_dict, config = open_checkpoint(name)
            converter = find_converter(source_of(name, config) if source == "auto" else source)
            model = convert_for_fine_tuning(converter, state_dict, config, model_class, fields)[0].eval()
            take_generation_config(model, name)
        return model if dtype is None else model.to(dtype)
