"""The files of a checkpoint: a directory, or a repository on the Hub.

The files of a repository are downloaded to the cache, and are then read like those of any other
directory. Code in a checkpoint is never executed: files of torch are read with `weights_only`, and
an index of shards may only name files in its own directory.

A file that is missing, is damaged or belongs to another model raises a `ConversionError` that names
it. `naming` turns it into the error of the caller.
"""

import json
import os
import re
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from huggingface_hub import snapshot_download
from huggingface_hub.errors import HFValidationError, StrictDataclassError
from huggingface_hub.utils import validate_repo_id
from safetensors import safe_open
from transformers import AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging

WEIGHT_TYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
# The first of these that a checkpoint has is read.
WEIGHT_FILES = ("model.safetensors", "pytorch_model.bin", "model.pt", "model.pth")
TOKENIZER_CONFIG = "tokenizer_config.json"
TOKENIZER_FILES = (
    "tokenizer.json",
    TOKENIZER_CONFIG,
    "vocab.txt",
    "special_tokens_map.json",
    "vocab.json",
    "merges.txt",
    "spiece.model",
    "sentencepiece.bpe.model",
    "source.spm",
    "target.spm",
)
# Files that a tokenizer reads together with others, or only if further packages are installed.
BPE_CODES = "bpe.codes"
OTHER_TOKENIZER_FILES = ("tokenizer.model", "target_vocab.json", BPE_CODES)
# The default chat template, and those with other names.
CHAT_TEMPLATES = ("chat_template.jinja", "additional_chat_templates/*.jinja")
# All files of a repository that may be needed besides the weights.
SMALL_FILES = ("*.json", "*.txt", "*.model", "*.spm", "*.jinja", BPE_CODES)
# The names under which transformers also saves the padding and truncation of tokenizer.json.
LENGTH_ARGUMENTS = ("max_length", "pad_to_multiple_of", "stride", "truncation_strategy")
# The published weights of BERT, RoBERTa and ALBERT contain these parts of their pretraining, which
# the class that the configuration names does not have.
OF_PRETRAINING = re.compile(r"\b(pooler|seq_relationship|sop_classifier)\.")
# The list of modules of sentence-transformers, such as the pooling after the model.
MODULES = "modules.json"
MAX_LISTED_TENSORS = 4
MAX_SHOWN_CHARACTERS = 600


class ConversionError(ValueError):
    """A checkpoint or a model cannot be read or converted; the message names the cause."""


class LazyTensors(Mapping[str, torch.Tensor]):
    """Tensors by name. Each is read by a function when it is needed."""

    def __init__(self, readers: Mapping[str, Callable[[], torch.Tensor]]):
        self._readers = readers

    def __getitem__(self, name: str) -> torch.Tensor:
        return self._readers[name]()

    def __iter__(self) -> Iterator[str]:
        return iter(self._readers)

    def __len__(self) -> int:
        return len(self._readers)


@contextmanager
def without_warnings() -> Iterator[None]:
    """Context in which transformers only logs errors. This leaves out its table of missing and
    unexpected tensors, for example, because the caller reports these."""
    level = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(level)


@contextmanager
def naming(
    where: str | Path,
    fault: str = "cannot be loaded",
    kind: type[ValueError] = ConversionError,
) -> Iterator[None]:
    """Turn errors about a damaged file, for which libraries use many types, into an error that
    names the file.

    Args:
        where: The file or the directory.
        fault: What is wrong with it, if the error is one of a library.
        kind: The type of the new error. An error of this type, or a `ConversionError`, keeps its
            message, which `where` precedes if it is not part of it.
    """
    try:
        yield
    except (kind, ConversionError) as error:
        message = str(error)
        if str(where) not in message:
            message = f"{where}: {message}"
        raise kind(message) from error
    # Any type of error may come from a damaged file. The tokenizers library even panics in Rust,
    # which raises no `Exception`, and the class of a panic cannot be imported.
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise kind(f"{where}: {fault}: {reason(error)}") from error


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


def local_directory(name: str | Path, weights: Sequence[str] = ()) -> Path:
    """The directory of a checkpoint. Of a repository on the Hub, it contains all small files, and
    those of the files `weights` that exist.

    Raises:
        ConversionError: if the repository does not exist, may not be read, or is neither reachable
            nor in the cache. A name that can only be a path is never looked up.
    """
    if os.path.isdir(name):
        return Path(name)
    if not is_hub_name(name):
        raise ConversionError(f"{name}: there is no such directory")
    fault = "there is no such directory here, and the Hub cannot be reached or has no such model"
    with naming(name, fault):
        return _snapshot(str(name), tuple(weights))


def is_hub_name(name: str | Path) -> bool:
    """Whether a name can belong to a repository on the Hub: it is `name` or `owner/name`, and there
    is no such path and no directory `owner` here."""
    name = str(name)
    try:
        validate_repo_id(name)
    except HFValidationError:
        return False
    parent = os.path.dirname(name)
    return not os.path.exists(name) and not (parent and os.path.isdir(parent))


@cache
def _snapshot(repository: str, weights: tuple[str, ...]) -> Path:
    return Path(snapshot_download(repository, allow_patterns=[*SMALL_FILES, *weights]))


def read_json(path: Path) -> Any:
    """The content of a JSON file."""
    with naming(path, "cannot be read"):
        return json.loads(path.read_text("utf-8"))


def read_object(path: Path) -> dict[str, Any]:
    """The object in a JSON file."""
    value = read_json(path)
    if not isinstance(value, dict):
        raise ConversionError(f"{path}: must hold a JSON object, not a {type(value).__name__}")
    return value


@contextmanager
def whole_directory(
    target: Path,
    may_replace: Callable[[Path], bool] | None = None,
    kind: type[ValueError] = ConversionError,
) -> Iterator[Path]:
    """A new directory to be filled inside the `with`. At the end it takes the place of `target`.

    If anything fails, the new directory is removed, and `target` stays as it was. Unless `target`
    may be replaced, files that others have written there in the meantime are kept.

    Args:
        target: The directory. It does not exist yet, is empty, or may be replaced.
        may_replace: Whether a `target` that is not empty may be replaced, asked at the end. None:
            it may not.
        kind: The type of the error.

    Raises:
        kind: if `target` cannot be replaced, for example because something else was written there
            in the meantime.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=f".{target.name}.unfinished-", dir=target.parent) as scratch:
        # A temporary directory is private; a directory inside it has the usual permissions.
        finished = Path(scratch) / "finished"
        finished.mkdir()
        yield finished
        replaced = Path(scratch) / "replaced"
        try:
            if may_replace is not None and may_replace(target):
                target.rename(replaced)
            # This replaces an empty directory, and fails if there is anything else.
            finished.rename(target)
        except OSError as error:
            raise kind(
                f"{target} cannot be written ({error.strerror}); if something else was written "
                "there in the meantime, move it, and run the same command again"
            ) from error
        finally:
            # An interruption between the two renames must not lose the old directory.
            if replaced.exists() and not target.exists():
                replaced.rename(target)


def has_tokenizer(directory: Path) -> bool:
    """Whether a directory contains a file of a tokenizer."""
    return any((directory / file).is_file() for file in TOKENIZER_FILES)


def open_tokenizer(
    directory: Path, tokenizer_class: Any = AutoTokenizer
) -> PreTrainedTokenizerBase:
    """The tokenizer in a directory, without the padding and truncation of tokenizer.json.

    Args:
        directory: The directory.
        tokenizer_class: The class that opens it.
    """
    tokenizer = tokenizer_class.from_pretrained(directory, trust_remote_code=False)
    drop_lengths(tokenizer)
    return tokenizer


def drop_lengths(tokenizer: PreTrainedTokenizerBase) -> None:
    """Remove the padding and truncation that a tokenizer would write to tokenizer.json.

    They are those of its last call, or of the file that it was opened from. Some checkpoints pad
    every text to 128 tokens there. transformers overrides this in each call, but other programs
    that read the file pad and truncate accordingly.
    """
    if tokenizer.is_fast:
        tokenizer.backend_tokenizer.no_padding()
        tokenizer.backend_tokenizer.no_truncation()
    for name in LENGTH_ARGUMENTS:
        tokenizer.init_kwargs.pop(name, None)


def weight_files(name: str | Path) -> list[Path]:
    """The files with the weights of a checkpoint: one, or several shards; empty if it has none.

    Raises:
        ConversionError: if the index of the shards names a file that does not exist or is in
            another directory.
    """
    for file in WEIGHT_FILES:
        path = local_directory(name, [file]) / file
        if path.is_file():
            return [path]
        index = path.with_name(f"{file}.index.json")
        if not index.is_file():
            continue
        shards = _shards_of(index)
        directory = local_directory(name, shards)
        for shard in shards:
            if not (directory / shard).is_file():
                raise ConversionError(f"{index}: names {shard}, which does not exist")
        return [directory / shard for shard in shards]
    return []


def check_shards(directory: Path) -> None:
    """Reject an index of weights that names files outside its directory, which transformers would
    read, and a config that names an index of its own.

    Raises:
        ConversionError: with the file that names another one.
    """
    config = directory / "config.json"
    if config.is_file() and read_object(config).get("transformers_weights"):
        raise ConversionError(
            f"{config}: names the file of the weights in transformers_weights; remove that field, "
            "and name the file model.safetensors"
        )
    for file in WEIGHT_FILES:
        index = directory / f"{file}.index.json"
        if index.is_file():
            _shards_of(index)


def _shards_of(index: Path) -> list[str]:
    """The files that the index of a checkpoint names."""
    with naming(index, "cannot be read"):
        shards = sorted({str(shard) for shard in read_json(index)["weight_map"].values()})
    for shard in shards:
        if not is_file_name(shard):
            raise ConversionError(
                f"{index}: names {shard!r}, which is not a file in the same directory; get the "
                "model again from a source that you trust"
            )
    return shards


def sentence_modules(name: str | Path) -> list[tuple[str, str]]:
    """The folder and the type of each module of a model of sentence-transformers; empty if it is
    another model. The folder of the model itself is empty.

    Raises:
        ConversionError: if a folder is not one of the checkpoint, or if its configuration is
            missing. The library would use default options instead.
    """
    directory = local_directory(name)
    path = directory / MODULES
    if not path.is_file():
        return []
    with naming(path):
        modules = [(str(module["path"]), str(module["type"])) for module in read_json(path)]
    for folder, kind in modules:
        if folder and not is_file_name(folder):
            raise ConversionError(
                f"{path}: names {folder!r}, which is not a folder of the model; get the model "
                "again from a source that you trust"
            )
        check_shards(directory / folder)
        # Older versions of the library saved no options of Normalize.
        has_options = folder and not kind.endswith(".Normalize")
        if has_options and not (directory / folder / "config.json").is_file():
            raise ConversionError(
                f"{path}: names {folder}/config.json, which is missing; copy all files of the model"
            )
    return modules


def is_file_name(name: str) -> bool:
    """Whether `name` is a plain file name, and not a path to another directory on any system."""
    return name not in ("", ".", "..") and not {"/", "\\", ":"} & set(name)


def open_files(files: Sequence[Path]) -> LazyTensors:
    """The tensors of one or more files by name. Those of safetensors files are read when they are
    needed."""
    readers: dict[str, Callable[[], torch.Tensor]] = {}
    for path in files:
        with naming(path, "cannot be read"):
            if path.suffix == ".safetensors":
                opened = safe_open(path, framework="pt")
                readers |= {name: partial(opened.get_tensor, name) for name in opened.keys()}
                continue
            # Files written before torch 1.6 are not zip archives and cannot be mapped into memory.
            is_zip = zipfile.is_zipfile(path)
            loaded = torch.load(path, map_location="cpu", weights_only=True, mmap=is_zip)
        values = loaded.values() if isinstance(loaded, dict) else [None]
        if not all(isinstance(value, torch.Tensor) for value in values):
            raise ConversionError(
                f"{path}: holds something other than a dictionary of names and tensors"
            )
        readers |= {name: partial(loaded.get, name) for name in loaded}
    return LazyTensors(readers)


def check_numbers(tensors: Mapping[str, torch.Tensor]) -> None:
    """Reject weights that are NaN or infinite, and all dtypes except floating point of 16 bits or
    more: converting other dtypes would silently lose precision. Only buffers, such as positions,
    may be integers.

    Raises:
        ConversionError: naming the tensor.
    """
    for name, tensor in tensors.items():
        fault = None
        is_whole = not (tensor.is_floating_point() or tensor.is_complex())
        if is_whole and not name.endswith(("weight", "bias")):
            continue
        if tensor.dtype not in WEIGHT_TYPES:
            fault = f"{name} has the type {tensor.dtype}"
        # The minimum and maximum are NaN or infinite if any number is, and need no memory.
        elif tensor.numel() and not torch.stack(torch.aminmax(tensor)).isfinite().all():
            fault = f"there are NaN or infinite numbers in {name}"
        if fault is not None:
            raise ConversionError(f"{fault}; save the checkpoint in float32 again")


def load_pretrained(
    model_class: Any, name: str | Path, config: Any, **options: Any
) -> tuple[PreTrainedModel, dict[str, Any]]:
    """Load a stock model or a RoFormerLite model, and check its files and numbers.

    Args:
        model_class: The class of the model, or an auto class.
        name: The directory or repository of the checkpoint.
        config: The configuration of the resulting model.
        options: Further arguments of `from_pretrained`.

    Returns:
        The model, and transformers' report of its tensors, without those `OF_PRETRAINING`. The
        caller checks it, because missing tensors have random numbers.

    Raises:
        ConversionError: if a file is damaged, if a number is not finite, or for a model that
            `roformer-lite export` wrote.
    """
    directory = local_directory(name)
    check_shards(directory)
    files = weight_files(name)
    if not files and any(directory.glob("**/export.json")):
        raise ConversionError("it is an exported model; pass the one it was made from")
    tensors = open_files(files)
    if getattr(config, "quantization_config", None) is None:
        check_numbers(tensors)
    model, report = model_class.from_pretrained(
        directory,
        config=config,
        ignore_mismatched_sizes=True,
        output_loading_info=True,
        trust_remote_code=False,
        **options,
    )
    unexpected = report["unexpected_keys"]
    report["unexpected_keys"] = [key for key in unexpected if not OF_PRETRAINING.search(key)]
    return model, report


def check_report(report: Mapping[str, Any]) -> None:
    """Reject a model whose file does not contain exactly the tensors of its class.

    Args:
        report: The report that `load_pretrained` returns.

    Raises:
        ConversionError: with the names of the tensors.
    """
    refuse_tensors("lacks", report["missing_keys"])
    refuse_tensors("has unknown", report["unexpected_keys"])
    refuse_tensors("has in another shape", [key[0] for key in report["mismatched_keys"]])


def refuse_tensors(fault: str, names: Iterable[str]) -> None:
    """Raise a `ConversionError` if there are `names` of tensors with a fault."""
    names = sorted(names)
    if not names:
        return
    raise ConversionError(f"{fault} {listed(names)}; a file is damaged or belongs to another model")


def listed(names: Sequence[str]) -> str:
    """The first names of tensors, and the number of the others."""
    first = ", ".join(names[:MAX_LISTED_TENSORS])
    if len(names) > MAX_LISTED_TENSORS:
        first += f" and {len(names) - MAX_LISTED_TENSORS} more"
    return first
