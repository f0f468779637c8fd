"""A saved model and its tokenizer, opened from a directory or from the Hub, or refused with the
file that is wrong.

transformers refuses most damage itself, and `naming` turns what it raises into one sentence. Here
stand the checks of what it accepts in silence: tensors that are missing (it fills them with random
numbers), unknown, of another kind of numbers, or not finite, a tokenizer of another model, and
modules of sentence-transformers that are not there. No code of a saved model is run:
`trust_remote_code` is off, and files of torch are read with `weights_only`.
"""

import json
import os
from collections.abc import Iterator
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
# smallest values; transformers looks too late
_COUNTS = {"max_length": 2, "max_new_tokens": 1, "pad_token_id": 0}
_REAL_TYPES = ("F64", "F32", "F16", "BF16")  # as safetensors calls them
_SHOWN_TENSORS, _SHOWN_CHARACTERS = 3, 300  # in a message


def find_file(name: str | Path, file: str, wanted: str = "model") -> Path | None:
    """A file of the directory, or of the repository on the Hub, `name`; None where there is none.

    Raises:
        InputError: when `name` is neither, and no `wanted` can be loaded from it.
    """
    if os.path.isdir(name):
        path = Path(name) / file
        return path if path.is_file() else None
    check_model_name(name, f"no {wanted} can be loaded from {name}")
    try:
        found = cached_file(str(name), file, _raise_exceptions_for_missing_entries=False)
    except (OSError, ValueError) as error:
        raise InputError(f"no {wanted} can be loaded from {name}: {reason(error)}") from error
    return None if found is None else Path(found)


def read_object(path: Path) -> dict[str, Any]:
    """The object in a JSON file.

    Raises:
        InputError: when the file cannot be read, or holds anything else.
    """
    try:
        value = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path}: cannot be read: {reason(error)}") from error
    if not isinstance(value, dict):
        raise InputError(f"{path}: must hold a JSON object, not a {type(value).__name__}")
    return value


def read_optional_object(name: str | Path, file: str) -> dict[str, Any]:
    """As `read_object`; empty where the directory or repository has no such file."""
    path = find_file(name, file)
    return {} if path is None else read_object(path)


def load_config(name: str | Path) -> PreTrainedConfig:
    """The configuration of a saved model.

    Raises:
        InputError: when there is none, or a field is wrong.
    """
    path = find_file(name, "config.json")
    if path is None:
        raise InputError(f"no model can be loaded from {name}: it has no config.json")
    # transformers would load the model that it names
    if find_file(name, "adapter_config.json") is not None:
        raise InputError(
            f"{name}: adapter_config.json makes it an adapter; merge it into its model and save that"
        )
    read_object(path)  # what is no JSON is named by its file and line
    with naming(path):
        return AutoConfig.from_pretrained(name, trust_remote_code=False)


def is_ours(part: Any) -> bool:
    """Whether a model, a class of models or a configuration is of this package."""
    part = part if isinstance(part, type) else type(part)
    return part.__module__.startswith(f"{hf_roformer_lite.__name__}.")


def model_class_of(config: PreTrainedConfig, name: str | Path) -> type[PreTrainedModel]:
    """The class that a model was saved from, of this package or of transformers.

    Raises:
        InputError: when the configuration names none, or one of another type of model.
    """
    named = config.architectures
    architecture = (
        named[0]
        if isinstance(named, list) and len(named) == 1 and isinstance(named[0], str)
        else ""
    )
    found = getattr(hf_roformer_lite, architecture or "-", None) or getattr(
        transformers, architecture or "-", None
    )
    if not (
        isinstance(found, type)
        and issubclass(found, PreTrainedModel)
        and found.config_class is type(config)
    ):
        raise InputError(
            f"{name}/config.json: architectures={named} must name one class of models, of the type "
            f"{config.model_type!r}"
        )
    return found


def load_model(name: str | Path) -> PreTrainedModel:
    """The model of this package at `name`, with the head it was saved with.

    Raises:
        InputError: when it is another model, or a file is missing or wrong.
    """
    config = load_config(name)
    model_class = model_class_of(config, name)
    if not is_ours(model_class):
        raise InputError(
            f"{name}: {model_class.__name__} is of transformers; make it ours with `roformer-lite convert`"
        )
    return load_complete_model(name, config, model_class)


def load_complete_model(
    name: str | Path, config: PreTrainedConfig, model_class: type[PreTrainedModel]
) -> PreTrainedModel:
    """A saved model of the class it was saved from: every tensor is there, of the right shape and
    finite.

    Raises:
        InputError: when a file is missing or wrong.
    """
    load_generation_config(name)
    model, loaded = _from_pretrained(model_class, name)
    _refuse_tensors(name, "lacks", loaded["missing_keys"])
    _refuse_tensors(
        name, f"has what {model_class.__name__} does not have:", loaded["unexpected_keys"]
    )
    _refuse_tensors(name, "has in another shape", [key[0] for key in loaded["mismatched_keys"]])
    check_finite(model, name)
    return model


def load_with_new_head(
    auto_model: Any, name: str | Path, config: PreTrainedConfig
) -> tuple[PreTrainedModel, list[str]]:
    """A saved model with a head that may be new, for fine-tuning.

    Args:
        auto_model: The Auto class of the head.
        name: Directory, or repository on the Hub, of a model with this head, another or none.
        config: The configuration that the model shall have.

    Returns:
        The model, and the names of the tensors of a new head, which are random. Empty if the saved
        head is kept.

    Raises:
        InputError: when a file is missing or wrong; only the head may be missing, or be of another
            shape.
    """
    load_generation_config(name)
    # AdamW's small steps are lost in half precision.
    model, loaded = _from_pretrained(auto_model, name, config=config, dtype=torch.float32)
    prefix = f"{model.base_model_prefix}."

    def in_stack(key: str) -> bool:
        # BERT's pooler lies there, too, but belongs to the heads of some tasks, and is saved with
        # these alone.
        return key.startswith(prefix) and not key.startswith(f"{prefix}pooler.")

    unfit = {key[0] for key in loaded["mismatched_keys"]}
    new = sorted({*loaded["missing_keys"], *unfit})
    if wrong := [key for key in new if in_stack(key)]:
        what = "has another shape of" if wrong[0] in unfit else "lacks"
        raise InputError(
            f"{name}: {what} {wrong[0]}; the model is damaged, or does not fit the configuration that is asked for; "
            "give only --config fields that change no shape, such as hidden_dropout=0.3"
        )
    _refuse_tensors(
        name, "has unknown", [key for key in loaded["unexpected_keys"] if key.startswith(prefix)]
    )
    check_finite(model, name)
    return model, new


def _from_pretrained(
    model_class: Any, name: str | Path, **options: Any
) -> tuple[PreTrainedModel, dict[str, Any]]:
    """The model, and what transformers says about its tensors, which is for the caller to judge."""
    _check_types(name)
    with naming(name), without_reports():
        return model_class.from_pretrained(
            name,
            ignore_mismatched_sizes=True,
            output_loading_info=True,
            trust_remote_code=False,
            **options,
        )


def load_generation_config(name: str | Path) -> GenerationConfig:
    """The saved defaults of `generate`, or transformers' own. A model that is loaded ignores a file
    it cannot read.

    Raises:
        InputError: when transformers refuses the file.
    """
    path = find_file(name, "generation_config.json")
    if path is None:
        return GenerationConfig()
    read_object(path)
    with naming(path):
        generation_config = GenerationConfig.from_pretrained(name)
        generation_config.validate()
    for field, least in _COUNTS.items():
        value = getattr(generation_config, field)
        if value is not None and (type(value) is not int or value < least):
            raise InputError(
                f"{path}: {field}={value!r} must be a whole number of at least {least}"
            )
    return generation_config


def _check_types(name: str | Path) -> None:
    """Refuse weights that are no numbers of at least 16 bits: transformers casts them, and drops
    imaginary parts."""
    path, index = (
        find_file(name, "model.safetensors"),
        find_file(name, "model.safetensors.index.json"),
    )
    if (
        path is None
        and index is None
        or "quantization_config" in read_optional_object(name, "config.json")
    ):
        return
    with naming(index or path):
        shards = set(read_object(index)["weight_map"].values()) if path is None else {path.name}
    for shard in filter(None, (find_file(name, str(shard)) for shard in shards)):
        with naming(shard), safe_open(shard, "pt") as file:
            types = {key: file.get_slice(key).get_dtype() for key in file.keys()}
        whole = {key for key, kind in types.items() if kind.startswith(("I", "U", "BOOL"))}
        buffers = {key for key in whole if not key.endswith(("weight", "bias"))}
        strange = {key for key, kind in types.items() if kind not in _REAL_TYPES} - buffers
        _refuse_tensors(shard, f"has other numbers than {', '.join(_REAL_TYPES)} in", strange)


def check_finite(model: torch.nn.Module, name: str | Path) -> None:
    """Refuse weights that are no numbers.

    Raises:
        InputError: naming the tensors.
    """
    if getattr(getattr(model, "config", None), "quantization_config", None) is None:
        tensors = [*model.named_parameters(), *model.named_buffers()]
        strange = [
            key
            for key, value in tensors
            if value.is_floating_point() and not value.isfinite().all()
        ]
        _refuse_tensors(name, "has NaN or infinite numbers in", strange)


def _refuse_tensors(name: str | Path, what: str, keys: Any) -> None:
    keys = sorted(keys)
    if keys:
        more = f" and {len(keys) - _SHOWN_TENSORS} more" if len(keys) > _SHOWN_TENSORS else ""
        shown = ", ".join(keys[:_SHOWN_TENSORS])
        raise InputError(
            f"{name}: {what} {shown}{more}; the weights are damaged, or another model's"
        )


def load_tokenizer(
    name: str | Path, config: PreTrainedConfig | None = None
) -> PreTrainedTokenizerBase | None:
    """The tokenizer of a directory or of a repository on the Hub; None without one.

    Args:
        name: Of the directory or the repository.
        config: Of the model that shall read its tokens, if there is one.

    Raises:
        InputError: when one of its files is wrong, or it is the tokenizer of another model.
    """
    if all(find_file(name, file, "tokenizer") is None for file in TOKENIZER_FILES):
        return None
    try:
        with naming(f"{name}: the tokenizer"):
            tokenizer = AutoTokenizer.from_pretrained(name, trust_remote_code=False)
    except InputError:
        for file in TOKENIZER_FILES:
            if file.endswith(".json"):
                read_optional_object(name, file)  # says which file it is, where it is no JSON
        raise
    if config is not None:
        check_vocabulary(tokenizer, config, name)
    return tokenizer


def try_tokenizer(tokenizer: PreTrainedTokenizerBase, name: str | Path) -> None:
    """Encode two texts: nothing looks at what tokenizer_config.json says about padding and lengths
    before that.

    Raises:
        InputError: when they cannot be encoded as a batch.
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
    """Refuse a tokenizer that is not the model's: one with more tokens than it has embeddings,
    whose ids would end in an IndexError, and one that pads with another token, so that a token of
    texts would be taken for padding.

    Args:
        tokenizer: As saved.
        config: Of the model that reads its tokens.
        name: Of the model's directory, for the message.

    Raises:
        InputError: naming both numbers.
    """
    size, vocab_size = (
        1 + max(tokenizer.get_vocab().values(), default=-1),
        _stack(config, "vocab_size"),
    )
    if vocab_size and size > vocab_size:
        raise InputError(
            f"{name}: the tokenizer has {size} tokens, but config.json says vocab_size={vocab_size}; give the "
            "tokenizer that the model was trained with"
        )
    ours, theirs = _stack(config, "pad_token_id"), tokenizer.pad_token_id
    if vocab_size and ours is not None and 0 <= ours != theirs is not None:
        raise InputError(
            f"{name}: config.json says pad_token_id={ours}, which the tokenizer calls "
            f"{tokenizer.convert_ids_to_tokens(ours)!r}, and it pads with {theirs}, {tokenizer.pad_token!r}; give the "
            "tokenizer that the model was trained with, or write the right number into config.json"
        )


def _stack(config: PreTrainedConfig, field: str) -> int | None:
    """A field of a configuration, of the encoder where it is that of a pair."""
    return getattr(getattr(config, "encoder", config), field, None)


def most_positions(model: nn.Module) -> int | None:
    """How many tokens the model's tables of learned positions have room for; None without one."""
    rows = []
    for name, table in model.named_modules():
        if isinstance(table, nn.Embedding) and ("position" in name or name.endswith("wpe")):
            # RoBERTa counts from there
            before = 0 if table.padding_idx is None else table.padding_idx + 1
            # BART's first two are unused
            rows.append(table.num_embeddings - max(before, getattr(table, "offset", 0)))
    return min(rows, default=None)


def sentence_modules(name: str | Path) -> list[str]:
    """The kinds of the modules of a model of sentence-transformers, such as `Pooling`; empty where
    it is none.

    Raises:
        InputError: naming a file that is damaged, or missing: without modules.json the library
            would take modules of its own choice.
    """
    path = find_file(name, "modules.json")
    if path is None:
        task = read_optional_object(name, RESULTS_FILE).get("task")
        if task in ("embed", "rerank"):
            raise InputError(
                f"{name}: it has no modules.json, which says how its answers are made; copy all files"
            )
        return []
    with naming(path):
        modules = {
            str(module["path"]): str(module["type"])
            for module in json.loads(path.read_text("utf-8"))
        }
    if not modules:
        raise InputError(f"{path}: names no module")
    for folder, kind in modules.items():
        config = find_file(name, f"{folder}/config.json") if folder else None
        if config is not None:
            read_object(config)
        elif folder and not kind.endswith("Normalize"):  # which had no options in older versions
            raise InputError(
                f"{path}: names {folder}/config.json, which is not there; copy all files of the model"
            )
        weights = find_file(name, f"{folder}/model.safetensors") if folder else None
        if weights is not None:
            with naming(weights), safe_open(weights, "pt"):
                pass
    for file in ("config_sentence_transformers.json", "sentence_bert_config.json"):
        read_optional_object(name, file)
    return [kind.rpartition(".")[2] for kind in modules.values()]


@contextmanager
def naming(where: str | Path, fault: str = "cannot be loaded") -> Iterator[None]:
    """Turn what transformers and tokenizers raise about a damaged file, which is of any type, into
    an `InputError`."""
    try:
        yield
    except InputError:
        raise
    except BaseException as error:
        # A failed assertion of the tokenizers library, whose Rust raises no `Exception`, is one
        # here.
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise InputError(f"{where}: {fault}: {reason(error)}") from error


def reason(error: BaseException) -> str:
    """What an error says, as a part of a sentence: in one line, and not without its type where that
    says more."""
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    if isinstance(error, StrictDataclassError) and error.__cause__ is not None:
        # the field and its value, without the names of the functions that checked it
        error = error.__cause__
    text = " ".join(str(error).split())
    text = text if len(text) <= _SHOWN_CHARACTERS else text[:_SHOWN_CHARACTERS] + " …"
    return (
        text
        if isinstance(error, (OSError, TypeError, ValueError)) and text
        else f"{type(error).__name__}: {text}"
    )


@contextmanager
def without_reports() -> Iterator[None]:
    """Without transformers' table of missing and unexpected tensors, which the caller turns into a
    sentence."""
    level = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity_error()
    try:
        yield
    finally:
        transformers.logging.set_verbosity(level)
