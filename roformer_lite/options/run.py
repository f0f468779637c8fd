"""A training run: task, data, model, training and card, as `run.yaml` describes them.

The command line, a file and a program create the same object. Nothing here imports torch.
"""

import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import yaml

from ..errors import TRAINING_PACKAGES, InputError, did_you_mean, require_packages
from ..output import complete_file
from .common import (
    ModelArguments,
    PublishingOptions,
    TrainingOptions,
    given_options,
)
from .parser import CommandParser
from .tasks import TASK_ARGUMENTS, TaskArguments
from .values import command_words

RUN_FILE = "run.yaml"
# The options that name a model or a dataset, by its directory or by its name on the Hub.
HUB_NAMES = (
    "model_name_or_path",
    "tokenizer",
    "dataset_name",
)


@dataclass(frozen=True)
class Run:
    """The options of one training, as they were given.

    Args:
        data, model, training, card: The options by group.
        filled: The options that `with_defaults` of `training/defaults.py` has filled in.
    """

    data: TaskArguments
    model: ModelArguments
    training: TrainingOptions
    card: PublishingOptions = field(default_factory=PublishingOptions)
    filled: frozenset[str] = frozenset()

    def __post_init__(self):
        self.data.check_combination(self.training)
        target = Path(os.path.realpath(self.output_dir))
        options = self.content()
        for name in HUB_NAMES:
            folder = options.get(name)
            if folder and Path(os.path.realpath(folder)) in target.parents:
                raise InputError(
                    f"--output_dir {self.output_dir} lies within --{name} {folder}, whose files "
                    "the training reads; choose a directory outside of it"
                )

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
    def joins_baseline(self) -> bool:
        """Whether a baseline is to join the answer of the model, if the task has one."""
        wanted = getattr(self.data, "join_baseline", None)
        return self.model.model_name_or_path is None if wanted is None else wanted

    def content(self) -> dict[str, Any]:
        """The task, and the options that differ from their defaults."""
        found = {"task": self.task}
        for options in (self.data, self.model, self.training, self.card):
            found |= given_options(options)
        # Whoever repeats this run has not agreed to replace a model of their own.
        found.pop("overwrite_output_dir", None)
        return found

    @property
    def given(self) -> set[str]:
        """The names of the options that were given."""
        return self.content().keys() - self.filled

    def save(self, folder: Path) -> None:
        """Write `run.yaml` into `folder`."""
        content = self.content()
        # A training that is repeated needs another directory.
        del content["output_dir"]
        text = yaml.safe_dump(content, sort_keys=False, allow_unicode=True)
        head = (
            f"# Written by roformer-lite {version('hf_roformer_lite')}.\n"
            f"# `roformer-lite train {RUN_FILE} --output_dir OTHER` repeats this training in the\n"
            "# same working directory. All other options have their defaults, which\n"
            f"# `roformer-lite train {self.task} --help` lists.\n"
        )
        with complete_file(folder / RUN_FILE) as stream:
            stream.write(head + text)

    def command(self) -> str:
        """The command line of this run in a form suited to a public card."""
        options = self.content()
        words = ["roformer-lite", "train", options.pop("task"), *command_words(options)]
        return shlex.join(map(without_directory, words))


def parse_run(task: str, words: Sequence[str], *others: Mapping[str, Any]) -> Run:
    """The run that the options of `roformer-lite train` describe. torch is not imported, so that
    `--help` and error messages appear quickly.

    Args:
        task: The name of a task, or the path of a `run.yaml`.
        words: The words of the command line after the task.
        *others: Further values by the names of their options. They override those of the file,
            and the words override both; mappings add to them.

    Raises:
        InputError: for an invalid value, for options that are missing or can't be combined, and for
            packages that the training needs and that are not installed.
    """
    of_file: Any = {"task": task}
    if task.endswith((".yaml", ".yml")):
        try:
            of_file = yaml.safe_load(Path(task).read_text("utf-8"))
        except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
            raise InputError(f"{task} cannot be read: {' '.join(str(error).split())}") from error
    name = str(of_file.pop("task", "")) if isinstance(of_file, dict) else ""
    if name not in TASK_ARGUMENTS:
        raise InputError(
            f"{name or task} is not a task; choose one of {', '.join(TASK_ARGUMENTS)}, or pass a "
            "file such as run.yaml, in which a line such as `task: classify` names the task"
            f"{did_you_mean(name, TASK_ARGUMENTS)}"
        )
    arguments = TASK_ARGUMENTS[name]
    parser = CommandParser(
        f"train {name}",
        f"Train a model. Task: {arguments.summary}",
        [arguments, ModelArguments, TrainingOptions, PublishingOptions],
    )
    data, model, training, card = parser.parse(words, of_file, *others)
    run = Run(data=data, model=model, training=training, card=card)
    require_packages("training", (*TRAINING_PACKAGES, *run.data.packages))
    return run


def without_directory(word: str) -> str:
    """A word of a command line, in which an absolute path is reduced to its last part."""
    # An argument of transformers may be a path as well, such as `deepspeed=/home/me/ds.json`.
    name, equals, value = word.rpartition("=")
    path = Path(value)
    is_path = path.is_absolute() or value.startswith("~")
    return f"{name}{equals}{path.name}" if is_path and path.name.strip() else word
