"""`roformer-lite prepare TASK`: tokenise text once, for any number of trainings."""

import argparse
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from ..errors import TRAINING_PACKAGES, InputError, check_model_name, require_packages
from ..output import check_place
from ..tasks.task_arguments import TASK_ARGUMENTS
from ..train.options import TokenizerArguments
from .command_parser import CommandParser

_TASKS = ("mlm", "causal")


@dataclass
class PrepareArguments:
    """Where the prepared data go."""

    _argument_group_name: ClassVar[str] = "preparation"

    output_dir: str | None = field(
        default=None, metadata={"help": "Directory of the prepared data. Required."}
    )

    def __post_init__(self):
        if not self.output_dir:
            raise InputError("give --output_dir, the directory of the prepared data")
        self.output_dir = check_place("output_dir", self.output_dir)
        if Path(self.output_dir).exists():
            raise InputError(
                f"--output_dir {self.output_dir} exists; remove it, or choose a new directory"
            )


def main(argv: list[str]) -> None:
    """Run `roformer-lite prepare TASK`."""
    tasks = "\n".join(f"  {name:6}  {TASK_ARGUMENTS[name].summary}" for name in _TASKS)
    parser = argparse.ArgumentParser(
        prog="roformer-lite prepare",
        description="Tokenise text once, into a directory that any number of trainings read.",
        usage="roformer-lite prepare TASK [--OPTION VALUE ...]",
        epilog=f"tasks:\n{tasks}\n\n`roformer-lite prepare TASK --help` lists the options.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("task", choices=_TASKS, metavar="TASK")
    task = parser.parse_args(argv[:1]).task
    summary = f"Tokenise text for the task {task}: {TASK_ARGUMENTS[task].summary}."
    options = CommandParser(
        f"prepare {task}", summary, [TASK_ARGUMENTS[task], TokenizerArguments, PrepareArguments]
    )
    text, tokenizer, preparation = options.parse(argv[1:])
    for name in ("prepared", "streaming", "packing"):
        if getattr(text, name):
            raise InputError(f"--{name} is an option of `train`, not of `prepare`")
    if tokenizer.tokenizer is not None:
        check_model_name(tokenizer.tokenizer, f"--tokenizer {tokenizer.tokenizer}")
    require_packages("preparing data", TRAINING_PACKAGES)
    from ..data.prepare import prepare
    from ..tasks.registry import TASKS

    prepare(TASKS[task](text), tokenizer, Path(preparation.output_dir))
