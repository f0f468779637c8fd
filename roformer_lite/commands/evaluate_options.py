"""The options of `roformer-lite evaluate`."""

from collections.abc import Sequence
from dataclasses import dataclass, field, make_dataclass
from typing import Any, get_type_hints

from ..errors import (
    TRAINING_PACKAGES,
    InputError,
    check_file,
    check_model_name,
    check_number,
    require_packages,
)
from ..options.common import TableArguments
from ..options.models import MODEL_HELP, DeviceArguments
from ..options.parser import CommandParser, help_texts
from ..options.tasks import LENGTH_OPTIONS, TASK_ARGUMENTS


@dataclass
class EvaluateArguments(TableArguments, DeviceArguments):
    """Options of `roformer-lite evaluate`, except the model directory and `measuring_arguments`.

    Args:
        test_file: Labelled data: .tsv, .csv, .jsonl or .txt, also .gz; several are read one after
            another.
        batch_size: Rows in a batch. Default: the same as in the evaluation after training,
            otherwise 64.
    """

    test_file: list[str] | None = None
    batch_size: int | None = None

    def __post_init__(self):
        super().__post_init__()
        if self.test_file is None:
            raise InputError("pass --test_file, the labelled data")
        for path in self.test_file:
            check_file("test_file", path)
        check_number("batch_size", self.batch_size, minimum=1)


def measuring_arguments() -> type:
    """A dataclass of the options of `train` that determine how labelled data are read and
    evaluated, for all tasks together, except lengths. None stands for the value in the model's
    training."""
    tasks: dict[str, list[str]] = {}
    for task, arguments in TASK_ARGUMENTS.items():
        for name in arguments.measuring_options:
            if name not in LENGTH_OPTIONS:
                tasks.setdefault(name, []).append(task)
    options = []
    for name, of_tasks in tasks.items():
        arguments = TASK_ARGUMENTS[of_tasks[0]]
        help = f"{', '.join(of_tasks)}: {help_texts(arguments).get(name)}"
        hint = get_type_hints(arguments)[name] | None
        options.append((name, hint, field(default=None, metadata={"help": help})))
    group = "reading and measuring (default for models of `train`: as in their training)"
    return make_dataclass("MeasuringArguments", options, namespace={"group": group})


def parse(words: Sequence[str]) -> tuple[EvaluateArguments, dict[str, Any], str]:
    """The own options of `roformer-lite evaluate`, the given options about reading and evaluating
    data, and the directory of the model."""
    parser = CommandParser(
        "evaluate",
        "Evaluate a trained model on labelled data: the metrics of its model card, scores by "
        "label, and the worst predictions.",
        [EvaluateArguments, measuring_arguments()],
        DIR=MODEL_HELP,
    )
    own, measuring, directory = parser.parse(words)
    given = {name: value for name, value in vars(measuring).items() if value is not None}
    require_packages("evaluating", TRAINING_PACKAGES)
    check_model_name(directory)
    return own, given, directory
