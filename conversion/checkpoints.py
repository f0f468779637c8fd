"""Checkpoint directories, read and written: whole or not at all. Code inside a checkpoint is never
executed.

All that is wrong with one, a file that is missing, damaged or of another model, is a
`ConversionError` that names it.
"""

import json
import os
import shutil
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from huggingface_hub import hf_hub_download
from huggingface_hub.errors import EntryNotFoundError
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase

import hf_roformer_lite
from hf_roformer_lite.model.configuration_roformer_lite import AUTO_CLASSES
from hf_roformer_lite.model.modeling_roformer_lite import RoFormerLiteModel

from .converter import Converter, check_numbers
from .registry import export, family_of, find_converter, fitting_family
from .weight_map import ConversionError, LazyTensors

# the first is read
WEIGHT_FILES = ("model.safetensors", "pytorch_model.bin", "model.pt", "model.pth")
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "vocab.txt",
    "special_tokens_map.json",
)
TOKENIZER_FILES += (
    "vocab.json",
    "merges.txt",
    "spiece.model",
    "sentencepiece.bpe.model",
    "source.spm",
    "target.spm",
)
_STOCK_TOKENIZERS = {
    "RoFormerLiteTokenizer": "PreTrainedTokenizerFast",
    "RoFormerLiteJiebaTokenizer": "RoFormerTokenizer",
}
_GENERATION = "generation_config.json"
_MODULES = "modules.json"  # of sentence-transformers: what follows the model, such as pooling
# its names, our `classifier_pooling`
_POOLINGS = {"mean": "mean", "cls": "cls", "lasttoken": "last"}
_OF_SENTENCES = ("config_sentence_transformers.json", "sentence_bert_config.json")


def open_files(files: Sequence[Path]) -> LazyTensors:
    """The tensors of one or several files by name. Those of safetensors are read when they are
    needed."""
    readers: dict[str, Callable[[], torch.Tensor]] = {}
    for path in files:
        with naming(path):
            if path.suffix == ".safetensors":
                opened = safe_open(path, framework="pt")
                readers |= {name: partial(opened.get_tensor, name) for name in opened.keys()}
                continue
            # Files written before torch 1.6 are not zip archives and cannot be mapped into memory.
            loaded = torch.load(
                path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path)
            )
        if not isinstance(loaded, dict) or not all(
            isinstance(value, torch.Tensor) for value in loaded.values()
        ):
            raise ConversionError(
                f"{path}: holds something other than a dictionary of names and tensors"
            )
        readers |= {name: partial(loaded.get, name) for name in loaded}
    return LazyTensors(readers)


@contextmanager
def naming(path: str | Path) -> Iterator[None]:
    """Turn what the libraries below raise about a damaged file, which is of any type, into a
    `ConversionError`."""
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
    """A file of a directory, or of a repository on the Hub; None where there is none."""
    if os.path.isdir(checkpoint):
        path = Path(checkpoint) / file
        return path if path.is_file() else None
    with naming(checkpoint):
        try:
            return Path(hf_hub_download(str(checkpoint), file))
        except EntryNotFoundError:
            return None


def open_checkpoint(checkpoint: str | Path) -> tuple[LazyTensors, dict[str, Any]]:
    """Tensors and config of a directory, or of a repository on the Hub: `config.json` with
    safetensors or torch files, whole or in shards."""
    config = _read_config(checkpoint)
    for name in WEIGHT_FILES:
        if (path := find_file(checkpoint, name)) is not None:
            return open_files([path]), config
        if (index := find_file(checkpoint, f"{name}.index.json")) is not None:
            with naming(index):
                shards = sorted(set(_read_json(index)["weight_map"].values()))
            if any(Path(shard).name != shard for shard in shards):
                raise ConversionError(f"{index}: names files outside its directory")
            files = [find_file(checkpoint, shard) for shard in shards]
            if None in files:
                raise ConversionError(
                    f"{index}: names {shards[files.index(None)]}, which is not there"
                )
            return open_files(files), config
    raise ConversionError(
        f"{checkpoint}: has no weights; looked for {', '.join(WEIGHT_FILES)}, and their shards"
    )


def _read_config(checkpoint: str | Path) -> dict[str, Any]:
    path = find_file(checkpoint, "config.json")
    if path is None:
        raise ConversionError(
            f"{checkpoint}: has no config.json; give a directory of a model, or a name on the Hub"
        )
    config = _read_json(path)
    if not isinstance(config, dict):
        raise ConversionError(f"{path}: must hold a JSON object, not a {type(config).__name__}")
    model_type, architectures = config.get("model_type"), config.get("architectures") or []
    if not isinstance(model_type, str | None) or not isinstance(architectures, list):
        raise ConversionError(f"{path}: {model_type=} must be text, and {architectures=} a list")
    return config


def _read_json(path: Path) -> Any:
    with naming(path):
        return json.loads(path.read_text("utf-8"))


@contextmanager
def whole_directory(out: str | Path) -> Iterator[Path]:
    """A directory to be filled inside the `with`, which then gets the name `out`; after an error
    nothing is there. An `out` that exists must be an empty directory."""
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
        raise ConversionError(
            f"{out} cannot be written: {getattr(error, 'strerror', None) or error}"
        ) from error


def convert_checkpoint(name: str, path: str | Path, out: str | Path) -> PreTrainedModel:
    """Convert the checkpoint `path` of the source `name` (`auto`: by its config) into the directory
    `out`, with its tokenizer if it has one. Nothing is written outside `out`, which appears only
    when it is complete.

    Raises:
        ConversionError: when names, shapes or fields do not fit, or `out` exists and is not empty.
    """
    with whole_directory(out) as unfinished:
        model, converter = load_checkpoint(path, name)
        tokenizer = load_tokenizer(path, converter)
        if (pooling := sentence_pooling(path)) is not None and isinstance(model, RoFormerLiteModel):
            model.config.classifier_pooling = pooling
        model.save_pretrained(unfinished)
        copy_sentence_modules(path, unfinished)
        if tokenizer is not None:
            tokenizer.save_pretrained(unfinished)
    return model


def load_checkpoint(path: str | Path, name: str = "auto") -> tuple[PreTrainedModel, Converter]:
    """The model that a checkpoint of the source `name` (`auto`: by its config) becomes, and the
    converter that knows it; `path` is a directory, or a repository on the Hub."""
    state_dict, config = open_checkpoint(path)
    converter = find_converter(source_of(path, config) if name == "auto" else name)
    with naming(path):
        model = converter.convert(state_dict, config, copy=False)
    _take_generation_config(model, path)
    return model, converter


def load_tokenizer(path: str | Path, converter: Converter) -> PreTrainedTokenizerBase | None:
    """The tokenizer of a checkpoint; None where it has none."""
    if not any(find_file(path, file) for file in TOKENIZER_FILES):
        return None
    with naming(path):
        return converter.tokenizer_class.from_pretrained(path)


def source_of(path: str | Path, config: dict[str, Any]) -> str:
    """The source of the checkpoint at `path`, by its config."""
    try:
        return family_of(config)
    except ConversionError as error:
        raise ConversionError(f"{path}: {error}") from error


def is_ours(path: str | Path) -> bool:
    """Whether a checkpoint is a model of this package, by its config."""
    return _read_config(path).get("model_type") in AUTO_CLASSES


class ConvertedModel:
    """`ConvertedModel.from_pretrained("nomic-ai/nomic-embed-text-v1.5")`, in the manner of
    transformers' Auto classes: a checkpoint of another system opens as a model of this package,
    without a copy on the disk."""

    @classmethod
    def from_pretrained(
        cls, name: str | Path, source: str = "auto", dtype: torch.dtype | None = None
    ) -> PreTrainedModel:
        """A model of this package with the weights of a checkpoint, in evaluation mode.

        Args:
            name: A directory, or a repository on the Hub.
            source: The system it comes from. Default: the family that its config.json names.
            dtype: Of the weights. Default: that of the checkpoint.
        """
        if is_ours(name):
            raise ConversionError(
                f"{name} is a model of this package already; open it with one of its classes"
            )
        return load_checkpoint(name, source)[0].to(dtype=dtype)


def export_checkpoint(name: str, path: str | Path, out: str | Path) -> str:
    """Write the model of this package at `path` as a checkpoint of the source `name` (`auto`: of
    the family that fits) to the directory `out`, and return the name of the source.

    Raises:
        ConversionError: when the source has no equivalent of the model, or `out` exists and is not
            empty.
    """
    with whole_directory(out) as unfinished:
        model = load_model(path)
        with naming(path):
            name = fitting_family(model) if name == "auto" else name
            state_dict, config = export(name, model)
        save_file(state_dict, unfinished / "model.safetensors", metadata={"format": "pt"})
        (unfinished / "config.json").write_text(json.dumps(config, indent=2) + "\n", "utf-8")
        for file in TOKENIZER_FILES:
            if (found := find_file(path, file)) is not None:
                shutil.copy(found, unfinished / file)
        if model.can_generate():
            model.generation_config.save_pretrained(unfinished)
        copy_sentence_modules(path, unfinished)
        _name_stock_tokenizer(path, unfinished)
    return name


def load_model(path: str | Path) -> PreTrainedModel:
    """The model of this package at `path`, of the class it was saved from: every tensor is there
    and finite, where `from_pretrained` alone would draw those that are missing."""
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
        options = {"output_loading_info": True, "ignore_mismatched_sizes": True}
        model, report = model_class.from_pretrained(
            None, config=config, state_dict=dict(state_dict), **options
        )
    wrong = {"lacks": report["missing_keys"], "has unknown": report["unexpected_keys"]}
    wrong["has in another shape"] = [key[0] for key in report["mismatched_keys"]]
    for fault, names in wrong.items():
        if names:
            listed = ", ".join(sorted(names)[:3])
            raise ConversionError(
                f"{path}: {fault} {listed}; a file is damaged, or another model's"
            )
    _take_generation_config(model, path)
    return model.eval()


def _take_generation_config(model: PreTrainedModel, path: str | Path) -> None:
    """Let `model` generate as the checkpoint `path` says."""
    file = find_file(path, _GENERATION) if model.can_generate() else None
    if file is not None:
        with naming(file):
            fields = {name: value for name, value in _read_json(file).items() if value is not None}
            model.generation_config = GenerationConfig.from_model_config(model.config)
            model.generation_config.update(**fields)


def _name_stock_tokenizer(path: str | Path, out: Path) -> None:
    """Write the name of the stock class that reads the same files: the tokenizer then opens without
    this package."""
    if (found := find_file(path, "tokenizer_config.json")) is not None:
        with naming(found):
            config = {"tokenizer_class": None, **_read_json(found)}
            config["tokenizer_class"] = _STOCK_TOKENIZERS.get(
                config["tokenizer_class"], config["tokenizer_class"]
            )
        (out / found.name).write_text(
            json.dumps(config, indent=2, ensure_ascii=False) + "\n", "utf-8"
        )


def sentence_pooling(path: str | Path) -> str | None:
    """How a checkpoint of sentence-transformers makes one vector of the states of its tokens, as
    the field `classifier_pooling` says it; None where it is none, or does it in another way."""
    file = find_file(path, "1_Pooling/config.json")
    if file is None:
        return None
    with naming(file):
        options = dict(_read_json(file))
    start = "pooling_mode_"  # of options that older versions have in the place of one
    older = [
        name.removeprefix(start)
        for name, is_on in options.items()
        if name.startswith(start) and is_on is True
    ]
    modes = [str(options["pooling_mode"])] if "pooling_mode" in options else older
    return (
        _POOLINGS.get(modes[0].removesuffix("_token").removesuffix("_tokens"))
        if len(modes) == 1
        else None
    )


def copy_sentence_modules(path: str | Path, out: Path) -> None:
    """Copy what makes a directory of sentence-transformers of one: its modules but the model,
    prompts, lengths. A module that is code, or lies outside the checkpoint, is refused."""
    modules = find_file(path, _MODULES)
    if modules is None:
        return
    with naming(modules):
        kinds = {str(entry["path"]): str(entry["type"]) for entry in _read_json(modules)}
    for folder, kind in kinds.items():
        if not kind.startswith("sentence_transformers."):
            raise ConversionError(
                f"{modules}: type={kind!r} is the checkpoint's own code, which is not carried over"
            )
        if Path(folder).name != folder or folder == "..":
            raise ConversionError(f"{modules}: path={folder!r} must be a folder beside it")
        (out / folder).mkdir(exist_ok=True)  # a module without options has no file
    parts = [
        f"{folder}/{part}"
        for folder in filter(None, kinds)
        for part in ("config.json", "model.safetensors")
    ]
    for file in (_MODULES, *_OF_SENTENCES, *parts):
        if (found := find_file(path, file)) is not None:
            shutil.copy(found, out / file)
