"""Models of sentence-transformers, made from a transformers model or from a saved directory."""

from __future__ import annotations

import os
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from hf_roformer_lite.conversion.checkpoint_files import check_numbers

from .saved_model import naming, read_optional_object, sentence_modules

if TYPE_CHECKING:
    from sentence_transformers.base.model import BaseModel


def make_sentence_model(
    kind: type[BaseModel],
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    max_length: int,
    modules_of: str | None,
) -> BaseModel:
    """Make a model of sentence-transformers that wraps `model` and `tokenizer` and shares them.

    Args:
        kind: The class of sentence-transformers.
        model: The model, with the head that `kind` reads.
        tokenizer: The tokenizer of the model.
        max_length: Longer texts are truncated to this many tokens.
        modules_of: A saved model, if there is one. If it is of the class `kind`, the modules after
            the model are copied from it. Otherwise the library chooses them.

    Raises:
        InputError: if those modules cannot be used.
    """
    # This imports the converters of all architectures.
    from hf_roformer_lite.conversion.checkpoints import copy_sentence_modules

    theirs = None
    if modules_of is not None:
        modules = sentence_modules(modules_of)
        # A causal reranker becomes a classifier, whose score needs no module.
        if modules and "LogitScore" not in modules:
            config = read_optional_object(modules_of, "config_sentence_transformers.json")
            theirs = config.get("model_type", "SentenceTransformer")
    with TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        if theirs == kind.model_type:
            with naming(modules_of):
                copy_sentence_modules(modules_of, Path(folder))
        made = open_sentence_model(kind, folder, str(model.device))
    # The library has loaded copies of both.
    transformer: Any = made[0]
    transformer.model = model
    transformer.processor = tokenizer
    made.max_seq_length = max_length
    return made


def open_sentence_model(kind: type[BaseModel], directory: str, device: str) -> BaseModel:
    """Open a saved model of sentence-transformers in its class `kind`.

    Raises:
        InputError: if the library cannot open it.
    """
    sentence_modules(directory)
    with naming(directory):
        model = kind(directory, device=device, local_files_only=os.path.isdir(directory))
        tensors = model.state_dict()
        check_numbers(
            {name: tensors[name] for name in tensors if tensors[name].is_floating_point()}
        )
    return model
