"""A training as a whole, which `run.yaml` describes: task, data, model, training and publishing.

The command line, a file and a program make the same object. Nothing here imports torch.
"""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import yaml

from ..errors import InputError
from ..output import RESULTS_FILE, write_whole_file
from ..tasks.task_arguments import TASK_ARGUMENTS, TaskArguments
from .options import ModelArguments, PublishingOptions, TrainingOptions, assignment_of

RUN_FILE = "run.yaml"
_SECTIONS = ("data", "model", "training", "card")  # of the file, and fields of `Run`
# These options say only what becomes of the output of a run, how it is shown and tested, as all of
# `card` does. A training that continues may have other values; all else must be the same.
_NOT_COMPARED = (
    "test_file",
    "overwrite_output_dir",
    "keep_checkpoints",
    "disable_tqdm",
)

_DEFAULTS = {
    "learning_rate": 5e-4,
    "warmup_steps": 0.06,
    "per_device_train_batch_size": 32,
    "num_train_epochs": None,  # as many as the size of the data suggests
    "word_dropout": 0.0,
    "ema_decay": 0.0,
}
# Weights learned from much text are lost at the rate of a new model. Those that this command has
# trained from scratch on a person's own text stand closer to their beginning, and need a higher
# rate.
_FINE_TUNING = {
    "learning_rate": 1e-4,
    "num_train_epochs": 4.0,
    "warmup_steps": 0.1,
    "word_dropout": 0.0,
    "ema_decay": 0.0,
}
_RATE_OF_OWN_WEIGHTS = 3e-4
# Tokens of a text to classify. Short ones cost nothing more; what pretrained models need of memory
# grows with it.
_LONGEST_TEXT, _LONGEST_FINE_TUNED = 2048, 256


@dataclass
class Run:
    """All options of one training, as they were given."""

    data: TaskArguments
    model: ModelArguments
    training: TrainingOptions
    card: PublishingOptions = field(default_factory=PublishingOptions)
    shown: str = ""  # the command as a card shows it, where another one made this run
    # options of training that `with_defaults` has given their values
    filled: frozenset[str] = frozenset()

    def __post_init__(self):
        self.data.check_beside(self.model, self.training)

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

    # as a file

    def content(self) -> dict[str, Any]:
        """What `run.yaml` holds: the options that differ from their defaults, in sections."""
        return {"task": self.task, **{name: _given(getattr(self, name)) for name in _SECTIONS}}

    def save(self, folder: Path) -> None:
        """Write `run.yaml` into `folder`."""
        from hf_roformer_lite.version import __version__  # whose package imports torch

        sections = {name: part for name, part in self.content().items() if part}
        head = (
            f"# Written by roformer-lite {__version__}. `roformer-lite train {RUN_FILE} --output_dir OTHER` repeats "
            "this training.\n# Options that are not here have their defaults; `roformer-lite train TASK --help` lists "
            "all.\n"
        )
        text = yaml.safe_dump(
            sections, sort_keys=False, allow_unicode=True, default_flow_style=False
        )
        write_whole_file(folder / RUN_FILE, head + text)

    def command(self) -> str:
        """The command line of this run as a public card may show it."""
        return self.shown or shown_command(
            ["roformer-lite", "train", self.task, *as_arguments(self.content())]
        )

    # compared

    def difference(self, before: Mapping[str, Any]) -> str:
        """What this run has otherwise than the one of `before`, the content of another `run.yaml`,
        as options; empty where an interrupted training may continue."""
        now, then = _compared(self.content()), _compared(before)
        return ", ".join(
            f"--{name} was {_shown(then.get(name))} and is {_shown(now.get(name))}"
            for name in {**then, **now}
            if then.get(name) != now.get(name)
        )

    # with defaults

    def own_weights(self) -> bool:
        """Whether all weights are trained by this command, from scratch, now or before."""
        from ..saved_model import read_optional_object  # which imports torch

        found = [
            read_optional_object(name, RESULTS_FILE).get("training")
            for name in self.model.pretrained
        ]
        return all(
            isinstance(training, dict) and training.get("own_weights") is True for training in found
        )

    def default_values(self) -> dict[str, Any]:
        """The values of the options of training that were not given and whose defaults depend on
        task and model."""
        values = {**_DEFAULTS, **self.data.training_defaults}
        if self.model.pretrained:
            values |= _FINE_TUNING
            if self.own_weights():
                values["learning_rate"] = _RATE_OF_OWN_WEIGHTS
        return {
            name: value for name, value in values.items() if getattr(self.training, name) is None
        }

    def fine_tuning_defaults(self) -> list[str]:
        """The options that were not given and have a default of their own in fine-tuning."""
        is_fine_tuning = bool(self.model.pretrained)
        return [
            name for name in _FINE_TUNING if is_fine_tuning and getattr(self.training, name) is None
        ]

    def with_defaults(self) -> "Run":
        """The same run with those values filled in, and the longest text of a task that leaves it
        open."""
        longest: dict[str, Any] = {}
        if getattr(self.data, "max_length", _LONGEST_TEXT) is None:
            longest["max_length"] = _LONGEST_FINE_TUNED if self.model.pretrained else _LONGEST_TEXT
        values = self.default_values()
        training = replace(self.training, **values)
        return replace(
            self, data=replace(self.data, **longest), training=training, filled=frozenset(values)
        )


def read_run_file(path: str | Path) -> dict[str, Any]:
    """The content of a `run.yaml`, whose options a parser checks.

    Raises:
        InputError: when it can't be read, or names no task or another section.
    """
    try:
        content = yaml.safe_load(Path(path).read_text("utf-8"))
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        raise InputError(f"{path} cannot be read: {' '.join(str(error).split())}") from error
    if not isinstance(content, dict) or str(content.get("task")) not in TASK_ARGUMENTS:
        raise InputError(
            f"{path}: it must have a line such as `task: classify`, with one of {', '.join(TASK_ARGUMENTS)}"
        )
    for name, part in content.items():
        if name != "task" and (name not in _SECTIONS or not isinstance(part or {}, dict)):
            raise InputError(
                f"{path}: {name} is no section; options are lines `name: value` of {', '.join(_SECTIONS)}"
            )
    return content


def as_arguments(content: Mapping[str, Any]) -> list[str]:
    """The options of a `run.yaml` as the command line has them."""
    words: list[str] = []
    for section in _SECTIONS:
        for name, value in (content.get(section) or {}).items():
            if isinstance(value, dict):
                value = [assignment_of(*argument) for argument in value.items()]
            if value not in (None, []):
                values = value if isinstance(value, list) else [value]
                words += [
                    f"--{name}",
                    *(str(one).lower() if isinstance(one, bool) else str(one) for one in values),
                ]
    return words


def _given(options: Any) -> dict[str, Any]:
    """The fields of a dataclass that differ from their defaults; arguments of transformers by
    name."""
    found = {}
    for option in fields(options):
        default = option.default if option.default_factory is MISSING else option.default_factory()
        if getattr(options, option.name) != default:
            found[option.name] = getattr(options, option.name)
    return found | ({"training_arguments": options.stock} if "training_arguments" in found else {})


def _compared(content: Mapping[str, Any]) -> dict[str, Any]:
    """The options that a continued training must share, all by their names."""
    flat = {"task": content.get("task")}
    for section in ("data", "model", "training"):
        flat |= content.get(section) or {}
    flat |= flat.pop("training_arguments", {})
    return {name: value for name, value in flat.items() if name not in _NOT_COMPARED}


def _shown(value: Any) -> str:
    if value is None:
        return "the default"
    return (
        " ".join(map(str, value))
        if isinstance(value, Sequence) and not isinstance(value, str)
        else str(value)
    )


def shown_command(words: Sequence[str]) -> str:
    """A command line as a public card may show it: of absolute paths the last part alone."""

    def without_directory(word: str) -> str:
        path = Path(word)
        is_path = path.is_absolute() or word.startswith("~")
        return path.name if is_path and path.name.strip() else word

    return shlex.join(map(without_directory, words))
