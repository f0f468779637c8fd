"""`python -m benchmarks TASK [options]`: ours and its peers in turns, in one process.

TASK is a race of models (`tasks.py`), `tokenizer`, `import`, `memory-of-TASK` (peak of each contender, a process
each), `trainer-mlm` or `trainer-seq2seq`; `suite` runs what the README shows, `table` and `plot` read the directory of
results `--out`.
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

from .floor import FLOOR
from .processes import import_times, peak
from .report import markdown, plot, save, setting, show, summary
from .suites import suite
from .tasks import TASKS, Race
from .text import TextOptions, tokenizer_race
from .timing import race
from .training import PEERS, trainings
from .workload import Workload


@dataclass
class Output:
    out: Path | None = field(default=None, metadata={"help": "directory of results, one JSON each"})


def measure(task: str, work: Workload, text: TextOptions) -> dict[str, Any]:
    """The result of one task."""
    torch.manual_seed(work.seed)
    if task.startswith("memory-of-"):
        of = task.removeprefix("memory-of-")
        names = [contender.name for contender in TASKS[of](work).contenders if contender.name != FLOOR]
        return setting(work, task=task, contenders={name: peak(of, work, name) for name in names})
    if task in PEERS:
        return setting(work, task=task, contenders=trainings(task, work, text.files))
    if task == "import":
        done = Race(1, import_times(work.rounds), unit="imports")
        return setting(work, task=task, contenders=summary(done))
    if task == "tokenizer":
        done, task = tokenizer_race(text, work.vocab_size, work.batch), f"tokenizer-{text.tokenizer}-{text.output}"
    else:
        done = TASKS[task](work)
    race(done.contenders, work.rounds)
    return setting(work, task=task, tokens=done.tokens, contenders=summary(done))


def main(arguments: list[str]) -> None:
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    warnings.filterwarnings("ignore")
    known = [*TASKS, *(f"memory-of-{task}" for task in TASKS), *PEERS, "tokenizer", "import", "suite", "table", "plot"]
    if not arguments or arguments[0] not in known:
        raise SystemExit(f"{__doc__}\nTASK is one of: {', '.join(known)}")
    task, *options = arguments
    parser = HfArgumentParser((Workload, TextOptions, Output), prog=f"python -m benchmarks {task}", allow_abbrev=False)
    work, text, output = parser.parse_args_into_dataclasses(options)
    if task in ("suite", "table", "plot"):
        if output.out is None:
            raise SystemExit(f"{task} needs --out, the directory of results.")
        if task == "suite":
            for words in suite(work.device):
                main([*words, "--out", str(output.out)])
        print(plot(output.out) if task == "plot" else markdown(output.out))
        return
    result = measure(task, work, text)
    show(result, Console())
    if output.out:
        save(result, output.out)


if __name__ == "__main__":
    main(sys.argv[1:])
