"""`roformer-lite train TASK …` or `roformer-lite train run.yaml …`: train a model on a person's own
data."""

import argparse
import difflib
from collections.abc import Sequence
from typing import NoReturn

from ..errors import TRAINING_PACKAGES, InputError, check_model_name, require_packages
from ..tasks.task_arguments import TASK_ARGUMENTS
from ..train.options import PublishingOptions, TrainingOptions
from ..train.run import Run, as_arguments, read_run_file
from .command_parser import CommandParser


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
        epilog=f"tasks:\n{tasks}\n\n`roformer-lite train TASK --help` lists the options. The file run.yaml, which "
        "every training writes beside its model, repeats that training; options after it override what it says.",
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

    train_seeds(run) if run.training.seeds else train(run)


class _Parser(CommandParser):
    def error(self, message: str) -> NoReturn:
        if message.startswith("unrecognized") and "did you mean" not in message:
            message += "; fields of transformers' TrainingArguments are given by --training_arguments name=value"
        super().error(message)


def parse_run(task: str, argv: Sequence[str]) -> Run:
    """The run that a command line describes. No torch is imported, so that `--help` and mistakes
    are answered at once.

    Args:
        task: A task, or the path of a `run.yaml`.
        argv: Options, which override those of the file.

    Raises:
        InputError: for a value that is impossible, for options that are missing or can't be
            combined, and for a model or tokenizer that is nowhere.
    """
    path, of_file = None, []
    if task not in TASK_ARGUMENTS:
        if not task.endswith((".yaml", ".yml")):
            close = difflib.get_close_matches(task, TASK_ARGUMENTS, n=1)
            hint = f"; did you mean {close[0]}?" if close else ""
            known = ", ".join(TASK_ARGUMENTS)
            raise InputError(
                f"{task} is no task; give one of {known}, or a file such as run.yaml{hint}"
            )
        path, content = task, read_run_file(task)
        task, of_file = content["task"], as_arguments(content)
    arguments = TASK_ARGUMENTS[task]
    parser = _Parser(
        f"train {task}",
        f"Train a model for {arguments.summary}.",
        [arguments, arguments.model_arguments, TrainingOptions, PublishingOptions],
    )
    parser.epilog = (
        "All fields of transformers' TrainingArguments that are no options here, such as lr_scheduler_type or "
        "eval_strategy, are set by --training_arguments name=value."
    )
    data, model, training, card = parser.parse(argv, of_file, path)
    run = Run(data, model, training, card)
    for options, option in ((model, "model_name_or_path"), (model, "tokenizer"), (data, "teacher")):
        name = getattr(options, option, None)
        if name is not None:
            check_model_name(name, f"--{option} {name}")
    return run
