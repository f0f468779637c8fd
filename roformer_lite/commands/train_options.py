"""The options of `roformer-lite train`, which `options/` defines."""

import argparse
from collections.abc import Sequence

from ..errors import TRAINING_PACKAGES, require_packages
from ..options.run import Run, parse_run
from ..options.tasks import TASK_ARGUMENTS


def parse(argv: Sequence[str]) -> tuple[Run]:
    """The run that the command line of `roformer-lite train` describes."""
    width = max(map(len, TASK_ARGUMENTS))
    tasks = "\n".join(
        f"  {name:{width}}  {arguments.summary}" for name, arguments in TASK_ARGUMENTS.items()
    )
    parser = argparse.ArgumentParser(
        prog="roformer-lite train",
        description="Train a model on your own data.",
        usage="roformer-lite train TASK|run.yaml [--OPTION VALUE ...]",
        epilog=(
            f"tasks:\n{tasks}\n\n`roformer-lite train TASK --help` lists the options. Every "
            "training writes a file run.yaml\nwith its model; this file repeats the training. "
            "Options after the file override those in it;\n--config and --training_arguments add "
            "to its fields."
        ),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "task", metavar="TASK|run.yaml", help="a task, or a file that describes a training"
    )
    task = parser.parse_args(argv[:1]).task
    return (run_of(task, argv[1:]),)


def run_of(task: str, words: Sequence[str]) -> Run:
    """The run that a task or a `run.yaml` and its options describe; see `parse_run`.

    Raises:
        InputError: also for packages that the training needs and that are not installed.
    """
    run = parse_run(task, words)
    require_packages("training", (*TRAINING_PACKAGES, *run.data.packages))
    return run
