"""A saved model and its tokenizer, loaded from a directory or from the Hub, or refused with the file that is wrong.

transformers fills in what is missing from a checkpoint with random numbers, and says so in a warning at most. Here the
names and shapes of the stored tensors are compared with those of the model before any of them is read, and what was
read must be finite.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import tokenizers
import torch
import transformers
from transformers import (
    AutoConfig,
    AutoTokenizer,
    GenerationConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.configuration_utils import PreTrainedConfig

import hf_roformer_lite

from .errors import InputError
from .generation_fields import check_generation_fields
from .saved_files import Checkpoint, find_file, read_object, read_optional_object, reason, weight_files

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "vocab.txt", "special_tokens_map.json")
_TOKENIZER_JSON = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json")
_GENERATION_FILE = "generation_config.json"
_SHOWN = 3  # tensors in a message

# What would take memory or time without end before anything can be compared with the weights.
_MAX_LABELS, _MAX_LAYERS = 1_000_000, 10_000


def load_config(name: str | Path, config_class: type = AutoConfig) -> PreTrainedConfig:
    """The configuration of a saved model, by default of the class that its `model_type` names.

    Raises:
        InputError: when there is none, or a field is wrong.
    """
    path = find_file(name, "config.json")
    if path is None:
        raise InputError(f"no model can be loaded from {name}: it has no config.json")
    if find_file(name, "adapter_config.json") is not None:  # transformers would load the model that it names
        raise InputError(f"{name}: adapter_config.json makes it an adapter; merge it into its model and save that")
    fields = read_object(path)
    if fields.get("transformers_weights") is not None:
        raise InputError(f"{path}: transformers_weights names another file of weights; remove the field")
    for stack in (fields, fields.get("encoder"), fields.get("decoder")):
        _check_fields(stack if isinstance(stack, dict) else {}, path)
    with naming(path):
        options = {"trust_remote_code": False} if config_class is AutoConfig else {}
        config = config_class.from_pretrained(name, **options)
    return config


def _check_fields(fields: dict[str, Any], path: Path) -> None:
    """What the classes of configurations do not look at, but loading the model needs."""
    dtype = fields.get("dtype")
    floating = isinstance(dtype, str) and getattr(getattr(torch, dtype, None), "is_floating_point", False)
    if dtype is not None and not floating:
        raise InputError(f"{path}: dtype={dtype!r} must be a type of floating-point numbers, such as float32")
    for name, value in fields.items():
        largest = _MAX_LABELS if name == "num_labels" else _MAX_LAYERS if name.endswith("_layers") else None
        if largest and isinstance(value, int) and value > largest:
            raise InputError(f"{path}: {name}={value} is too large: at most {largest:,}")


def is_ours(part: Any) -> bool:
    """Whether a model, a class of models or a configuration is of this package."""
    part = part if isinstance(part, type) else type(part)
    return part.__module__.startswith(f"{hf_roformer_lite.__name__}.")


def model_class_of(config: PreTrainedConfig, name: str | Path) -> type[PreTrainedModel]:
    """The class that a model was saved from, of this package or of transformers.

    Raises:
        InputError: when the configuration names none, or one of another type of model.
    """
    architectures = config.architectures
    if not isinstance(architectures, list) or len(architectures) != 1 or not isinstance(architectures[0], str):
        raise InputError(f"{name}/config.json: architectures={architectures} must name the class of the model")
    architecture = architectures[0]
    found = getattr(hf_roformer_lite, architecture, None) or getattr(transformers, architecture, None)
    if not (isinstance(found, type) and issubclass(found, PreTrainedModel)):
        raise InputError(f"{name}/config.json: architectures={architectures}: there is no such model")
    if found.config_class is not type(config):
        raise InputError(
            f"{name}/config.json: architectures={architectures} and model_type={config.model_type!r} do not fit"
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
            f"{name}: {model_class.__name__} is no model of this package; `roformer-lite convert --from auto` makes "
            "one of it"
        )
    return load_complete_model(name, config, model_class)


def load_complete_model(
    name: str | Path, config: PreTrainedConfig, model_class: type[PreTrainedModel]
) -> PreTrainedModel:
    """A saved model of the class it was saved from: every tensor is there, of the right shape and finite.

    Raises:
        InputError: when a file is missing or wrong.
    """
    where = check_weights(name, config, model_class)
    check_generation_config(name, config)
    model, loaded = _from_pretrained(model_class, name, where)
    refuse_names(where, "lacks", loaded["missing_keys"])
    refuse_names(where, f"has what {model_class.__name__} does not have:", loaded["unexpected_keys"])
    refuse_names(where, "has in another shape", [key[0] for key in loaded["mismatched_keys"]])
    check_finite(model, where)
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
        The model, and the names of the tensors of a new head, which are random. Empty if the saved head is kept.

    Raises:
        InputError: when a file is missing or wrong; only the head may be missing, or be of another shape.
    """
    saved_config = load_config(name)
    where = str(name)
    if saved_config.architectures:
        where = check_weights(name, saved_config, model_class_of(saved_config, name))
    check_generation_config(name, saved_config)
    # AdamW's small steps are lost in half precision.
    model, loaded = _from_pretrained(auto_model, name, where, config=config, dtype=torch.float32)
    prefix = f"{model.base_model_prefix}."
    new = sorted({*loaded["missing_keys"], *(key[0] for key in loaded["mismatched_keys"])})
    # BERT's pooler lies in its stack, but belongs to the heads of some tasks, and is saved with these alone.
    unfit = [key for key in new if key.startswith(prefix) and not key.startswith(f"{prefix}pooler.")]
    # Those of this package were compared with the saved configuration already.
    if unfit and (is_ours(model) and saved_config.architectures or unfit[0] not in loaded["missing_keys"]):
        raise InputError(
            f"{where}: {unfit[0]} does not fit the configuration that is asked for; give only --config fields that "
            "change no shape, such as hidden_dropout=0.3"
        )
    refuse_names(where, "lacks", unfit)
    refuse_names(where, "has unknown", [key for key in loaded["unexpected_keys"] if key.startswith(prefix)])
    check_finite(model, where)
    return model, new


def _from_pretrained(
    model_class: Any, name: str | Path, where: str, **options: Any
) -> tuple[PreTrainedModel, dict[str, Any]]:
    """The model, and what transformers says about its tensors, which is for the caller to judge."""
    with naming(where), without_reports():
        return model_class.from_pretrained(
            name, ignore_mismatched_sizes=True, output_loading_info=True, trust_remote_code=False, **options
        )


def check_weights(name: str | Path, config: PreTrainedConfig, model_class: type[PreTrainedModel]) -> str:
    """Compare the names, shapes and types of the stored tensors with those of the model, without reading them.

    Models of other packages and quantised ones store other names than the model has, and transformers alone knows
    how to compare them.

    Returns:
        The path of the weights, for messages.

    Raises:
        InputError: when a file cannot be opened, or a tensor is missing, unknown or of another shape.
    """
    files = weight_files(name)
    where = str(files[0] if len(files) == 1 else files[0].parent)
    stored = Checkpoint(files)
    quantised = getattr(config, "quantization_config", None) is not None
    if quantised or not is_ours(model_class):
        return where
    for stack in (getattr(config, "encoder", config), getattr(config, "decoder", config)):
        if stack.num_hidden_layers > len(stored):
            raise InputError(
                f"{where}: {len(stored)} tensors are too few for num_hidden_layers={stack.num_hidden_layers}"
            )
    with naming(f"{name}/config.json"), torch.device("meta"):
        expected = model_class(config)
    tied: dict[int, list[str]] = {}  # names of one and the same tensor, of which the file has one or more
    for key, parameter in expected.named_parameters(remove_duplicate=False):
        tied.setdefault(id(parameter), []).append(key)
    shapes = expected.state_dict()
    absent = [keys[0] for keys in tied.values() if not any(key in stored for key in keys)]
    refuse_names(where, "lacks", absent)
    refuse_names(where, f"has what {model_class.__name__} does not have:", [k for k in stored if k not in shapes])
    for key in stored:
        if stored.shape(key) != tuple(shapes[key].shape):
            raise InputError(
                f"{where}: {key} has the shape {stored.shape(key)}, config.json asks for {tuple(shapes[key].shape)}"
            )
        if stored.is_floating_point(key) != shapes[key].is_floating_point():
            raise InputError(f"{where}: {key} does not hold floating-point numbers")
    return where


def check_generation_config(name: str | Path, config: PreTrainedConfig) -> None:
    """Refuse a generation_config.json with which no text can be generated; transformers ignores one it cannot read.

    Raises:
        InputError: naming the field.
    """
    path = find_file(name, _GENERATION_FILE)
    if path is None:
        return
    sizes = [getattr(stack, "vocab_size", 0) or 0 for stack in (config, config.get_text_config(decoder=True))]
    check_generation_fields(read_object(path), str(path), max(sizes))
    with naming(path):
        GenerationConfig.from_pretrained(name).validate()


def check_finite(model: PreTrainedModel, where: str) -> None:
    """Refuse a model with a number that is none.

    Raises:
        InputError: naming the tensors.
    """
    if getattr(model.config, "quantization_config", None) is not None:
        return
    tensors = [*model.named_parameters(), *model.named_buffers()]
    strange = [key for key, value in tensors if value.is_floating_point() and not value.isfinite().all()]
    refuse_names(where, "has NaN or infinite numbers in", strange)


def refuse_names(where: str, what: str, names: Any) -> None:
    """Raise `InputError` about tensors, unless there are none."""
    names = sorted(names)
    if names:
        more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
        raise InputError(f"{where}: {what} {', '.join(names[:_SHOWN])}{more}; the file is damaged, or another model's")


def load_tokenizer(name: str | Path, tokenizer_class: type = AutoTokenizer) -> PreTrainedTokenizerBase | None:
    """The tokenizer of a directory or of a repository on the Hub; None without one.

    Raises:
        InputError: when one of its files is wrong.
    """
    found = [path for file in TOKENIZER_FILES if (path := find_file(name, file, "tokenizer")) is not None]
    if not found:
        return None
    for file in (*_TOKENIZER_JSON, "config.json"):  # the Auto class looks at the last, too
        read_optional_object(name, file)
    options = {"trust_remote_code": False} if tokenizer_class is AutoTokenizer else {}
    with naming(lambda: _broken_tokenizer_file(found)):
        return tokenizer_class.from_pretrained(name, **options)


def try_tokenizer(tokenizer: PreTrainedTokenizerBase, name: str | Path) -> None:
    """Encode two texts: nothing looks at what tokenizer_config.json says about padding and lengths before that.

    Raises:
        InputError: when they cannot be encoded as a batch.
    """
    with naming(f"{name}/tokenizer_config.json"):
        if tokenizer.pad_token_id is None:
            raise InputError(f"{name}: the tokenizer has no pad_token; tokenizer_config.json must name one")
        tokenizer(["a", "b c"], padding=True, truncation=True, return_tensors="pt")


def _broken_tokenizer_file(files: list[Path]) -> Path:
    """The file because of which a tokenizer cannot be loaded: tokenizer.json where that cannot be parsed alone."""
    for path in files:
        if path.name == "tokenizer.json":
            try:
                tokenizers.Tokenizer.from_file(str(path))
            except BaseException as error:
                if not isinstance(error, Exception) and not _is_panic(error):
                    raise
                return path
    return next((path for path in files if path.name == "tokenizer_config.json"), files[0])


@contextmanager
def naming(where: str | Path | Callable[[], Path]) -> Iterator[None]:
    """Turn what transformers and tokenizers raise about a damaged file, which is of any type, into an `InputError`."""
    try:
        yield
    except InputError:
        raise
    except BaseException as error:
        if not isinstance(error, Exception) and not _is_panic(error):
            raise
        path = where() if callable(where) else where
        raise InputError(f"{path}: cannot be loaded: {reason(error)}") from error


def _is_panic(error: BaseException) -> bool:
    """Whether it is a failed assertion of the tokenizers library, whose Rust raises no `Exception`."""
    return type(error).__name__ == "PanicException"


@contextmanager
def without_reports() -> Iterator[None]:
    """Without transformers' table of missing and unexpected tensors, which the caller turns into a sentence."""
    level = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity_error()
    try:
        yield
    finally:
        transformers.logging.set_verbosity(level)
