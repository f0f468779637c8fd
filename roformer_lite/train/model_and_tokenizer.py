"""The model and the tokenizer that a training starts from: given ones, or new ones."""

import difflib
import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from datasets import Dataset, IterableDataset
from huggingface_hub.errors import StrictDataclassError
from torch import nn
from transformers import AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase, TrainingArguments
from transformers.configuration_utils import PreTrainedConfig

from hf_roformer_lite.model.configuration_roformer_lite import RoFormerLiteConfig, RoFormerLiteSeq2SeqConfig
from hf_roformer_lite.model.tokenization_roformer_lite import RoFormerLiteTokenizer

from ..errors import InputError
from ..tasks.base import Task
from .options import ModelArguments, TokenizerArguments
from .pair_of_stacks import pair_of_stacks
from .pretrained import pretrained_config, pretrained_for_task, pretrained_tokenizer
from .run import Run

_TOKENIZER_CHARACTERS = 10**9


def make_tokenizer(
    run: Run, task: Task, args: TrainingArguments, train_rows: Dataset | IterableDataset, state_dir: Path
) -> PreTrainedTokenizerBase:
    """The tokenizer given, or that of the model or encoder given, or that of prepared data, or one trained on the
    training data.

    A trained tokenizer is kept in `state_dir`, where the other processes and a continued training find it.

    Raises:
        InputError: when it cannot be loaded or trained, or is not the one that prepared data need.
    """
    given, prepared = tokenizer_source(run), getattr(run.data, "prepared", None)
    if prepared:
        theirs = pretrained_tokenizer(str(Path(prepared[0]) / "tokenizer"))
        if given and pretrained_tokenizer(given).get_vocab() != theirs.get_vocab():
            raise InputError(
                f"--prepared {prepared[0]}: it was not prepared with the tokenizer of {given}; give `roformer-lite "
                f"prepare` the option --tokenizer {given}"
            )
        return set_up_tokenizer(theirs, task)
    if given:
        return set_up_tokenizer(pretrained_tokenizer(given), task)
    with args.main_process_first(local=False, desc="training the tokenizer"):
        if args.should_save and not (state_dir / "tokenizer").exists():
            tokenizer = train_tokenizer(_first_texts(task.data.texts(train_rows)), run.model)
            tokenizer.save_pretrained(state_dir / "tokenizer.unfinished")
            (state_dir / "tokenizer.unfinished").rename(state_dir / "tokenizer")
        tokenizer = AutoTokenizer.from_pretrained(state_dir / "tokenizer")
    return set_up_tokenizer(tokenizer, task)


def _first_texts(texts: Iterable[str]) -> Iterator[str]:
    """The first gigabyte of text, from which a new tokenizer learns."""
    left = _TOKENIZER_CHARACTERS
    for text in texts:
        yield text
        left -= len(text)
        if left <= 0:
            return


def tokenizer_source(run: Run) -> str | None:
    """The name of the tokenizer that is taken as it is; None where one is trained."""
    given = run.model.tokenizer or next(iter(run.model.pretrained), None)
    return given if given or run.model.new_tokenizer else getattr(run.data, "teacher", None)


def begins_with_teachers_tokens(run: Run) -> bool:
    """Whether a new model has the tokenizer of its teacher, and so vectors of tokens to begin with."""
    teacher = getattr(run.data, "teacher", None)
    return teacher is not None and not run.model.pretrained and tokenizer_source(run) == teacher


def set_up_tokenizer(tokenizer: PreTrainedTokenizerBase, task: Task) -> PreTrainedTokenizerBase:
    """The same tokenizer with the length and the defaults of `task`, which knows it from now on."""
    task.data.tokenizer, tokenizer.model_max_length = tokenizer, task.data.max_length
    if task.name == "causal" and isinstance(tokenizer, RoFormerLiteTokenizer):
        tokenizer.add_bos_token = True  # a prompt is [CLS] x: after a [SEP] another text would begin
    return tokenizer


def train_tokenizer(texts: Iterable[str], asked_for: TokenizerArguments) -> RoFormerLiteTokenizer:
    """A new tokenizer; where a size was asked for, fewer tokens are reported."""
    given = asked_for.new_tokenizer
    try:
        tokenizer = RoFormerLiteTokenizer.train(
            texts,
            vocab_size=given.get("vocab_size", 8192),
            algorithm=given.get("tokenizer_algorithm", "bpe"),
            min_frequency=given.get("tokenizer_min_frequency", 2),
            show_progress=False,
        )
    except ValueError as error:
        raise InputError(f"the tokenizer cannot be trained: {error}") from error
    if len(tokenizer) < given.get("vocab_size", 0):
        asked = f"{given['vocab_size']:,} were asked for"
        print(f"the training data yield {len(tokenizer):,} tokens; {asked}", file=sys.stderr)
    return tokenizer


def make_model(run: Run, task: Task, args: TrainingArguments, tokenizer: PreTrainedTokenizerBase) -> PreTrainedModel:
    """The model given with a head for the task, one of the stacks given, or a new one of the size asked for.

    Raises:
        InputError: when the fields of the configuration do not fit together, or no model can be loaded.
    """
    overrides = parse_overrides(run.model.config, config_class_of(run.model, task.model.config_class))
    try:
        if run.model.model_name_or_path:
            model = pretrained_for_task(run, task, args, len(tokenizer), overrides)
        elif run.model.pretrained:
            model = pair_of_stacks(run.model, args, tokenizer, overrides)
        else:
            fields = {} if run.model.size else task.model.new_model
            model = _new_model(run, task, tokenizer, {**fields, **task.model.config_fields(), **overrides})
        _check_positions(task, model)
        return model
    except InputError:
        raise  # it says already what is wrong, and in which file
    except (StrictDataclassError, ValueError, OSError) as error:
        raise InputError(f"no model can be made: {error}") from error


def _check_positions(task: Task, model: PreTrainedModel) -> None:
    """Refuse texts longer than a table of learned positions, before the first long one stops the training."""
    rows = []
    for name, table in model.named_modules():
        if isinstance(table, nn.Embedding) and ("position" in name or name.endswith("wpe")):
            before = 0 if table.padding_idx is None else table.padding_idx + 1  # RoBERTa counts from there
            rows.append(table.num_embeddings - max(before, getattr(table, "offset", 0)))  # BART's first two are unused
    lengths = {name: getattr(task.args, name, 0) for name in ("max_length", "max_source_length", "max_target_length")}
    for name, length in {**lengths, "block_size": getattr(task.args, "longest_block", 0)}.items():
        if rows and length > min(rows):
            raise InputError(f"--{name} {length} is more than the model has positions for; give at most {min(rows)}")


def _new_model(run: Run, task: Task, tokenizer: PreTrainedTokenizerBase, fields: dict[str, Any]) -> PreTrainedModel:
    tokens = {
        "vocab_size": len(tokenizer),
        "pad_token_id": tokenizer.pad_token_id,
        "bos_token_id": tokenizer.cls_token_id,
        "eos_token_id": tokenizer.sep_token_id,
    }
    if "decoder_start_token_id" in task.model.config_class.__dataclass_fields__:
        tokens["decoder_start_token_id"] = tokenizer.cls_token_id
    config = task.model.config_class.from_preset(run.model.size or "mini", **{**tokens, **fields})
    return task.model.auto_model.from_config(config)


def config_class_of(model: ModelArguments, otherwise: type[PreTrainedConfig]) -> type[PreTrainedConfig]:
    """The class of the configuration that `--config` changes: that of the model given, or of a new one."""
    return type(pretrained_config(model.model_name_or_path)) if model.model_name_or_path else otherwise


def parse_overrides(assignments: list[str], config_class: type[PreTrainedConfig]) -> dict[str, Any]:
    """`["hidden_dropout=0.3", "decoder.num_hidden_layers=3"]` as arguments of `config_class.from_preset`.

    Values are JSON (`0.3`, `true`, `null`, `["full_attention"]`); anything else is taken as text.

    Raises:
        InputError: for an assignment without `=`, and for a field that `config_class` does not have.
    """
    own = (RoFormerLiteConfig, RoFormerLiteSeq2SeqConfig)
    stack_fields = set(RoFormerLiteConfig.__dataclass_fields__) if issubclass(config_class, own) else set()
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
