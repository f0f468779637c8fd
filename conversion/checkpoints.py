"""Reads and writes checkpoint directories. A directory is written completely or not at all, and
code inside a checkpoint is never executed.

A file that is missing, is damaged or belongs to another model raises a `ConversionError` that names
it.
"""

import json
import os
import shutil
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from huggingface_hub import hf_hub_download
from huggingface_hub.constants import HF_HUB_OFFLINE
from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase

import hf_roformer_lite
from hf_roformer_lite.integrations import RERANKER_FIELDS
from hf_roformer_lite.model.configuration_roformer_lite import AUTO_CLASSES
from hf_roformer_lite.model.modeling_roformer_lite import RoFormerLiteModel

from .converter import Converter, check_numbers
from .registry import export, family_of, find_converter, fitting_family
from .weight_map import ConversionError, LazyTensors

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
STOCK_TOKENIZERS = {
    "RoFormerLiteTokenizer": "PreTrainedTokenizerFast",
    "RoFormerLiteJiebaTokenizer": "RoFormerTokenizer",
}
GENERATION_CONFIG = "generation_config.json"
# The list of modules of sentence-transformers, such as the pooling after the model.
MODULES = "modules.json"
POOLING_CONFIG = "1_Pooling/config.json"
# The names of its pooling modes, and those of our `classifier_pooling`.
POOLINGS = {"mean": "mean", "cls": "cls", "lasttoken": "last"}
# Older versions have an option for each mode, with this prefix.
POOLING_OPTION = "pooling_mode_"
SENTENCE_FILES = ("config_sentence_transformers.json", "sentence_bert_config.json")


def open_files(files: Sequence[Path]) -> LazyTensors:
    """The tensors of one or more files by name. Those of safetensors files are read when they are
    needed."""
    readers: dict[str, Callable[[], torch.Tensor]] = {}
    for path in files:
        with naming(path):
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


@contextmanager
def naming(path: str | Path) -> Iterator[None]:
    """Turn errors about a damaged file, for which libraries use many types, into a
    `ConversionError` that names the file."""
    try:
        yield
    except ConversionError as error:
        if str(error).startswith(str(path)):
            raise
        raise ConversionError(f"{path}: {error}") from error
    except Exception as error:
        cause = " ".join(str(error).split()) or type(error).__name__
        raise ConversionError(f"{path}: cannot be read: {cause}") from error


def find_file(checkpoint: str | Path, file: str) -> Path | None:
    """A file of a directory, or of a repository on the Hub; None if it does not exist."""
    if os.path.isdir(checkpoint):
        path = Path(checkpoint) / file
        if path.is_file():
            return path
        return None
    with naming(checkpoint):
        try:
            return Path(hf_hub_download(str(checkpoint), file))
        except LocalEntryNotFoundError:
            # Without a connection, the file may exist.
            if HF_HUB_OFFLINE:
                return None
            raise
        except EntryNotFoundError:
            return None


def open_checkpoint(checkpoint: str | Path) -> tuple[LazyTensors, dict[str, Any]]:
    """The tensors and the config of a directory, or of a repository on the Hub: `config.json` with
    safetensors or torch files, whole or in shards.

    Raises:
        ConversionError: if a file is missing or damaged, or if the index of shards names a file in
            another directory, which is then not opened.
    """
    config = _read_config(checkpoint)
    for name in WEIGHT_FILES:
        path = find_file(checkpoint, name)
        if path is not None:
            return open_files([path]), config
        index = find_file(checkpoint, f"{name}.index.json")
        if index is not None:
            return open_files(_find_shards(checkpoint, index)), config
    raise ConversionError(
        f"{checkpoint}: has no weights; looked for {', '.join(WEIGHT_FILES)}, and their shards"
    )


def _find_shards(checkpoint: str | Path, index: Path) -> list[Path]:
    """The files that the index of a checkpoint names."""
    with naming(index):
        shards = sorted({str(shard) for shard in _read_json(index)["weight_map"].values()})
    for shard in shards:
        if not is_file_name(shard):
            raise ConversionError(
                f"{index}: names {shard!r}, which is not a file in the same directory"
            )
    files = []
    for shard in shards:
        path = find_file(checkpoint, shard)
        if path is None:
            raise ConversionError(f"{index}: names {shard}, which does not exist")
        files.append(path)
    return files


def is_file_name(name: str) -> bool:
    """Whether `name` is a plain file name, and not a path to another directory on any system."""
    return name not in ("", ".", "..") and not {"/", "\\", ":"} & set(name)


def _read_config(checkpoint: str | Path) -> dict[str, Any]:
    path = find_file(checkpoint, "config.json")
    if path is None:
        raise ConversionError(
            f"{checkpoint}: has no config.json; give a directory of a model, or a name on the Hub"
        )
    config = _read_json(path)
    if not isinstance(config, dict):
        raise ConversionError(f"{path}: must hold a JSON object, not a {type(config).__name__}")
    model_type = config.get("model_type")
    architectures = config.get("architectures") or []
    if not isinstance(model_type, str | None) or not isinstance(architectures, list):
        raise ConversionError(f"{path}: {model_type=} must be text, and {architectures=} a list")
    return config


def _read_json(path: Path) -> Any:
    with naming(path):
        return json.loads(path.read_text("utf-8"))


@contextmanager
def whole_directory(out: str | Path) -> Iterator[Path]:
    """A temporary directory to fill inside the `with` block. At the end it is renamed to `out`;
    after an error it is deleted. If `out` exists, it must be an empty directory."""
    try:
        place = Path(out).resolve()
        if place.exists() and (not place.is_dir() or any(place.iterdir())):
            raise ConversionError(f"{out} exists already; choose a new directory")
        place.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(prefix=f".{place.name}.unfinished-", dir=place.parent) as folder:
            unfinished = Path(folder, "whole")
            unfinished.mkdir()
            yield unfinished
            unfinished.replace(place)
    except (OSError, SafetensorError) as error:
        cause = getattr(error, "strerror", None) or error
        raise ConversionError(f"{out} cannot be written: {cause}") from error


def convert_checkpoint(name: str, path: str | Path, out: str | Path) -> PreTrainedModel:
    """Convert the checkpoint `path` of the source `name` (`auto`: by its config), with its
    tokenizer if it has one, to the directory `out`, which appears only when it is complete.

    Raises:
        ConversionError: if names, shapes or fields do not fit, or if `out` exists and is not empty.
    """
    with whole_directory(out) as unfinished:
        model, converter = load_checkpoint(path, name)
        tokenizer = load_tokenizer(path, converter)
        pooling = sentence_pooling(path)
        if pooling is not None and isinstance(model, RoFormerLiteModel):
            model.config.classifier_pooling = pooling
        model.save_pretrained(unfinished)
        copy_sentence_modules(path, unfinished)
        if tokenizer is not None:
            tokenizer.save_pretrained(unfinished)
    return model


def load_checkpoint(path: str | Path, name: str = "auto") -> tuple[PreTrainedModel, Converter]:
    """The model that a checkpoint of the source `name` (`auto`: by its config) becomes, and the
    converter of this source; `path` is a directory, or a repository on the Hub."""
    state_dict, config = open_checkpoint(path)
    if name == "auto":
        name = source_of(path, config)
    converter = find_converter(name)
    with naming(path):
        model = converter.convert(state_dict, config, copy=False)
    for field in RERANKER_FIELDS & config.keys():
        setattr(model.config, field, config[field])
    _take_generation_config(model, path)
    return model, converter


def load_tokenizer(path: str | Path, converter: Converter) -> PreTrainedTokenizerBase | None:
    """The tokenizer of a checkpoint; None if it has none."""
    if not any(find_file(path, file) for file in TOKENIZER_FILES):
        return None
    tokenizer_class = converter.tokenizer_class(_declared_tokenizer(path))
    with naming(path):
        return tokenizer_class.from_pretrained(path, trust_remote_code=False)


def _declared_tokenizer(path: str | Path) -> str | None:
    """The class of a checkpoint's tokenizer that tokenizer_config.json or config.json names."""
    for file in (TOKENIZER_CONFIG, "config.json"):
        found = find_file(path, file)
        if found is None:
            continue
        with naming(found):
            declared = dict(_read_json(found)).get("tokenizer_class")
        if declared is not None:
            return str(declared)
    return None


def source_of(path: str | Path, config: dict[str, Any]) -> str:
    """The source of the checkpoint at `path`, according to its config."""
    try:
        return family_of(config)
    except ConversionError as error:
        raise ConversionError(f"{path}: {error}") from error


def is_ours(path: str | Path) -> bool:
    """Whether a checkpoint is a model of this package, according to its config."""
    return _read_config(path).get("model_type") in AUTO_CLASSES


class ConvertedModel:
    """Opens a checkpoint of another system as a model of this package, without a copy on disk, like
    transformers' Auto classes: `ConvertedModel.from_pretrained("nomic-ai/nomic-embed-text-v1.5")`.
    """

    @classmethod
    def from_pretrained(
        cls, name: str | Path, source: str = "auto", dtype: torch.dtype | None = None
    ) -> PreTrainedModel:
        """A model of this package with the weights of a checkpoint, in evaluation mode.

        Args:
            name: A directory, or a repository on the Hub.
            source: The system that the checkpoint comes from. Default: the family that its
                config.json names.
            dtype: The dtype of the weights. Default: the checkpoint's.
        """
        if is_ours(name):
            raise ConversionError(
                f"{name} is a model of this package already; open it with a class of this package"
            )
        return load_checkpoint(name, source)[0].to(dtype=dtype)


def export_checkpoint(name: str, path: str | Path, out: str | Path) -> str:
    """Write the model of this package at `path` as a checkpoint of the source `name` (`auto`: the
    family that fits) to the directory `out`, and return the name of the source.

    Raises:
        ConversionError: if the source has no equivalent of the model, or if `out` exists and is not
            empty.
    """
    with whole_directory(out) as unfinished:
        model = load_model(path)
        with naming(path):
            if name == "auto":
                name = fitting_family(model)
            state_dict, config = export(name, model)
        fields = model.config.to_dict()
        config |= {field: fields[field] for field in RERANKER_FIELDS & fields.keys()}
        save_file(state_dict, unfinished / "model.safetensors", metadata={"format": "pt"})
        (unfinished / "config.json").write_text(json.dumps(config, indent=2) + "\n", "utf-8")
        _copy_files(path, (*TOKENIZER_FILES, "chat_template.jinja"), unfinished)
        if model.can_generate():
            model.generation_config.save_pretrained(unfinished)
        copy_sentence_modules(path, unfinished)
        _name_stock_tokenizer(path, unfinished)
    return name


def _copy_files(path: str | Path, files: Iterable[str], out: Path) -> None:
    """Copy those of the `files` that a checkpoint has."""
    for file in files:
        found = find_file(path, file)
        if found is not None:
            shutil.copy(found, out / file)


def load_model(path: str | Path) -> PreTrainedModel:
    """The model of this package at `path`, in the class from which it was saved.

    Raises:
        ConversionError: if a tensor is missing (`from_pretrained` would fill it with random
            numbers), is unknown, has another shape or is not finite.
    """
    state_dict, fields = open_checkpoint(path)
    architecture = (fields.get("architectures") or [None])[0]
    if not is_ours(path) or architecture not in hf_roformer_lite.__all__:
        raise ConversionError(
            f"{path}: {architecture} is no model of this package; `roformer-lite convert` makes one"
        )
    with naming(path):
        check_numbers(state_dict)
        model_class = getattr(hf_roformer_lite, architecture)
        config = model_class.config_class.from_pretrained(path)
        model, report = model_class.from_pretrained(
            None,
            config=config,
            state_dict=dict(state_dict),
            output_loading_info=True,
            ignore_mismatched_sizes=True,
        )
    wrong = {
        "lacks": report["missing_keys"],
        "has unknown": report["unexpected_keys"],
        "has in another shape": [key[0] for key in report["mismatched_keys"]],
    }
    for fault, names in wrong.items():
        if names:
            listed = ", ".join(sorted(names)[:3])
            raise ConversionError(
                f"{path}: {fault} {listed}; a file is damaged or belongs to another model"
            )
    _take_generation_config(model, path)
    return model.eval()


def _take_generation_config(model: PreTrainedModel, path: str | Path) -> None:
    """Give `model` the generation settings of the checkpoint `path`."""
    if not model.can_generate():
        return
    # Older checkpoints have these settings in config.json.
    file = find_file(path, GENERATION_CONFIG) or find_file(path, "config.json")
    if file is None:
        return
    with naming(file):
        fields = {name: value for name, value in _read_json(file).items() if value is not None}
        # Unlike a configuration that is updated, this one can be saved whatever its values.
        model.generation_config = GenerationConfig.from_model_config(
            {**model.config.to_dict(), **fields}
        )


def _name_stock_tokenizer(path: str | Path, out: Path) -> None:
    """Write the name of the stock class that reads the same files, so that the tokenizer opens
    without this package."""
    found = find_file(path, TOKENIZER_CONFIG)
    if found is None:
        return
    with naming(found):
        config = {"tokenizer_class": None, **_read_json(found)}
        # The code of a bundle is not copied.
        config.pop("auto_map", None)
        declared = config["tokenizer_class"]
        config["tokenizer_class"] = STOCK_TOKENIZERS.get(declared, declared)
    written = json.dumps(config, indent=2, ensure_ascii=False)
    (out / found.name).write_text(f"{written}\n", "utf-8")


def sentence_pooling(path: str | Path) -> str | None:
    """The value of `classifier_pooling` that corresponds to the pooling of a sentence-transformers
    checkpoint; None for other checkpoints and other pooling modes."""
    file = find_file(path, POOLING_CONFIG)
    if file is None:
        return None
    with naming(file):
        options = dict(_read_json(file))
    if "pooling_mode" in options:
        modes = [str(options["pooling_mode"])]
    else:
        modes = [
            name.removeprefix(POOLING_OPTION)
            for name, is_on in options.items()
            if name.startswith(POOLING_OPTION) and is_on is True
        ]
    if len(modes) != 1:
        return None
    return POOLINGS.get(modes[0].removesuffix("_token").removesuffix("_tokens"))


def copy_sentence_modules(path: str | Path, out: Path) -> None:
    """Copy the files that a sentence-transformers directory has in addition to the model: its
    modules, prompts and lengths.

    Raises:
        ConversionError: for a module that is the checkpoint's own code, or that is outside the
            checkpoint.
    """
    modules = find_file(path, MODULES)
    if modules is None:
        return
    with naming(modules):
        kinds = {str(entry["path"]): str(entry["type"]) for entry in _read_json(modules)}
    files = [MODULES, *SENTENCE_FILES]
    for folder, kind in kinds.items():
        if not kind.startswith("sentence_transformers."):
            raise ConversionError(
                f"{modules}: type={kind!r} is the checkpoint's own code, which is not carried over"
            )
        # The model itself is not in a subfolder.
        if folder == "":
            continue
        if not is_file_name(folder):
            raise ConversionError(
                f"{modules}: path={folder!r} must be a folder in the same directory"
            )
        # A module without options has no file.
        (out / folder).mkdir(exist_ok=True)
        for name in ("config.json", "model.safetensors", "pytorch_model.bin"):
            files.append(f"{folder}/{name}")
    _copy_files(path, files, out)
