"""A training run: task, data, model, training and card, as `run.yaml` describes them.

The command line, a file and a program create the same object. Nothing here imports torch.
"""

import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import yaml

from ..errors import InputError, check_model_name, did_you_mean
from ..output import complete_file
from .common import (
    ModelArguments,
    PublishingOptions,
    TrainingOptions,
)
from .parser import CommandParser, Given
from .tasks import TASK_ARGUMENTS, TaskArguments
from .values import assignments, shown_value, words_of

RUN_FILE = "run.yaml"
# The options that are paths. In the file they are relative to its directory, so that a folder with
# data and models can be moved.
_FILES = ("train_file", "validation_file", "test_file", "output_dir")
# The options that name a model or a dataset, by its directory or by its name on the Hub.
HUB_NAMES = (
    "model_name_or_path",
    "tokenizer",
    "dataset_name",
)
# Options of all tasks that `--help` shows, in addition to those of the task.
_USUAL_OPTIONS = (
    "train_file",
    "validation_file",
    "test_file",
    "model_name_or_path",
    "size",
    "output_dir",
    "overwrite_output_dir",
    "num_train_epochs",
    "per_device_train_batch_size",
    "learning_rate",
)
# The options that determine the output directory, the card, progress bars and the final evaluation.
# They may change when a training continues; all others must stay the same.
_NOT_COMPARED = {
    "test_file",
    "output_dir",
    "overwrite_output_dir",
    "keep_checkpoints",
    "disable_tqdm",
    *(option.name for option in fields(PublishingOptions)),
}


@dataclass
class Run:
    """The options of one training, as they were given.

    Args:
        data, model, training, card: The options by group.
        whole: The run that the card and `run.yaml` describe, if this one is a part of it: the run of
            all seeds.
        filled: The training options that `with_defaults` of `training/defaults.py` has filled in.
    """

    data: TaskArguments
    model: ModelArguments
    training: TrainingOptions
    card: PublishingOptions = field(default_factory=PublishingOptions)
    whole: "Run | None" = None
    filled: frozenset[str] = frozenset()

    def __post_init__(self):
        self.data.check_combination(self.model, self.training)

    @property
    def task(self) -> str:
        """The name of the task."""
        return self.data.task

    @property
    def output_dir(self) -> Path:
        """The directory of the finished model."""
        return Path(self.training.output_dir)

    @property
    def checkpoints(self) -> Path:
        """The directory of the checkpoints while the model is trained."""
        return self.output_dir.with_name(f"{self.output_dir.name}.training")

    @property
    def tokenizer_source(self) -> str | None:
        """The directory or name of an existing tokenizer to use; None if a new one is trained."""
        return self.model.tokenizer or self.model.model_name_or_path

    @property
    def joins_baseline(self) -> bool:
        """Whether a baseline is to join the answer of the model, if the task has one."""
        wanted = getattr(self.data, "join_baseline", None)
        return self.model.model_name_or_path is None if wanted is None else wanted

    def content(self) -> dict[str, Any]:
        """The task, and the options that differ from their defaults."""
        found = {"task": self.task}
        for options in (self.data, self.model, self.training, self.card):
            found |= _given(options)
        return found

    def save(self, folder: Path) -> None:
        """Write `run.yaml` into `folder`, which is the output directory or a directory next to
        it."""
        # This import loads torch.
        from hf_roformer_lite.version import __version__

        base = _absolute(str(self.output_dir))

        def relative(path: str) -> str:
            return os.path.relpath(_absolute(path), base)

        content = _with_paths(self.content(), relative)
        # A training that is repeated needs another directory.
        del content["output_dir"]
        text = yaml.safe_dump(content, sort_keys=False, allow_unicode=True)
        head = (
            f"# Written by roformer-lite {__version__}.\n"
            f"# `roformer-lite train {RUN_FILE} --output_dir OTHER` repeats this training.\n"
            "# Paths are relative to this file. All other options have their defaults, which\n"
            f"# `roformer-lite train {self.task} --help` lists.\n"
        )
        with complete_file(folder / RUN_FILE) as stream:
            stream.write(head + text)

    def command(self) -> str:
        """The command line of this run in a form suited to a public card."""
        options = self.content()
        words = ["roformer-lite", "train", options.pop("task"), *command_words(options)]
        return shown_command(words)

    def difference(self, before: Mapping[str, Any]) -> str:
        """The options that differ from those of an interrupted training; empty if the training may
        continue.

        Args:
            before: The interrupted training, as `read_run_file` returns it.
        """
        now = _compared(_with_paths(self.content(), _absolute))
        then = _compared(before)
        return ", ".join(
            f"--{name} was {_shown(then.get(name))} and is {_shown(now.get(name))}"
            for name in {**then, **now}
            if then.get(name) != now.get(name)
        )


def parse_run(task: str, options: Given) -> Run:
    """The run that the options of `roformer-lite train` describe. torch is not imported, so that
    `--help` and error messages appear quickly.

    Args:
        task: The name of a task, or the path of a `run.yaml`.
        options: The words of a command line, or values by name. They override the options in the
            file.

    Raises:
        InputError: for an invalid value, for options that are missing or can't be combined, and for
            a model or tokenizer that does not exist.
    """
    values: dict[str, Any] = {}
    path = task
    if task.endswith((".yaml", ".yml")):
        values = read_run_file(path)
        task = values.pop("task")
    elif task not in TASK_ARGUMENTS:
        raise InputError(
            f"{task} is not a task; choose one of {', '.join(TASK_ARGUMENTS)}, or pass a file such "
            f"as run.yaml{did_you_mean(task, TASK_ARGUMENTS)}"
        )
    parser = _task_parser(task, shows_all=not {"--help-all", "--help_all"}.isdisjoint(options))
    try:
        parser.check_names(values)
    except InputError as error:
        raise InputError(f"{path}: {error}") from error
    given = parser.given(options)
    for name in ("config", "training_arguments"):
        if name in given and name in values:
            # Each name overrides the same name of the file.
            given[name] = assignments(values[name]) | assignments(given[name])
    data, model, training, card = parser.objects(values | given)
    run = Run(data=data, model=model, training=training, card=card)
    for option in ("model_name_or_path", "tokenizer"):
        model_name = getattr(model, option)
        if model_name is not None:
            check_model_name(model_name, f"--{option} {model_name}")
    return run


def _task_parser(task: str, shows_all: bool) -> CommandParser:
    """The parser of `roformer-lite train TASK`."""
    arguments = TASK_ARGUMENTS[task]
    usual = () if shows_all else (*arguments.usual_options, *_USUAL_OPTIONS)
    return CommandParser(
        f"train {task}",
        f"Train a model for {arguments.summary}.",
        [arguments, ModelArguments, TrainingOptions, PublishingOptions],
        example=f"{arguments.example} --output_dir model",
        usual=usual,
        epilog=(
            "All fields of transformers' TrainingArguments that are not options of this command, "
            "such as lr_scheduler_type or eval_strategy, are set by --training_arguments name=value."
        ),
        advice=(
            ". Fields of transformers' TrainingArguments are set by --training_arguments name=value"
        ),
    )


def read_run_file(path: str | Path) -> dict[str, Any]:
    """The content of a `run.yaml` with absolute paths. The options are checked later.

    Raises:
        InputError: if the file can't be read or does not name a task.
    """
    try:
        content = yaml.safe_load(Path(path).read_text("utf-8"))
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        raise InputError(f"{path} cannot be read: {' '.join(str(error).split())}") from error
    if not isinstance(content, dict) or str(content.get("task")) not in TASK_ARGUMENTS:
        raise InputError(
            f"{path}: it must have a line such as `task: classify`, with one of "
            f"{', '.join(TASK_ARGUMENTS)}"
        )
    folder = os.path.realpath(os.path.dirname(path))
    return _with_paths(
        content, lambda path: os.path.normpath(os.path.join(folder, path)), folder=folder
    )


def _with_paths(
    content: Mapping[str, Any], convert: Callable[[str], str], folder: str = ""
) -> dict[str, Any]:
    """The content of a run with converted paths.

    Args:
        content: The content of a file or a run.
        convert: Converts a path.
        folder: The directory of relative paths. A model or a dataset that is not a directory there
            is a name on the Hub, and is not converted.
    """
    found = dict(content)
    for name in (*_FILES, *HUB_NAMES):
        value = content.get(name)
        if name in HUB_NAMES and not os.path.isdir(os.path.join(folder, str(value))):
            continue
        if isinstance(value, list):
            found[name] = [convert(str(path)) for path in value]
        elif value is not None:
            found[name] = convert(str(value))
    return found


def _absolute(path: str) -> str:
    """An absolute path. Links to directories are followed, but the file keeps its own name, because
    the suffix determines its format."""
    folder, name = os.path.split(os.path.abspath(path))
    return os.path.join(os.path.realpath(folder), name)


def command_words(options: Mapping[str, Any]) -> list[str]:
    """Options and their values as the words of a command line."""
    return [word for name, value in options.items() for word in (f"--{name}", *words_of(value))]


def _given(options: Any) -> dict[str, Any]:
    """The fields of a dataclass that differ from their defaults."""
    values = {option.name: getattr(options, option.name) for option in fields(options)}
    return {
        option.name: values[option.name]
        for option in fields(options)
        # The default of every list and mapping is empty.
        if values[option.name] not in (option.default, [], {})
    }


def _compared(content: Mapping[str, Any]) -> dict[str, Any]:
    """The options that must be the same in a continued training, including transformers'
    own arguments."""
    flat = dict(content)
    flat |= flat.pop("training_arguments", {})
    return {name: value for name, value in flat.items() if name not in _NOT_COMPARED}


def _shown(value: Any) -> str:
    return "the default" if value is None else shown_value(value)


def shown_command(words: Sequence[str]) -> str:
    """A command line in a form suited to a public card: absolute paths are reduced to their last
    part."""

    def without_directory(word: str) -> str:
        # An argument of transformers may be a path as well, such as `deepspeed=/home/me/ds.json`.
        name, equals, value = word.rpartition("=")
        path = Path(value)
        is_path = path.is_absolute() or value.startswith("~")
        return f"{name}{equals}{path.name}" if is_path and path.name.strip() else word

    return shlex.join(map(without_directory, words))
