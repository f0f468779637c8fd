"""`python -m benchmarks TASK [options]`: ours and its peers in turns, in one process."""

import sys
import warnings
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.console import Console
from transformers import HfArgumentParser
from transformers.utils import logging

from .report import save, show, summary
from .tasks import TASKS
from .timing import race
from .workload import Workload


@dataclass
class Output:
    out: Path | None = None


def main(arguments: list[str]) -> None:
    logging.set_verbosity_error()
    warnings.filterwarnings("ignore")
    task, *options = arguments
    work, output = HfArgumentParser((Workload, Output)).parse_args_into_dataclasses(options)
    torch.manual_seed(work.seed)
    measured = TASKS[task](work)
    race(measured.contenders, work.rounds)
    result = summary(task, work, measured)
    show(result, Console())
    if output.out:
        save(result, output.out)


if __name__ == "__main__":
    main(sys.argv[1:])
