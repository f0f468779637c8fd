"""The options of `roformer-lite train`, which `options/` defines."""

import argparse
from collections.abc import Sequence

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
    return (parse_run(task, argv[1:]),)
