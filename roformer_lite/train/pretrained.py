"""Models and tokenizers that were trained before: of this package, or of transformers, in their own class."""

import sys
from collections.abc import Mapping
from typing import Any

from transformers import CONFIG_MAPPING, PreTrainedModel, PreTrainedTokenizerBase, TrainingArguments
from transformers.configuration_utils import PreTrainedConfig

from hf_roformer_lite.padding_free import padding_free

from ..errors import InputError
from ..saved_model import (
    find_file,
    is_ours,
    load_config,
    load_tokenizer,
    load_with_new_head,
    read_object,
    try_tokenizer,
)
from ..tasks.base import Task
from .run import Run


def pretrained_config(name: str) -> PreTrainedConfig:
    """The configuration of a saved model, be it of this package or of transformers.

    Raises:
        InputError: when there is none, a field is wrong, or transformers has no class for it.
    """
    path = find_file(name, "config.json")
    model_type = None if path is None else read_object(path).get("model_type")
    if path is not None and not (isinstance(model_type, str) and model_type in CONFIG_MAPPING):
        raise InputError(
            f"{path}: transformers has no model_type={model_type!r}; convert the model with `roformer-lite convert "
            f"{name} OUT --from SYSTEM`, whose --help lists the systems, and give OUT here"
        )
    return load_config(name)


def pretrained_tokenizer(name: str) -> PreTrainedTokenizerBase:
    """The tokenizer of a directory or of a repository on the Hub.

    Raises:
        InputError: when there is none, or it cannot encode a batch.
    """
    tokenizer = load_tokenizer(name)
    if tokenizer is None:
        raise InputError(f"no tokenizer can be loaded from {name}: it has none")
    try_tokenizer(tokenizer, name)
    return tokenizer


def pretrained_for_task(
    run: Run, task: Task, args: TrainingArguments, tokens: int, fields: Mapping[str, Any]
) -> PreTrainedModel:
    """The model of `--model_name_or_path`, with its own head if that fits the task and the labels of the training
    data, with a new one otherwise.

    Args:
        run, task, args: Of the training; the task knows the labels.
        tokens: Size of the tokenizer, which the vocabulary of the model must hold.
        fields: Fields of the configuration that shall not be the given model's.

    Raises:
        InputError: when a file is missing or wrong, or the model does not fit the options.
    """
    name = run.model.model_name_or_path
    given = pretrained_config(name)
    _check_fits(given, name, task)
    why_new_head = task.model.why_new_head(given)  # before `config_fields`, which gives the labels in their order
    of_task = {field: value for field, value in task.model.config_fields().items() if hasattr(given, field)}
    check_vocabulary(name, given, tokens)
    if not why_new_head:
        config = type(given).from_dict(merged(given.to_dict(), {**of_task, **fields}))
        model, new = load_with_new_head(task.model.auto_model, name, config)
        message = f"the model gets a new head for this task: {', '.join(new)}" if new else ""
    else:
        model, new = with_new_head(task.model.auto_model, name, {**of_task, **fields}), ["the head"]
        message = f"{why_new_head}; the training starts with a new head"
    task.model.has_new_head, task.model.has_own_class = bool(new), is_ours(model)
    try:
        padding_free(model)
    except ValueError as error:
        if getattr(task.args, "packing", False):
            raise InputError(f"--packing: documents of one row would see each other, as {error}") from error
        message = f"{message}; {error} Its padding is computed".removeprefix("; ")
    if message and args.should_save:
        print(f"{name}: {message}", file=sys.stderr)
    return model


def _check_fits(given: PreTrainedConfig, name: str, task: Task) -> None:
    """Refuse what would only be noticed after the training, or never."""
    if given.is_encoder_decoder != (task.name == "seq2seq"):
        kind, fitting = ("a single stack", "--encoder_name_or_path")
        if given.is_encoder_decoder:
            kind, fitting = "an encoder–decoder", "--model_name_or_path of train seq2seq"
        raise InputError(f"{name}: {given.model_type} is {kind}; give it as {fitting}")
    if getattr(task.args, "text_scores", False) and not is_ours(given):
        raise InputError(
            f"--text_scores: a model of type {given.model_type} has no place for them; leave the option out, or start "
            f"from what `roformer-lite convert {name} OUT --from auto` writes"
        )


def check_vocabulary(name: str, config: PreTrainedConfig, tokens: int) -> None:
    """Refuse a tokenizer with more tokens than a model has.

    Raises:
        InputError: saying how many each has.
    """
    if tokens > config.vocab_size:
        raise InputError(
            f"the tokenizer has {tokens} tokens, but {name} a vocabulary of {config.vocab_size}; give the tokenizer "
            "that the model was trained with"
        )


def with_new_head(auto_model: type, name: str, fields: Mapping[str, Any]) -> PreTrainedModel:
    """The stack of the model `name` below a head that is new, even where the weights of the old one would fit."""
    given = pretrained_config(name)
    config = type(given).from_dict(merged(given.to_dict(), fields))
    own_labels = {"id2label": given.id2label, "label2id": given.label2id}  # its weights have the shapes of these
    own, _ = load_with_new_head(auto_model, name, type(config).from_dict({**config.to_dict(), **own_labels}))
    model = auto_model.from_config(config).to(own.dtype)
    model.base_model.load_state_dict(own.base_model.state_dict())
    return model


def merged(fields: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """`fields` of a configuration, updated with `overrides`; `encoder` and `decoder` are updated field by field."""
    nested = {name: merged(fields[name], value) for name, value in overrides.items() if name in ("encoder", "decoder")}
    labels = ("id2label", "label2id") if "num_labels" in overrides else ()  # those of the checkpoint
    return {**{name: value for name, value in fields.items() if name not in labels}, **overrides, **nested}
