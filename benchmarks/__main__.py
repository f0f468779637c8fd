"""`python -m benchmarks TASK [options]`: compare our models with others, alternating in one
process.

TASK is a comparison of models (`tasks.py`), `ablations` (trainings that differ in positions, norms
or gating, `ablations.py`), `inference` (every engine in a process of its own, `inference.py`),
`fine-tuning` (a BERT, here and in transformers, `fine_tuning.py`), `long-texts` (a trained model on
texts longer than those of its training, `long_texts.py`), `by-length` (time and memory by the
length of a text, `by_length.py`), `padding_free` (models of transformers and ours, with and without
padding, `padding_free.py`), `graphs` (exported graphs with and without padding, `graphs.py`),
`accelerator` (forms of attention without padding, on a GPU, `accelerator.py`), `versions` (this
checkout and another one, `versions.py`), `processes` (the cost of several processes,
`several_processes.py`), `trainers` (the trainers of several libraries with and without padding,
`trainers.py`), `memory-of-TASK` (the peak memory of each contender in a process of its own),
`training-memory` (the peak memory of training by size and length, `training_memory.py`),
`trainer-mlm` or `trainer-seq2seq`. `suite` runs the tasks of the README, and `table` reads the
results in the directory `--out`.
"""

import sys
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from transformers import HfArgumentParser
from transformers.utils import logging

from . import (
    ablations,
    accelerator,
    by_length,
    fine_tuning,
    graphs,
    inference,
    long_texts,
    padding_free,
    several_processes,
    trainers,
    training_memory,
    versions,
)
from .floor import FLOOR
from .processes import peak
from .report import markdown, save, setting, show, summary
from .suites import suite
from .tasks import TASKS
from .timing import measure_alternating
from .training import PEERS, trainings
from .workload import Workload

# These tasks have options of their own.
PROGRAMS = {
    "ablations": ablations.main,
    "accelerator": accelerator.main,
    "fine-tuning": fine_tuning.main,
    "graphs": graphs.main,
    "inference": inference.main,
    "long-texts": long_texts.main,
    "by-length": by_length.main,
    "padding_free": padding_free.main,
    "processes": several_processes.main,
    "trainers": trainers.main,
    "training-memory": training_memory.main,
    "versions": versions.main,
}


@dataclass
class Files:
    files: list[Path] = field(
        default_factory=list,
        metadata={"help": "UTF-8 text, plain or .gz, for trainings; up to a line's first tab"},
    )
    out: Path | None = field(
        default=None, metadata={"help": "directory of results, one JSON file each"}
    )


def measure(task: str, work: Workload, files: list[Path]) -> dict[str, Any]:
    """The result of one task."""
    torch.manual_seed(work.seed)
    if task.startswith("memory-of-"):
        of = task.removeprefix("memory-of-")
        names = [
            contender.name for contender in TASKS[of](work).contenders if contender.name != FLOOR
        ]
        return setting(work, task=task, contenders={name: peak(of, work, name) for name in names})
    if task in PEERS:
        return setting(work, task=task, contenders=trainings(task, work, files))
    comparison = TASKS[task](work)
    measure_alternating(comparison.contenders, work.rounds)
    return setting(work, task=task, tokens=comparison.tokens, contenders=summary(comparison))


def main(arguments: list[str]) -> None:
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    warnings.filterwarnings("ignore")
    known = [*TASKS, *(f"memory-of-{task}" for task in TASKS), *PEERS]
    known += [*PROGRAMS, "suite", "table"]
    if not arguments or arguments[0] not in known:
        raise SystemExit(f"{__doc__}\nTASK is one of: {', '.join(known)}")
    task, *options = arguments
    if task in PROGRAMS:
        PROGRAMS[task](options)
        return
    parser = HfArgumentParser(
        (Workload, Files), prog=f"python -m benchmarks {task}", allow_abbrev=False
    )
    work, given = parser.parse_args_into_dataclasses(options)
    if task in ("suite", "table"):
        if given.out is None:
            raise SystemExit(f"{task} needs --out, the directory of results.")
        if task == "suite":
            for words in suite(work.device):
                main([*words, "--out", str(given.out)])
        print(markdown(given.out))
        return
    result = measure(task, work, given.files)
    show(result, Console())
    if given.out:
        save(result, given.out)


if __name__ == "__main__":
    main(sys.argv[1:])
