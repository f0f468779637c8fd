"""What lies beside the weights of a checkpoint and goes along: how it generates, how it makes embeddings."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from transformers import GenerationConfig, PreTrainedModel

from roformer_lite.errors import InputError
from roformer_lite.generation_fields import check_generation_fields
from roformer_lite.saved_files import find_file, read_optional_object

_GENERATION = "generation_config.json"
_MODULES = "modules.json"  # of sentence-transformers: what follows the model, such as pooling
_OF_SENTENCES = ("config_sentence_transformers.json", "sentence_bert_config.json")
_OF_A_MODULE = ("config.json", "model.safetensors")


def take_generation_config(model: PreTrainedModel, name: str | Path) -> None:
    """Let `model` generate as the checkpoint `name` says.

    Raises:
        InputError: for a value with which no text can be generated.
    """
    fields = read_optional_object(name, _GENERATION)
    if not model.can_generate() or not fields:
        return
    check_generation_fields(fields, f"{name}/{_GENERATION}", model.config.get_text_config(decoder=True).vocab_size)
    model.generation_config = GenerationConfig.from_model_config(model.config)
    model.generation_config.update(**{field: value for field, value in fields.items() if value is not None})


def copy_sentence_modules(name: str | Path, out: Path) -> None:
    """Copy what makes a directory of sentence-transformers of one: its modules but the model, prompts, lengths.

    Raises:
        InputError: when a module is code, or lies outside the checkpoint.
    """
    modules = find_file(name, _MODULES)
    if modules is None:
        return
    shutil.copy(modules, out / _MODULES)
    folders = list(_folders(modules))
    for file in (*_OF_SENTENCES, *(f"{folder}/{part}" for folder in folders for part in _OF_A_MODULE)):
        found = find_file(name, file)
        if found is not None:
            (out / file).parent.mkdir(exist_ok=True)
            shutil.copy(found, out / file)
    for folder in folders:  # a module without options has no file
        (out / folder).mkdir(exist_ok=True)


def _folders(modules: Path) -> Iterator[str]:
    """The folders of the modules behind the model, which itself has none."""
    try:
        entries: list[dict[str, Any]] = json.loads(modules.read_text("utf-8"))
        described = [(str(entry["path"]), str(entry["type"])) for entry in entries]
    except (ValueError, TypeError, KeyError) as error:
        raise InputError(f"{modules}: must hold a list of modules with a path and a type each") from error
    for folder, kind in described:
        if not kind.startswith("sentence_transformers."):
            raise InputError(f"{modules}: type={kind!r} is code of the checkpoint's own, which is not carried over")
        if len(PurePosixPath(folder).parts) > 1 or folder in (".", ".."):
            raise InputError(f"{modules}: path={folder!r} must be a folder beside it")
        if folder:
            yield folder
