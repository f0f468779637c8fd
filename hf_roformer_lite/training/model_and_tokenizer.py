"""The model and the tokenizer that a training starts from: given ones, or new ones."""

import difflib
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from datasets import Dataset
from huggingface_hub.errors import StrictDataclassError
from transformers import AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase
from transformers.configuration_utils import PreTrainedConfig

from ..errors import InputError
from ..model.configuration_roformer_lite import RoFormerLiteConfig
from ..model.tokenization_roformer_lite import RoFormerLiteTokenizer
from ..saved_model import load_config, load_tokenizer, load_with_new_head, try_tokenizer

if TYPE_CHECKING:
    from .options import TrainOptions


def make_tokenizer(options: "TrainOptions", train_rows: Dataset, state_dir: Path) -> PreTrainedTokenizerBase:
    """The tokenizer given, or that of the model given, or one trained on the training data.

    A trained tokenizer is kept in `state_dir`, where the other processes and a continued training find it.
    """
    given = options.model.tokenizer or options.model.model_name_or_path
    if given:
        tokenizer = load_tokenizer(given)
        if tokenizer is None:
            raise InputError(f"no tokenizer can be loaded from {given}: it has none")
        try_tokenizer(tokenizer, given)
    else:
        with options.training.main_process_first(local=False, desc="training the tokenizer"):
            if options.training.should_save and not (state_dir / "tokenizer").exists():
                _train_tokenizer(options, train_rows).save_pretrained(state_dir / "tokenizer.unfinished")
                (state_dir / "tokenizer.unfinished").rename(state_dir / "tokenizer")
            tokenizer = AutoTokenizer.from_pretrained(state_dir / "tokenizer")
    tokenizer.model_max_length = options.task.max_length
    options.task.prepare_tokenizer(tokenizer)
    return tokenizer


def _train_tokenizer(options: "TrainOptions", train_rows: Dataset) -> RoFormerLiteTokenizer:
    try:
        tokenizer = RoFormerLiteTokenizer.train(
            options.task.texts(train_rows),
            vocab_size=options.model.vocab_size,
            algorithm=options.model.tokenizer_algorithm,
            min_frequency=options.model.tokenizer_min_frequency,
            show_progress=False,
        )
    except ValueError as error:
        raise InputError(f"the tokenizer cannot be trained: {error}") from error
    made, asked = len(tokenizer), options.model.vocab_size
    if made < asked:
        print(f"the training data yield {made:,} tokens; {asked:,} were asked for", file=sys.stderr)
    return tokenizer


def make_model(options: "TrainOptions", tokenizer: PreTrainedTokenizerBase) -> PreTrainedModel:
    """The model given with a head for the task, or a new one of the size asked for.

    Raises:
        InputError: when the fields of the configuration do not fit together, or no model can be loaded.
    """
    overrides = parse_overrides(options.model.config, options.task.config_class)
    try:
        if options.model.model_name_or_path:
            return _pretrained_model(options, len(tokenizer), overrides)
        fields = {} if options.model.has_size else options.task.new_model
        return _new_model(options, tokenizer, {**fields, **options.task.config_fields(), **overrides})
    except InputError:
        raise  # it says already what is wrong, and in which file
    except (StrictDataclassError, ValueError, OSError) as error:
        raise InputError(f"no model can be made: {error}") from error


def _pretrained_model(options: "TrainOptions", tokens: int, overrides: dict[str, Any]) -> PreTrainedModel:
    """The model given, with its own head if that fits the task and the labels of the training data."""
    name, task = options.model.model_name_or_path, options.task
    given = load_config(name)
    keeps_head = task.take_over_labels(given)  # before `config_fields`, which gives the labels in their order
    config = type(given).from_dict(merged(given.to_dict(), {**task.config_fields(), **overrides}))
    if tokens > config.vocab_size:
        raise InputError(
            f"the tokenizer has {tokens} tokens, but {name} a vocabulary of {config.vocab_size}; give the tokenizer "
            "that the model was trained with"
        )
    if keeps_head:
        model, new = load_with_new_head(task.auto_model, name, config)
        if new and options.training.should_save:
            print(f"{name}: the model gets a new head for this task: {', '.join(new)}", file=sys.stderr)
        return model
    if options.training.should_save:
        print(f"{name}: {task.why_new_head(given)}; the training starts with a new head", file=sys.stderr)
    return _with_new_head(options, name, config, {"id2label": given.id2label, "label2id": given.label2id})


def _with_new_head(
    options: "TrainOptions", name: str, config: PreTrainedConfig, own_labels: dict[str, Any]
) -> PreTrainedModel:
    """The stack of the model `name` below a head that is new, even where the weights of the old one would fit."""
    own = type(config).from_dict({**config.to_dict(), **own_labels})  # its weights have the shapes of these
    given, _ = load_with_new_head(options.task.auto_model, name, own)
    model = options.task.auto_model.from_config(config).to(given.dtype)
    model.base_model.load_state_dict(given.base_model.state_dict())
    return model


def _new_model(options: "TrainOptions", tokenizer: PreTrainedTokenizerBase, fields: dict[str, Any]) -> PreTrainedModel:
    config_class = options.task.config_class
    tokens = {
        "vocab_size": len(tokenizer),
        "pad_token_id": tokenizer.pad_token_id,
        "bos_token_id": tokenizer.cls_token_id,
        "eos_token_id": tokenizer.sep_token_id,
    }
    if "decoder_start_token_id" in config_class.__dataclass_fields__:
        tokens["decoder_start_token_id"] = tokenizer.cls_token_id
    config = config_class.from_preset(options.model.size, **{**tokens, **fields})
    return options.task.auto_model.from_config(config)


def merged(fields: dict[str, Any], overrides: dict[str, Any]) -> dict[str, Any]:
    """`fields` of a configuration, updated with `overrides`; `encoder` and `decoder` are updated field by field."""
    nested = {name: merged(fields[name], value) for name, value in overrides.items() if name in ("encoder", "decoder")}
    return {**fields, **overrides, **nested}


def parse_overrides(assignments: list[str], config_class: type[PreTrainedConfig]) -> dict[str, Any]:
    """`["hidden_dropout=0.3", "decoder.num_hidden_layers=3"]` as arguments of `config_class.from_preset`.

    Values are JSON (`0.3`, `true`, `null`, `["full_attention"]`); anything else is taken as text.

    Raises:
        InputError: for an assignment without `=`, and for a field that `config_class` does not have.
    """
    stack_fields = set(RoFormerLiteConfig.__dataclass_fields__)
    sides = [side for side in ("encoder", "decoder") if side in config_class.__dataclass_fields__]
    fields: dict[str, Any] = {}
    for assignment in assignments:
        name, equals, text = assignment.partition("=")
        side, dot, own = name.rpartition(".")
        valid = stack_fields if dot else stack_fields | set(config_class.__dataclass_fields__) - set(sides)
        if not equals or (dot and side not in sides) or own not in valid:
            close = difflib.get_close_matches(own, valid, n=3)
            hint = f"; did you mean {' or '.join(close)}?" if close and own not in valid else ""
            raise InputError(
                f"--config {assignment}: name=value with a field of {config_class.__name__} is needed{hint}"
            )
        if own == "vocab_size":
            raise InputError(f"--config {assignment}: the tokenizer determines it; use --vocab_size")
        try:
            value = json.loads(text)
        except json.JSONDecodeError:
            value = text
        (fields.setdefault(side, {}) if dot else fields)[own] = value
    return fields
