"""Converts checkpoint directories. A directory is written completely or not at all."""

import json
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase

import hf_roformer_lite
from hf_roformer_lite.integrations import RERANKER_FIELDS
from hf_roformer_lite.model.hub import AUTO_CLASSES
from hf_roformer_lite.model.modeling_roformer_lite import RoFormerLiteModel

from .checkpoint_files import (
    BPE_CODES,
    CHAT_TEMPLATES,
    MODULES,
    OTHER_TOKENIZER_FILES,
    TOKENIZER_CONFIG,
    TOKENIZER_FILES,
    WEIGHT_FILES,
    ConversionError,
    LazyTensors,
    check_report,
    has_tokenizer,
    load_pretrained,
    local_directory,
    naming,
    open_files,
    open_tokenizer,
    read_object,
    sentence_modules,
    weight_files,
    whole_directory,
)
from .converter import Converter
from .poolings import POOLINGS
from .registry import export, family_of, find_converter, fitting_families

WITH_JIEBA = "RoFormerTokenizer"
STOCK_TOKENIZERS = {
    "RoFormerLiteTokenizer": "PreTrainedTokenizerFast",
    "RoFormerLiteJiebaTokenizer": WITH_JIEBA,
}
GENERATION_CONFIG = "generation_config.json"
POOLING_CONFIG = "1_Pooling/config.json"
SENTENCE_FILES = ("config_sentence_transformers.json", "sentence_bert_config.json")


def open_checkpoint(checkpoint: str | Path) -> tuple[LazyTensors, dict[str, Any]]:
    """The tensors and the config of a directory, or of a repository on the Hub: `config.json` with
    safetensors or torch files, whole or in shards.

    Raises:
        ConversionError: if a file is missing or damaged, or if the index of shards names a file in
            another directory, which is then not opened.
    """
    config = _read_config(checkpoint)
    files = weight_files(checkpoint)
    if not files:
        raise ConversionError(
            f"{checkpoint}: has no weights; looked for {', '.join(WEIGHT_FILES)}, and their shards"
        )
    return open_files(files), config


def _read_config(checkpoint: str | Path) -> dict[str, Any]:
    path = local_directory(checkpoint) / "config.json"
    if not path.is_file():
        raise ConversionError(
            f"{checkpoint}: has no config.json; pass a directory of a model, or a name on the Hub"
        )
    config = read_object(path)
    model_type = config.get("model_type")
    architectures = config.get("architectures") or []
    if not isinstance(model_type, str | None) or not isinstance(architectures, list):
        raise ConversionError(f"{path}: {model_type=} must be text, and {architectures=} a list")
    return config


@contextmanager
def target_directory(out: str | Path) -> Iterator[Path]:
    """A directory to fill inside the `with` block, which appears as `out` when it is complete. If
    `out` exists, it must be an empty directory."""
    try:
        place = Path(out).resolve()
        if place.exists() and (not place.is_dir() or any(place.iterdir())):
            raise ConversionError(f"{out} exists already; choose a new directory")
        with whole_directory(place) as unfinished:
            yield unfinished
    # The disk may be full, or the place write-protected, whatever is written.
    except (OSError, SafetensorError) as error:
        cause = getattr(error, "strerror", None) or error
        raise ConversionError(f"{out} cannot be written: {cause}") from error


def convert_checkpoint(name: str, path: str | Path, out: str | Path) -> PreTrainedModel:
    """Convert the checkpoint `path` of the source `name` (`auto`: by its config), with its
    tokenizer if it has one, to the directory `out`, which appears only when it is complete.

    Raises:
        ConversionError: if names, shapes or fields do not fit, or if `out` exists and is not empty.
    """
    with target_directory(out) as unfinished:
        model, converter = load_checkpoint(path, name)
        tokenizer = load_tokenizer(path, converter)
        pooling = sentence_pooling(path)
        if pooling is not None and isinstance(model, RoFormerLiteModel):
            model.config.classifier_pooling = pooling
        model.save_pretrained(unfinished)
        copy_sentence_modules(path, unfinished)
        if tokenizer is not None:
            tokenizer.save_pretrained(unfinished)
            # BERTweet's class writes this file without its last column, and then misreads it.
            _copy_files(local_directory(path), [BPE_CODES], unfinished)
    return model


def load_checkpoint(path: str | Path, name: str = "auto") -> tuple[PreTrainedModel, Converter]:
    """The model that a checkpoint of the source `name` (`auto`: by its config) becomes, and the
    converter of this source; `path` is a directory, or a repository on the Hub."""
    state_dict, config = open_checkpoint(path)
    if name == "auto":
        name = source_of(path, config)
    converter = find_converter(name)
    # The fields and tensors of a damaged checkpoint may raise any error in a converter.
    with naming(path):
        model = converter.convert(state_dict, config, copy=False)
    for field in RERANKER_FIELDS & config.keys():
        setattr(model.config, field, config[field])
    _take_generation_config(model, path)
    return model, converter


def load_tokenizer(path: str | Path, converter: Converter) -> PreTrainedTokenizerBase | None:
    """The tokenizer of a checkpoint; None if it has none."""
    directory = local_directory(path)
    if not has_tokenizer(directory):
        return None
    tokenizer_class = converter.tokenizer_class(_declared_tokenizer(directory))
    with naming(path):
        return open_tokenizer(directory, tokenizer_class)


def _declared_tokenizer(directory: Path) -> str | None:
    """The class of a checkpoint's tokenizer that tokenizer_config.json or config.json names."""
    for file in (TOKENIZER_CONFIG, "config.json"):
        path = directory / file
        if not path.is_file():
            continue
        declared = read_object(path).get("tokenizer_class")
        if declared is not None:
            return str(declared)
    return None


def source_of(path: str | Path, config: dict[str, Any]) -> str:
    """The source of the checkpoint at `path`, according to its config."""
    with naming(path):
        return family_of(config)


def is_ours(path: str | Path) -> bool:
    """Whether a checkpoint is a RoFormerLite model, according to its config."""
    return _read_config(path).get("model_type") in AUTO_CLASSES


class ConvertedModel:
    """Opens a checkpoint of another system as a RoFormerLite model, without a copy on disk, like
    transformers' Auto classes: `ConvertedModel.from_pretrained("nomic-ai/nomic-embed-text-v1.5")`.
    """

    @classmethod
    def from_pretrained(
        cls, name: str | Path, source: str = "auto", dtype: torch.dtype | None = None
    ) -> PreTrainedModel:
        """A RoFormerLite model with the weights of a checkpoint, in evaluation mode.

        Args:
            name: A directory, or a repository on the Hub.
            source: The system that the checkpoint comes from. Default: the family that its
                config.json names.
            dtype: The dtype of the weights. Default: the checkpoint's.
        """
        if is_ours(name):
            raise ConversionError(
                f"{name} is a RoFormerLite model already; open it with its own class"
            )
        return load_checkpoint(name, source)[0].to(dtype=dtype)


def export_checkpoint(name: str, path: str | Path, out: str | Path) -> str:
    """Write the RoFormerLite model at `path` as a checkpoint of the source `name` (`auto`: the
    family that fits) to the directory `out`, and return the name of the source.

    Raises:
        ConversionError: if the source has no equivalent of the model, if the tokenizer would find
            other tokens, or if `out` exists and is not empty.
    """
    with target_directory(out) as unfinished:
        model = load_model(path)
        _export_tokenizer(local_directory(path), unfinished)
        name, state_dict = _export_model(name, model, path, unfinished)
        save_file(state_dict, unfinished / "model.safetensors", metadata={"format": "pt"})
        if model.can_generate():
            model.generation_config.save_pretrained(unfinished)
        copy_sentence_modules(path, unfinished)
    return name


def _export_model(
    name: str, model: PreTrainedModel, path: str | Path, out: Path
) -> tuple[str, dict[str, torch.Tensor]]:
    """Write the config of a family to `out`, which has the files of the tokenizer, and return the
    name of the family and its tensors. `auto` is the best family with which AutoTokenizer finds
    the same tokens as in `path`."""
    names = [name]
    fields = model.config.to_dict()
    # Only what no family can express raises an error here; `naming` adds the directory.
    with naming(path):
        if name == "auto":
            names = fitting_families(model)
    for family in names:
        with naming(path):
            state_dict, config = export(family, model)
        config |= {field: fields[field] for field in RERANKER_FIELDS & fields.keys()}
        (out / "config.json").write_text(json.dumps(config, indent=2) + "\n", "utf-8")
        if _keeps_tokenizer(local_directory(path), out):
            return family, state_dict
    raise ConversionError(
        f"{path}: as {', '.join(names)}, this model cannot keep its tokenizer: AutoTokenizer "
        "always opens another class, which finds other tokens; export it to another family"
    )


def _keeps_tokenizer(directory: Path, out: Path) -> bool:
    """Whether AutoTokenizer opens tokenizers that find the same tokens in both directories, if
    there is one. For some types of models, it opens the class of the type whatever the files say.
    """
    if not has_tokenizer(directory):
        return True
    with naming(directory):
        ours = open_tokenizer(directory)
    try:
        with naming(out):
            theirs = open_tokenizer(out)
    except ConversionError:
        return False
    expected = STOCK_TOKENIZERS.get(type(ours).__name__, type(ours).__name__)
    opened = type(theirs).__name__
    if opened == expected:
        return True
    if WITH_JIEBA in (opened, expected):
        # Jieba is not one of the steps that can be compared.
        return False
    return ours.is_fast and theirs.is_fast and _steps(ours) == _steps(theirs)


def _steps(tokenizer: PreTrainedTokenizerBase) -> list[Any]:
    """What a fast tokenizer does to find the tokens of a text."""
    pipeline = json.loads(tokenizer.backend_tokenizer.to_str())
    return [pipeline[step] for step in ("normalizer", "pre_tokenizer", "model")]


def _export_tokenizer(directory: Path, out: Path) -> None:
    """Copy the files of a tokenizer in the form that opens without this package."""
    templates = [path for pattern in CHAT_TEMPLATES for path in directory.glob(pattern)]
    names = [str(path.relative_to(directory)) for path in templates]
    _copy_files(directory, (*TOKENIZER_FILES, *OTHER_TOKENIZER_FILES, *names), out)
    _name_stock_tokenizer(directory, out)
    _drop_lengths_of_file(out / "tokenizer.json")


def _copy_files(directory: Path, files: Iterable[str], out: Path) -> None:
    """Copy those of the `files` that a directory has."""
    for file in files:
        if (directory / file).is_file():
            (out / file).parent.mkdir(exist_ok=True)
            shutil.copy(directory / file, out / file)


def load_model(path: str | Path) -> PreTrainedModel:
    """The RoFormerLite model at `path`, in the class from which it was saved.

    Raises:
        ConversionError: if a tensor is missing (`from_pretrained` would fill it with random
            numbers), is unknown, has another shape or is not finite.
    """
    fields = _read_config(path)
    architecture = (fields.get("architectures") or [None])[0]
    model_class = getattr(hf_roformer_lite, str(architecture), None)
    config_class = getattr(model_class, "config_class", None)
    if config_class is None or config_class.model_type != fields.get("model_type"):
        raise ConversionError(
            f"{path}: {architecture} is not a RoFormerLite model; `roformer-lite convert` makes one"
        )
    with naming(path):
        config = config_class.from_pretrained(local_directory(path))
        model, report = load_pretrained(model_class, path, config)
        check_report(report)
    _take_generation_config(model, path)
    return model.eval()


def _take_generation_config(model: PreTrainedModel, path: str | Path) -> None:
    """Give `model` the generation settings of the checkpoint `path`."""
    if not model.can_generate():
        return
    file = local_directory(path) / GENERATION_CONFIG
    if not file.is_file():
        # Older checkpoints have these settings in config.json.
        file = file.with_name("config.json")
    with naming(file):
        fields = {name: value for name, value in read_object(file).items() if value is not None}
        # Unlike a configuration that is updated, this one can be saved whatever its values.
        model.generation_config = GenerationConfig.from_model_config(
            {**model.config.to_dict(), **fields}
        )


def _name_stock_tokenizer(directory: Path, out: Path) -> None:
    """Write the name of the stock class that reads the same files, so that the tokenizer opens
    without this package."""
    path = directory / TOKENIZER_CONFIG
    if not path.is_file():
        return
    with naming(path):
        config = {"tokenizer_class": None, **read_object(path)}
        # The code of a bundle is not copied.
        config.pop("auto_map", None)
        declared = config["tokenizer_class"]
        config["tokenizer_class"] = STOCK_TOKENIZERS.get(declared, declared)
    written = json.dumps(config, indent=2, ensure_ascii=False)
    (out / TOKENIZER_CONFIG).write_text(f"{written}\n", "utf-8")


def _drop_lengths_of_file(path: Path) -> None:
    """Remove the padding and truncation from tokenizer.json, if the file exists."""
    if path.is_file():
        content = {**read_object(path), "padding": None, "truncation": None}
        written = json.dumps(content, indent=2, ensure_ascii=False)
        path.write_text(f"{written}\n", "utf-8")


def sentence_pooling(path: str | Path) -> str | None:
    """The value of `classifier_pooling` that corresponds to the pooling of a sentence-transformers
    checkpoint; None for other checkpoints and other pooling modes."""
    file = local_directory(path) / POOLING_CONFIG
    if not file.is_file():
        return None
    options = read_object(file)
    if "pooling_mode" in options:
        return POOLINGS["sentence-transformers"].get(str(options["pooling_mode"]))
    modes = [
        name
        for name, is_on in options.items()
        if name.startswith("pooling_mode_") and is_on is True
    ]
    if len(modes) != 1:
        return None
    return POOLINGS["older sentence-transformers"].get(modes[0])


def copy_sentence_modules(path: str | Path, out: Path) -> None:
    """Copy the files that a sentence-transformers directory has in addition to the model: its
    modules, prompts and lengths.

    Raises:
        ConversionError: for a module that is the checkpoint's own code, or that is outside the
            checkpoint.
    """
    modules = sentence_modules(path)
    if not modules:
        return
    files = [MODULES, *SENTENCE_FILES]
    for folder, kind in modules:
        if not kind.startswith("sentence_transformers."):
            raise ConversionError(
                f"{path}: {MODULES} names {kind}, which is the checkpoint's own code and is not "
                "carried over"
            )
        # The model itself is not in a subfolder.
        if folder == "":
            continue
        # A module without options has no file.
        (out / folder).mkdir(exist_ok=True)
        for name in ("config.json", "model.safetensors", "pytorch_model.bin"):
            files.append(f"{folder}/{name}")
    _copy_files(local_directory(path, files), files, out)
