"""`roformer-lite train TASK`: train a model on a person's own data."""

import argparse
from collections.abc import Sequence
from dataclasses import fields
from functools import partial
from typing import TYPE_CHECKING

from ..errors import InputError
from ..model_name import check_model_name
from ..training.arguments import OwnTrainingArguments
from ..training.publishing_arguments import CardArguments, HubArguments
from ..training.shown_command import shown_command
from ..training.stock_arguments import stock_arguments
from ..training.task_arguments import TASK_ARGUMENTS
from .command_parser import CommandParser
from .required_packages import TRAINING_PACKAGES, require_packages

if TYPE_CHECKING:
    from ..training.options import TrainOptions


def main(argv: list[str]) -> None:
    """Run `roformer-lite train TASK`."""
    width = max(map(len, TASK_ARGUMENTS))
    tasks = "\n".join(f"  {name:{width}}  {arguments.summary}" for name, arguments in TASK_ARGUMENTS.items())
    parser = argparse.ArgumentParser(
        prog="roformer-lite train",
        description="Train a model on your own data.",
        usage="roformer-lite train TASK [--OPTION VALUE ...]",
        epilog=f"tasks:\n{tasks}\n\n`roformer-lite train TASK --help` lists the options.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("task", choices=list(TASK_ARGUMENTS), metavar="TASK")
    task = parser.parse_args(argv[:1]).task
    check_options(task, argv[1:])
    require_packages("training", TRAINING_PACKAGES | TASK_ARGUMENTS[task].packages)
    options = parse_options(task, argv[1:])
    if options.training.seeds:
        from ..training.seeds import train_seeds

        train_seeds(options, again=partial(parse_options, task, argv[1:]))
    else:
        from ..training.train import train

        train(options)


def check_options(task: str, argv: list[str]) -> None:
    """Answer `--help` and mistakes in the options, before anything that takes seconds is imported.

    Raises:
        InputError: for a value that is impossible, for options that are missing or exclude each other, and for a model
            or tokenizer that is nowhere.
    """
    task_arguments = TASK_ARGUMENTS[task]
    own = [task_arguments, task_arguments.model_arguments, OwnTrainingArguments, CardArguments, HubArguments]
    names = {field.name for arguments in own for field in fields(arguments)}
    groups = [*own]
    if {"-h", "--help"}.isdisjoint(argv):  # which show what the package adds: a page, not ten
        groups.append(stock_arguments(task_arguments.stock_training_arguments, leave_out=names))
    parser = CommandParser(f"train {task}", f"Train a model for {task_arguments.summary}.", groups)
    parser.set_defaults(**task_arguments.training_defaults)
    parser.add_argument("--help-all", action="help", help="show all options, those of transformers too, and exit")
    parser.epilog = "--help-all lists every option of transformers' TrainingArguments as well."
    data, model, training = parser.parse(argv)[:3]
    data.check_beside(model, training)
    for options, option in ((model, "model_name_or_path"), (model, "tokenizer"), (data, "teacher")):
        name = getattr(options, option, None)
        if name is not None:
            check_model_name(name, f"--{option} {name}")


def parse_options(task: str, argv: Sequence[str]) -> "TrainOptions":
    """Parse the options of `roformer-lite train TASK` into the real training arguments.

    Raises:
        InputError: for options that transformers refuses or that do not fit together.
    """
    from ..saved_files import reason
    from ..training.fine_tuning import FineTuning
    from ..training.model_and_tokenizer import config_class_of, parse_overrides
    from ..training.options import TrainOptions
    from ..training.stock_choices import check_stock_choices
    from ..training.tasks import TASKS

    task_class = TASKS[task]
    training_arguments, _ = task_class.training_classes()
    parser = CommandParser(
        f"train {task}",
        f"Train a model for {task_class.summary}.",
        [task_class.arguments, task_class.arguments.model_arguments, CardArguments, training_arguments],
    )
    parser.set_defaults(**task_class.arguments.training_defaults)
    fine_tuning = FineTuning.of(parser, argv)
    parser.set_defaults(**fine_tuning.defaults)
    try:
        data, model, card, training = parser.parse(argv)
    except Exception as error:  # TrainingArguments read files, import libraries and look at devices
        raise InputError(reason(error)) from error
    check_stock_choices(training)
    # A mistake there must not wait until the data are read.
    parse_overrides(model.config, config_class_of(model, task_class.config_class))
    implementation = task_class(data)
    implementation.check_options(training)
    command = shown_command(f"train {task}", argv)
    return TrainOptions(implementation, data, model, card, training, command, fine_tuning)
