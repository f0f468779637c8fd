"""Opens saved models and their tokenizers from a directory or from the Hub, and names the file if
one of them is wrong.

transformers refuses most damaged files itself, and `naming` turns its errors into one sentence. The
checks here are for faults that it silently accepts: missing tensors, which it fills with random
numbers, tensors that are unknown, of another type or not finite, the tokenizer of another model, an
adapter instead of a model, and missing modules of sentence-transformers. No code of a saved model
is run: `trust_remote_code` is off, and files of torch are read with `weights_only`.
"""

import json
import logging
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import transformers
from huggingface_hub.errors import StrictDataclassError
from safetensors import safe_open
from torch import nn
from transformers import (
    AutoConfig,
    AutoTokenizer,
    GenerationConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.configuration_utils import PreTrainedConfig
from transformers.utils import cached_file

import hf_roformer_lite

from .errors import InputError, check_model_name
from .output import RESULTS_FILE

TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "vocab.txt",
    "special_tokens_map.json",
)
# Lower limits of fields in generation_config.json, most of which transformers does not check.
MIN_COUNTS = {"max_length": 2, "max_new_tokens": 1, "pad_token_id": 0}
# These are safetensors' names for the types of real numbers.
REAL_TYPES = ("F64", "F32", "F16", "BF16")
# These files list the shards of a model.
INDEX_FILES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
MAX_SHOWN_TENSORS = 3
MAX_SHOWN_CHARACTERS = 300


def find_file(name: str | Path, file: str) -> Path | None:
    """The path of a file in a directory or in a repository on the Hub; None if there is no such
    file.

    Raises:
        InputError: if `name` is neither a directory nor a repository.
    """
    if os.path.isdir(name):
        path = Path(name) / file
        return path if path.is_file() else None
    check_model_name(name, f"no model can be loaded from {name}")
    with naming(name):
        found = cached_file(str(name), file, _raise_exceptions_for_missing_entries=False)
    return None if found is None else Path(found)


def read_object(path: Path) -> dict[str, Any]:
    """The object in a JSON file.

    Raises:
        InputError: if the file cannot be read or does not contain an object.
    """
    with naming(path, "cannot be read"):
        value = json.loads(path.read_text("utf-8"))
    if not isinstance(value, dict):
        raise InputError(f"{path}: must hold a JSON object, not a {type(value).__name__}")
    return value


def read_optional_object(name: str | Path, file: str) -> dict[str, Any]:
    """Like `read_object`, but empty if the directory or repository has no such file."""
    path = find_file(name, file)
    return {} if path is None else read_object(path)


def load_config(name: str | Path) -> PreTrainedConfig:
    """The configuration of a saved model.

    Raises:
        InputError: if there is none, or if a field is wrong.
    """
    path = find_file(name, "config.json")
    if path is None:
        raise InputError(f"no model can be loaded from {name}: it has no config.json")
    # transformers would load the base model of the adapter.
    if find_file(name, "adapter_config.json") is not None:
        raise InputError(
            f"{name}: adapter_config.json makes it an adapter; merge it into its base model and save "
            "the result"
        )
    with naming(path):
        return AutoConfig.from_pretrained(name, trust_remote_code=False)


def is_ours(part: Any) -> bool:
    """Whether a model, a class of models or a configuration is of this package."""
    kind = part if isinstance(part, type) else type(part)
    return kind.__module__.startswith(f"{hf_roformer_lite.__name__}.")


def model_class_of(config: PreTrainedConfig, name: str | Path) -> type[PreTrainedModel]:
    """The class that a model was saved from, of this package or of transformers.

    Raises:
        InputError: if the configuration names no class, or a class for another type of model.
    """
    for architecture in config.architectures or []:
        for package in (hf_roformer_lite, transformers):
            found = getattr(package, architecture, None)
            if getattr(found, "config_class", None) is type(config):
                return found
    raise InputError(
        f"{name}/config.json: architectures={config.architectures} must name a class of models of "
        f"the type {config.model_type!r}"
    )


def load_model(name: str | Path) -> PreTrainedModel:
    """Load a model of this package with the head that was saved.

    Raises:
        InputError: if it is a model of another package, or if a file is missing or wrong.
    """
    config = load_config(name)
    model_class = model_class_of(config, name)
    if not is_ours(model_class):
        raise InputError(
            f"{name}: {model_class.__name__} is a class of transformers; convert the model with "
            "`roformer-lite convert`"
        )
    return load_complete_model(name, config, model_class)


def load_complete_model(
    name: str | Path, config: PreTrainedConfig, model_class: type[PreTrainedModel]
) -> PreTrainedModel:
    """Load a saved model in its own class, and check that every tensor exists, has the right shape
    and is finite.

    Raises:
        InputError: if a file is missing or wrong.
    """
    model, loaded = _from_pretrained(model_class, name, config)
    _refuse_tensors(name, "lacks", loaded["missing_keys"])
    unknown = f"has tensors that {model_class.__name__} does not have:"
    _refuse_tensors(name, unknown, loaded["unexpected_keys"])
    _refuse_tensors(name, "has in another shape", [key[0] for key in loaded["mismatched_keys"]])
    return model


def load_with_new_head(
    auto_model: Any, name: str | Path, config: PreTrainedConfig
) -> tuple[PreTrainedModel, list[str]]:
    """Load a saved model for fine-tuning, with a head that may be new.

    Args:
        auto_model: The auto class with the head.
        name: The directory or repository of a model with this head, another head or none.
        config: The configuration of the resulting model.

    Returns:
        The model, and the names of the random tensors of a new head. There are none if the saved
        head is kept.

    Raises:
        InputError: if a file is missing or wrong. Only the head may be missing or have another
            shape.
    """
    # The small steps of AdamW would be lost in half precision.
    model, loaded = _from_pretrained(auto_model, name, config, dtype=torch.float32)
    mismatched = {key[0] for key in loaded["mismatched_keys"]}
    new = sorted({*loaded["missing_keys"], *mismatched})
    stack = f"{model.base_model_prefix}."
    # BERT's pooler is a part of the stack, but it is only saved with the heads of some tasks.
    pooler = f"{stack}pooler."
    wrong = [key for key in new if key.startswith(stack) and not key.startswith(pooler)]
    if wrong:
        fault = "has another shape of" if wrong[0] in mismatched else "lacks"
        raise InputError(
            f"{name}: {fault} {wrong[0]}; the model is damaged, or does not fit the requested "
            "configuration; give only --config fields that do not change shapes, such as "
            "hidden_dropout=0.3"
        )
    unknown = [key for key in loaded["unexpected_keys"] if key.startswith(stack)]
    _refuse_tensors(name, "has unknown", unknown)
    return model, new


def _from_pretrained(
    model_class: Any, name: str | Path, config: PreTrainedConfig, **options: Any
) -> tuple[PreTrainedModel, dict[str, Any]]:
    """Load a model together with transformers' information about its tensors, which the caller
    checks."""
    load_generation_config(name)
    check_shards(name)
    is_quantized = getattr(config, "quantization_config", None) is not None
    if not is_quantized:
        _check_types(name)
    with naming(name), without_reports():
        model, loaded = model_class.from_pretrained(
            name,
            config=config,
            ignore_mismatched_sizes=True,
            output_loading_info=True,
            trust_remote_code=False,
            **options,
        )
    if not is_quantized:
        check_finite(model, name)
    return model, loaded


def load_generation_config(name: str | Path) -> GenerationConfig:
    """The saved defaults of `generate`, or transformers' own. Loading a model would silently ignore
    a file that cannot be read.

    Raises:
        InputError: if the file cannot be read, or if a field is wrong.
    """
    path = find_file(name, "generation_config.json")
    if path is None:
        return GenerationConfig()
    with naming(path):
        generation_config = GenerationConfig.from_pretrained(name)
        generation_config.validate()
    for field, minimum in MIN_COUNTS.items():
        value = getattr(generation_config, field)
        if value is not None and (type(value) is not int or value < minimum):
            raise InputError(
                f"{path}: {field}={value!r} must be a whole number of at least {minimum}"
            )
    return generation_config


def _check_types(name: str | Path) -> None:
    """Refuse weights that are not real numbers of at least 16 bits, because transformers would cast
    them and drop imaginary parts."""
    for path in _weight_files(name):
        strange = []
        with naming(path), safe_open(path, "pt") as file:
            for key in file.keys():
                kind = file.get_slice(key).get_dtype()
                is_whole = kind.startswith(("I", "U", "BOOL"))
                is_buffer = is_whole and not key.endswith(("weight", "bias"))
                if kind not in REAL_TYPES and not is_buffer:
                    strange.append(key)
        _refuse_tensors(path, f"has other numbers than {', '.join(REAL_TYPES)} in", strange)


def _weight_files(name: str | Path) -> list[Path]:
    """The safetensors files of a model: one, several shards, or none."""
    whole = find_file(name, "model.safetensors")
    if whole is not None:
        return [whole]
    index = find_file(name, INDEX_FILES[0])
    if index is None:
        return []
    found = [find_file(name, shard) for shard in _shards_of(index)]
    return [path for path in found if path is not None]


def _shards_of(index: Path) -> set[str]:
    with naming(index):
        return {str(shard) for shard in read_object(index)["weight_map"].values()}


def check_shards(name: str | Path, folder: str = "") -> None:
    """Refuse an index of weights that names files outside its directory, which transformers would
    read.

    Args:
        name: The directory or repository.
        folder: The folder in it that contains the weights.

    Raises:
        InputError: with the index and the file.
    """
    # huggingface_hub refuses such names in repositories.
    if not os.path.isdir(name):
        return
    config = read_optional_object(name, os.path.join(folder, "config.json"))
    if config.get("transformers_weights"):
        raise InputError(
            f"{name}: its config.json names the file of its weights in transformers_weights; remove "
            "that field, and name the file model.safetensors"
        )
    for file in INDEX_FILES:
        index = find_file(name, os.path.join(folder, file))
        if index is None:
            continue
        for shard in _shards_of(index):
            if shard in ("", ".", "..") or {"/", "\\", ":"} & set(shard):
                raise InputError(
                    f"{index}: names {shard!r}, which is not a file in the same directory; "
                    "get the model again from a source that you trust"
                )


def check_finite(model: nn.Module, name: str | Path) -> None:
    """Refuse weights that are NaN or infinite.

    Raises:
        InputError: with the names of the tensors.
    """
    strange = []
    for key, value in [*model.named_parameters(), *model.named_buffers()]:
        if value.is_floating_point() and not value.isfinite().all():
            strange.append(key)
    _refuse_tensors(name, "has NaN or infinite numbers in", strange)


def _refuse_tensors(name: str | Path, fault: str, keys: Iterable[str]) -> None:
    keys = sorted(keys)
    if not keys:
        return
    shown = ", ".join(keys[:MAX_SHOWN_TENSORS])
    if len(keys) > MAX_SHOWN_TENSORS:
        shown += f" and {len(keys) - MAX_SHOWN_TENSORS} more"
    raise InputError(
        f"{name}: {fault} {shown}; the weights are damaged, or belong to another model"
    )


def load_tokenizer(
    name: str | Path, config: PreTrainedConfig | None = None
) -> PreTrainedTokenizerBase | None:
    """The tokenizer of a directory or of a repository on the Hub; None if it has none.

    Args:
        name: The directory or repository.
        config: The configuration of the model that will read its tokens, if there is one.

    Raises:
        InputError: if one of its files is wrong, or if it belongs to another model.
    """
    if all(find_file(name, file) is None for file in TOKENIZER_FILES):
        return None
    with naming(f"{name}: the tokenizer"):
        tokenizer = AutoTokenizer.from_pretrained(name, trust_remote_code=False)
    if config is not None:
        check_vocabulary(tokenizer, config, name)
        leave_out_segments(tokenizer, config)
    return tokenizer


def require_tokenizer(
    name: str | Path, config: PreTrainedConfig | None = None
) -> PreTrainedTokenizerBase:
    """Like `load_tokenizer`, but a missing tokenizer is an error."""
    tokenizer = load_tokenizer(name, config)
    if tokenizer is None:
        raise InputError(f"{name}: it has no tokenizer")
    return tokenizer


def leave_out_segments(tokenizer: PreTrainedTokenizerBase, config: PreTrainedConfig) -> None:
    """Stop a tokenizer from returning `token_type_ids` for a model without segments, as BERT's
    tokenizer does."""
    stack = getattr(config, "encoder", config)
    if getattr(stack, "type_vocab_size", None) == 0:
        names = [name for name in tokenizer.model_input_names if name != "token_type_ids"]
        tokenizer.model_input_names = names
        # These arguments are saved.
        tokenizer.init_kwargs["model_input_names"] = names


def try_tokenizer(tokenizer: PreTrainedTokenizerBase, name: str | Path) -> None:
    """Encode two texts, because the padding and lengths in tokenizer_config.json are not checked
    when a tokenizer is loaded.

    Raises:
        InputError: if the texts cannot be encoded as a batch.
    """
    with naming(f"{name}/tokenizer_config.json"):
        if tokenizer.pad_token_id is None:
            raise InputError(
                f"{name}: the tokenizer has no pad_token; tokenizer_config.json must name one"
            )
        tokenizer(["a", "b c"], padding=True, truncation=True, return_tensors="pt")


def check_vocabulary(
    tokenizer: PreTrainedTokenizerBase, config: PreTrainedConfig, name: str | Path
) -> None:
    """Refuse a tokenizer that does not belong to the model. If it had more tokens than the model
    has embeddings, some ids would raise an IndexError. If it used another token for padding, a
    token of the text would be regarded as padding.

    Args:
        tokenizer: The saved tokenizer.
        config: The configuration of the model that reads its tokens.
        name: The name of the model, for the message.

    Raises:
        InputError: with both numbers.
    """
    stack = getattr(config, "encoder", config)
    vocab_size = getattr(stack, "vocab_size", None)
    if not vocab_size:
        return
    size = 1 + max(tokenizer.get_vocab().values(), default=-1)
    if size > vocab_size:
        raise InputError(
            f"{name}: the tokenizer has {size} tokens, but config.json says "
            f"vocab_size={vocab_size}; give the tokenizer that the model was trained with"
        )
    ours = getattr(stack, "pad_token_id", None)
    theirs = tokenizer.pad_token_id
    if ours is None or ours < 0 or theirs is None:
        return
    if ours != theirs:
        raise InputError(
            f"{name}: config.json says pad_token_id={ours}, which the tokenizer calls "
            f"{tokenizer.convert_ids_to_tokens(ours)!r}, and it pads with {theirs}, "
            f"{tokenizer.pad_token!r}; give the tokenizer that the model was trained with, or write "
            "the right number into config.json"
        )


def max_positions(model: nn.Module) -> int | None:
    """The number of tokens for which the model has learned positions; None if it has no table of
    positions."""
    rows = []
    for name, table in model.named_modules():
        is_of_positions = "position" in name or name.endswith("wpe")
        if not is_of_positions or not isinstance(table, nn.Embedding):
            continue
        # In BART the first two rows are unused; in RoBERTa, all rows up to that of the padding.
        unused = getattr(table, "offset", 0)
        if table.padding_idx is not None:
            unused = max(unused, table.padding_idx + 1)
        rows.append(table.num_embeddings - unused)
    return min(rows, default=None)


def sentence_modules(name: str | Path) -> list[str]:
    """The kinds of the modules of a model of sentence-transformers, such as `Pooling`; empty if it
    is another model.

    Raises:
        InputError: if a file is missing. The library would use default modules instead.
    """
    path = find_file(name, "modules.json")
    if path is None:
        if read_optional_object(name, RESULTS_FILE).get("task") in ("embed", "rerank"):
            raise InputError(
                f"{name}: it has no modules.json, which defines how the model is used; copy all "
                "files"
            )
        return []
    kinds = []
    with naming(path):
        for module in json.loads(path.read_text("utf-8")):
            folder = module["path"]
            kind = module["type"].rpartition(".")[2]
            kinds.append(kind)
            if os.path.isabs(folder) or ".." in Path(folder).parts:
                raise InputError(
                    f"{path}: names {folder!r}, which is not a folder of the model; get the model "
                    "again from a source that you trust"
                )
            check_shards(name, folder)
            # Older versions of the library saved no options of Normalize.
            has_options = folder and kind != "Normalize"
            if has_options and find_file(name, f"{folder}/config.json") is None:
                raise InputError(
                    f"{path}: names {folder}/config.json, which is missing; copy all files of the "
                    "model"
                )
    return kinds


@contextmanager
def naming(where: str | Path, fault: str = "cannot be loaded") -> Iterator[None]:
    """Turn the errors of transformers and tokenizers about damaged files, which have various types,
    into an `InputError`."""
    try:
        yield
    except InputError:
        raise
    except BaseException as error:
        # The tokenizers library panics in Rust, which raises no `Exception`.
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise InputError(f"{where}: {fault}: {reason(error)}") from error


def reason(error: BaseException) -> str:
    """The message of an error in one line, with its type if the message is not informative."""
    if isinstance(error, StrictDataclassError) and error.__cause__ is not None:
        # The message of the cause has the field and its value, but not the names of functions.
        error = error.__cause__
    text = " ".join(str(error).split())
    if len(text) > MAX_SHOWN_CHARACTERS:
        text = f"{text[:MAX_SHOWN_CHARACTERS]} …"
    if text and isinstance(error, (OSError, TypeError, ValueError)):
        return text
    return f"{type(error).__name__}: {text}"


@contextmanager
def without_reports(lowest: int = logging.ERROR) -> Iterator[None]:
    """Context in which transformers logs no messages below the level `lowest`. The default leaves
    out its table of missing and unexpected tensors, because the caller reports these."""
    level = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity(lowest)
    try:
        yield
    finally:
        transformers.logging.set_verbosity(level)
