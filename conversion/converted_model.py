"""The Auto class of checkpoints of other systems: they open as models of this package, without a copy on the disk."""

from pathlib import Path

import torch
from transformers import PreTrainedModel

from hf_roformer_lite import RoFormerLiteConfig, RoFormerLiteSeq2SeqConfig
from roformer_lite.errors import InputError
from roformer_lite.saved_files import find_file, read_object

from .checkpoints import load_checkpoint

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
        source: str = "auto",
        dtype: torch.dtype | None = None,
    ) -> PreTrainedModel:
        """A model of this package with the weights of a checkpoint, in evaluation mode.

        Args:
            name: A directory, or a repository on the Hub.
            source: The system it comes from. Default: the family that its config.json names.
            dtype: Of the weights. Default: that of the checkpoint.

        Raises:
            InputError: when a file is missing or wrong, names or shapes do not fit, or nothing says which system the
                weights come from.
        """
        path = find_file(name, "config.json")
        if path is not None and read_object(path).get("model_type") in _OURS:
            raise InputError(
                f"{name} is a model of this package already; open it with a class of transformers or ours"
            )
        model = load_checkpoint(name, source)[0]
        return model if dtype is None else model.to(dtype)
