"""`roformer-lite prepare TASK`: tokenise text once, for any number of trainings."""

import argparse

from ..model_name import check_model_name
from ..training.corpus.prepare_arguments import PrepareArguments
from ..training.language_model_arguments import TextArguments
from ..training.task_arguments import TASK_ARGUMENTS
from ..training.tokenizer_arguments import TokenizerArguments
from .command_parser import CommandParser
from .required_packages import TRAINING_PACKAGES, require_packages

_TASKS = ("mlm", "causal")


def main(argv: list[str]) -> None:
    """Run `roformer-lite prepare TASK`."""
    tasks = "\n".join(f"  {name:6}  {TASK_ARGUMENTS[name].summary}" for name in _TASKS)
    parser = argparse.ArgumentParser(
        prog="roformer-lite prepare",
        description="Tokenise text once, in parallel, into shards that any number of trainings and machines read.",
        usage="roformer-lite prepare TASK [--OPTION VALUE ...]",
        epilog=f"tasks:\n{tasks}\n\n`roformer-lite prepare TASK --help` lists the options.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("task", choices=_TASKS, metavar="TASK")
    task = parser.parse_args(argv[:1]).task
    summary = f"Tokenise text for the task {task}: {TASK_ARGUMENTS[task].summary}."
    options = CommandParser(f"prepare {task}", summary, [TextArguments, TokenizerArguments, PrepareArguments])
    text, tokenizer, preparation = options.parse(argv[1:])
    if tokenizer.tokenizer is not None:
        check_model_name(tokenizer.tokenizer, f"--tokenizer {tokenizer.tokenizer}")
    require_packages("preparing data", TRAINING_PACKAGES)
    from ..training.corpus.prepare import prepare
    from ..training.tasks import TASKS

    prepare(TASKS[task](text), tokenizer, preparation)
