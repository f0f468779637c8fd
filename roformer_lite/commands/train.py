"""`roformer-lite train TASK …` or `roformer-lite train run.yaml …`: train a model on a person's own
data."""

import argparse
from collections.abc import Sequence
from typing import Any

from ..command_parser import CommandParser
from ..errors import (
    TRAINING_PACKAGES,
    InputError,
    check_model_name,
    did_you_mean,
    require_packages,
)
from ..options import PublishingOptions, TrainingOptions
from ..run import Run, as_arguments, read_run_file
from ..task_options import TASK_ARGUMENTS


def main(argv: list[str]) -> None:
    """Run `roformer-lite train`."""
    width = max(map(len, TASK_ARGUMENTS))
    tasks = "\n".join(
        f"  {name:{width}}  {arguments.summary}" for name, arguments in TASK_ARGUMENTS.items()
    )
    parser = argparse.ArgumentParser(
        prog="roformer-lite train",
        description="Train a model on your own data.",
        usage="roformer-lite train TASK|run.yaml [--OPTION VALUE ...]",
        epilog=(
            f"tasks:\n{tasks}\n\n`roformer-lite train TASK --help` lists the options. The file "
            "run.yaml, which every\ntraining writes with its model, repeats that training; options "
            "after it override it."
        ),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "task", metavar="TASK|run.yaml", help="a task, or the description of a training"
    )
    task = parser.parse_args(argv[:1]).task
    run = parse_run(task, argv[1:])
    require_packages("training", TRAINING_PACKAGES | run.data.packages)
    from ..train.seeds import train_seeds
    from ..train.train import train

    if run.training.seeds:
        train_seeds(run)
    else:
        train(run)


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
