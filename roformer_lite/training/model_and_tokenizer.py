"""The model and the tokenizer that a training starts from: given ones, or new ones."""

import difflib
import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from datasets import Dataset
from huggingface_hub.errors import StrictDataclassError
from torch import nn
from transformers import AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase
from transformers.configuration_utils import PreTrainedConfig

from hf_roformer_lite.model.configuration_roformer_lite import RoFormerLiteConfig, RoFormerLiteSeq2SeqConfig
from hf_roformer_lite.model.tokenization_roformer_lite import RoFormerLiteTokenizer

from ..errors import InputError
from .arguments import ModelArguments
from .corpus.corpus import Corpus
from .corpus.stream import TextStream
from .fingerprint import tokenizer_fingerprint
from .pair_of_stacks import pair_of_stacks
from .pretrained import pretrained_config, pretrained_for_task, pretrained_tokenizer
from .tasks.base import Task
from .tokenizer_arguments import TokenizerArguments

if TYPE_CHECKING:
    from .options import TrainOptions


def make_tokenizer(
    options: "TrainOptions", train_rows: Dataset | Corpus | TextStream, state_dir: Path
) -> PreTrainedTokenizerBase:
    """The tokenizer given, or that of the model or encoder given, or that of prepared data, or one trained on the
    training data.

    A trained tokenizer is kept in `state_dir`, where the other processes and a continued training find it.

    Raises:
        InputError: when it cannot be loaded or trained, or is not the one that prepared data need.
    """
    given = tokenizer_source(options)
    if isinstance(train_rows, Corpus):
        return prepared_tokenizer(options.task, train_rows, given)
    if given:
        tokenizer = pretrained_tokenizer(given)
    else:
        with options.training.main_process_first(local=False, desc="training the tokenizer"):
            if options.training.should_save and not (state_dir / "tokenizer").exists():
                is_stream = isinstance(train_rows, TextStream)
                texts = train_rows.texts() if is_stream else options.task.texts(train_rows)
                tokenizer = train_tokenizer(texts, options.model)
                tokenizer.save_pretrained(state_dir / "tokenizer.unfinished")
                (state_dir / "tokenizer.unfinished").rename(state_dir / "tokenizer")
            tokenizer = AutoTokenizer.from_pretrained(state_dir / "tokenizer")
    return set_up_tokenizer(tokenizer, options.task)


def prepared_tokenizer(task: Task, corpus: Corpus, given: str | None) -> PreTrainedTokenizerBase:
    """The tokenizer that a corpus was prepared with, taken from what was `given` for it, or else from beside it.

    Raises:
        InputError: when it is another one.
    """
    source = given or str(corpus.tokenizer_folder)
    tokenizer = set_up_tokenizer(pretrained_tokenizer(source), task)
    if tokenizer_fingerprint(tokenizer) != corpus.tokenizer_fingerprint:
        raise InputError(
            f"the tokenizer of {source} is not the one that the data were prepared with, which is in "
            f"{corpus.tokenizer_folder}"
            + (f"; give `roformer-lite prepare` the option --tokenizer {given}" if given else "; it was changed since")
        )
    return tokenizer


def tokenizer_source(options: "TrainOptions") -> str | None:
    """The name of the tokenizer that is taken as it is; None where one is trained."""
    given = options.model.tokenizer or next(iter(options.model.pretrained), None)
    return given if given or options.model.has_tokenizer_options else options.task.tokenizer_name


def begins_with_teachers_tokens(options: "TrainOptions") -> bool:
    """Whether a new model has the tokenizer of its teacher, and so vectors of tokens to begin with."""
    teacher = getattr(options.data, "teacher", None)
    return teacher is not None and not options.model.pretrained and tokenizer_source(options) == teacher


def set_up_tokenizer(tokenizer: PreTrainedTokenizerBase, task: Task) -> PreTrainedTokenizerBase:
    """The same tokenizer with the length and the defaults of `task`."""
    tokenizer.model_max_length = task.max_length
    task.prepare_tokenizer(tokenizer)
    return tokenizer


def train_tokenizer(texts: Iterable[str], asked_for: TokenizerArguments) -> RoFormerLiteTokenizer:
    """A new tokenizer; a line says so when the texts yield fewer tokens than were asked for."""
    try:
        tokenizer = RoFormerLiteTokenizer.train(
            texts,
            vocab_size=asked_for.vocab_size,
            algorithm=asked_for.tokenizer_algorithm,
            min_frequency=asked_for.tokenizer_min_frequency,
            show_progress=False,
        )
    except ValueError as error:
        raise InputError(f"the tokenizer cannot be trained: {error}") from error
    made, asked = len(tokenizer), asked_for.vocab_size
    if made < asked:
        print(f"the training data yield {made:,} tokens; {asked:,} were asked for", file=sys.stderr)
    return tokenizer


def make_model(options: "TrainOptions", tokenizer: PreTrainedTokenizerBase) -> PreTrainedModel:
    """The model given with a head for the task, one of the stacks given, or a new one of the size asked for.

    Raises:
        InputError: when the fields of the configuration do not fit together, or no model can be loaded.
    """
    overrides = parse_overrides(options.model.config, config_class_of(options.model, options.task.config_class))
    try:
        model = _make_model(options, tokenizer, overrides)
        _check_positions(options, model)
        return model
    except InputError:
        raise  # it says already what is wrong, and in which file
    except (StrictDataclassError, ValueError, OSError) as error:
        raise InputError(f"no model can be made: {error}") from error


def _make_model(
    options: "TrainOptions", tokenizer: PreTrainedTokenizerBase, overrides: dict[str, Any]
) -> PreTrainedModel:
    if options.model.model_name_or_path:
        return pretrained_for_task(options, len(tokenizer), overrides)
    if options.model.pretrained:
        return pair_of_stacks(options, tokenizer, overrides)
    fields = {} if options.model.has_size else options.task.new_model
    return _new_model(options, tokenizer, {**fields, **options.task.config_fields(), **overrides})


def _check_positions(options: "TrainOptions", model: PreTrainedModel) -> None:
    """Refuse texts longer than a table of learned positions, before the first long one stops the training."""
    rows = []
    for name, table in model.named_modules():
        if isinstance(table, nn.Embedding) and ("position" in name or name.endswith("wpe")):
            before = 0 if table.padding_idx is None else table.padding_idx + 1  # RoBERTa counts from there
            rows.append(table.num_embeddings - max(before, getattr(table, "offset", 0)))  # BART's first two are unused
    for name in ("max_length", "max_source_length", "max_target_length", "block_size"):
        length = getattr(options.task.args, name, 0)
        if rows and length > min(rows):
            raise InputError(f"--{name} {length} is more than the model has positions for; give at most {min(rows)}")


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
