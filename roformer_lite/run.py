"""A training as a whole, which `run.yaml` describes: task, data, model, training and card.

The command line, a file and a program make the same object. Nothing here imports torch.
"""

import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any

import yaml

from .command_parser import CommandParser, Value
from .errors import InputError, check_model_name, did_you_mean
from .options import ModelArguments, PublishingOptions, TrainingOptions, assignment_of
from .output import write_whole_file
from .task_options import TASK_ARGUMENTS, TaskArguments

RUN_FILE = "run.yaml"
# Options that hold paths. In the file these are relative to its directory, so that a folder with
# data and models can be moved.
_FILES = ("train_file", "validation_file", "test_file", "output_dir")
# Options that hold the directory of a model, or its name on the Hub.
_MODELS = ("model_name_or_path", "encoder_name_or_path", "tokenizer", "teacher")
# Options that say where the result goes, how it is shown and what is measured at the end. When a
# training continues they may have other values; all else must be the same.
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
    """All options of one training, as they were given."""

    data: TaskArguments
    model: ModelArguments
    training: TrainingOptions
    card: PublishingOptions = field(default_factory=PublishingOptions)
    # The command as a card shows it, if another one than `train` made this run.
    shown: str = ""
    # The options of training that `with_defaults` of `train/defaults.py` has given their values.
    filled: frozenset[str] = frozenset()

    def __post_init__(self):
        self.data.check_combination(self.model, self.training)

    @property
    def task(self) -> str:
        """The name of the task."""
        return self.data.task

    @property
    def output_dir(self) -> Path:
        """Where the finished model will be."""
        return Path(self.training.output_dir)

    @property
    def checkpoints(self) -> Path:
        """Where the checkpoints are while the model is trained."""
        return self.output_dir.with_name(f"{self.output_dir.name}.training")

    @property
    def tokenizer_source(self) -> str | None:
        """The name of the tokenizer that is taken as it is; None where one is trained."""
        given = self.model.tokenizer or next(iter(self.model.pretrained), None)
        if given or self.model.new_tokenizer:
            return given
        return getattr(self.data, "teacher", None)

    @property
    def begins_with_teachers_tokens(self) -> bool:
        """Whether a new model has the tokenizer of its teacher, and so vectors of tokens to begin
        with."""
        teacher = getattr(self.data, "teacher", None)
        is_new = not self.model.pretrained
        return teacher is not None and is_new and self.tokenizer_source == teacher

    def content(self) -> dict[str, Any]:
        """The task, and the options that differ from their defaults."""
        found = {"task": self.task}
        for options in (self.data, self.model, self.training, self.card):
            found |= _given(options)
        return found

    def save(self, folder: Path) -> None:
        """Write `run.yaml` into `folder`, the output directory or one next to it."""
        # The package of the version imports torch.
        from hf_roformer_lite.version import __version__

        base = _absolute(str(self.output_dir))

        def relative(path: str, may_be_name: bool) -> str:
            found = _absolute(path, may_be_name)
            return os.path.relpath(found, base) if os.path.isabs(found) else found

        content = _with_paths(self.content(), relative)
        # A training that is repeated needs another directory.
        del content["output_dir"]
        text = yaml.safe_dump(
            content, sort_keys=False, allow_unicode=True, default_flow_style=False
        )
        head = (
            f"# Written by roformer-lite {__version__}.\n"
            f"# `roformer-lite train {RUN_FILE} --output_dir OTHER` repeats this training. Paths\n"
            "# are relative to this file. Options that are not here have their defaults;\n"
            f"# `roformer-lite train {self.task} --help` lists all.\n"
        )
        write_whole_file(folder / RUN_FILE, head + text)

    def command(self) -> str:
        """The command line of this run as a public card may show it."""
        if self.shown:
            return self.shown
        return shown_command(["roformer-lite", "train", self.task, *as_arguments(self.content())])

    def difference(self, before: Mapping[str, Any]) -> str:
        """The options that differ from those of an interrupted training; empty if it may continue.

        Args:
            before: As from `read_run_file`.
        """
        now = _compared(_with_paths(self.content(), _absolute))
        then = _compared(before)
        return ", ".join(
            f"--{name} was {_shown(then.get(name))} and is {_shown(now.get(name))}"
            for name in {**then, **now}
            if then.get(name) != now.get(name)
        )


class _Parser(CommandParser):
    def unknown_message(self, word: str) -> str:
        message = super().unknown_message(word)
        if "did you mean" in message:
            return message
        return (
            f"{message}. Fields of transformers' TrainingArguments are given by "
            "--training_arguments name=value"
        )


def parse_run(task: str, argv: Sequence[str]) -> Run:
    """The run that a command line describes. No torch is imported, so that `--help` and mistakes
    are answered soon.

    Args:
        task: A task, or the path of a `run.yaml`.
        argv: Options, which override those of the file.

    Raises:
        InputError: for a value that is impossible, for options that are missing or can't be
            combined, and for a model or tokenizer that is nowhere.
    """
    content: dict[str, Any] = {}
    path = task
    if task.endswith((".yaml", ".yml")):
        content = read_run_file(path)
        task = content["task"]
    elif task not in TASK_ARGUMENTS:
        raise InputError(
            f"{task} is no task; give one of {', '.join(TASK_ARGUMENTS)}, or a file such as "
            f"run.yaml{did_you_mean(task, TASK_ARGUMENTS)}"
        )
    arguments = TASK_ARGUMENTS[task]
    parser = _Parser(
        f"train {task}",
        f"Train a model for {arguments.summary}.",
        [arguments, arguments.model_arguments, TrainingOptions, PublishingOptions],
    )
    parser.epilog = (
        "All fields of transformers' TrainingArguments that are no options here, such as "
        "lr_scheduler_type or eval_strategy, are set by --training_arguments name=value."
    )
    for name in content:
        if name != "task" and name not in parser.names:
            raise InputError(f"{path}: {parser.unknown_message(f'--{name}')}")
    data, model, training, card = parser.parse([*as_arguments(content), *argv])
    run = Run(data=data, model=model, training=training, card=card)
    for options, option in ((model, "model_name_or_path"), (model, "tokenizer"), (data, "teacher")):
        name = getattr(options, option, None)
        if name is not None:
            check_model_name(name, f"--{option} {name}")
    return run


def read_run_file(path: str | Path) -> dict[str, Any]:
    """The content of a `run.yaml`, with absolute paths. A parser checks its options.

    Raises:
        InputError: when it can't be read, or names no task.
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

    def absolute(path: str, may_be_name: bool) -> str:
        found = os.path.normpath(os.path.join(folder, path))
        return path if may_be_name and not os.path.isdir(found) else found

    return _with_paths(content, absolute)


def _with_paths(content: Mapping[str, Any], convert: Callable[[str, bool], str]) -> dict[str, Any]:
    """The content of a run with converted paths.

    Args:
        content: Of a file or a run.
        convert: Takes a path, and whether it may also be a name on the Hub.
    """
    found = dict(content)
    for name in (*_FILES, *_MODELS):
        value = content.get(name)
        may_be_name = name in _MODELS
        if isinstance(value, list):
            found[name] = [convert(str(path), may_be_name) for path in value]
        elif value is not None:
            found[name] = convert(str(value), may_be_name)
    return found


def _absolute(path: str, may_be_name: bool = False) -> str:
    """An absolute path without links, but for that of the file itself, whose name has its format."""
    if may_be_name and not os.path.isdir(path):
        return path
    folder, name = os.path.split(os.path.abspath(path))
    return os.path.join(os.path.realpath(folder), name)


def as_arguments(content: Mapping[str, Any]) -> list[str]:
    """The options of a `run.yaml` as the command line has them."""
    words: list[str] = []
    for name, value in content.items():
        if isinstance(value, dict):
            value = [assignment_of(*argument) for argument in value.items()]
        if name == "task" or value in (None, []):
            continue
        words.append(f"--{name}")
        for one in value if isinstance(value, list) else [value]:
            words.append(Value(str(one).lower() if isinstance(one, bool) else one))
    return words


def _given(options: Any) -> dict[str, Any]:
    """The fields of a dataclass that differ from their defaults; arguments of transformers by
    name."""
    found = {}
    for option in fields(options):
        default = option.default if option.default_factory is MISSING else option.default_factory()
        value = getattr(options, option.name)
        if value != default:
            found[option.name] = value
    if "training_arguments" in found:
        found["training_arguments"] = options.stock
    return found


def _compared(content: Mapping[str, Any]) -> dict[str, Any]:
    """The options that a continued training must share, arguments of transformers among them."""
    flat = dict(content)
    flat |= flat.pop("training_arguments", {})
    return {name: value for name, value in flat.items() if name not in _NOT_COMPARED}


def _shown(value: Any) -> str:
    if value is None:
        return "the default"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return " ".join(map(str, value))
    return str(value)


def shown_command(words: Sequence[str]) -> str:
    """A command line as a public card may show it: of absolute paths the last part alone."""

    def without_directory(word: str) -> str:
        path = Path(word)
        is_path = path.is_absolute() or word.startswith("~")
        return path.name if is_path and path.name.strip() else word

    return shlex.join(map(without_directory, words))
