"""`python -m benchmarks training-memory`: the peak memory of a training step, compared with
BERT, ModernBERT and Marian.

The step is a forward and backward pass with and without checkpointing. There is no optimizer, whose
states would be the same for models of one size. Every figure is measured in a separate process.
"""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import track
from transformers import HfArgumentParser

from .processes import peak
from .report import machine, save, show
from .stacks import OURS
from .workload import Workload, check_known

PEERS = {"mlm": ("bert", "modernbert"), "seq2seq": ("marian",)}


@dataclass
class Options:
    sizes: list[str] = field(
        default_factory=lambda: ["tiny", "mini", "small"], metadata={"help": "of the models"}
    )
    longest: list[int] = field(
        default_factory=lambda: [128, 512], metadata={"help": "longest row of a batch"}
    )
    lengths: list[str] = field(
        default_factory=lambda: ["real", "full"], metadata={"help": "real, full or both"}
    )
    tasks: list[str] = field(
        default_factory=lambda: list(PEERS), metadata={"help": "mlm, seq2seq or both"}
    )
    batch: int = field(default=16, metadata={"help": "rows of a batch"})
    out: Path | None = field(default=None, metadata={"help": "directory of the result, as JSON"})


def compare(task: str, work: Workload) -> dict[str, float]:
    """The MiB at the peak in addition to the model, for ours and each peer, without and with
    checkpointing. `ratio` is ours divided by that of the smallest peer, both without checkpointing,
    and `ratio_of_process` is the same ratio for the whole process."""
    row: dict[str, float] = {}
    wholes: dict[str, float] = {}
    for name in (OURS, *PEERS[task]):
        for checkpointing in (False, True):
            found = peak(task, replace(work, checkpointing=checkpointing), name)
            label = name
            if checkpointing:
                label += ", checkpointing"
            row[label] = found["above_model_mib"]
            wholes[label] = found["peak_mib"]
    row["ratio"] = row[OURS] / min(row[name] for name in PEERS[task])
    row["ratio_of_process"] = wholes[OURS] / min(wholes[name] for name in PEERS[task])
    return row


def main(arguments: list[str]) -> None:
    parser = HfArgumentParser(
        Options, prog="python -m benchmarks training-memory", allow_abbrev=False
    )
    (options,) = parser.parse_args_into_dataclasses(arguments)
    check_known("tasks", options.tasks, PEERS)
    settings = [
        (task, Workload(size=size, batch=options.batch, seq=longest, lengths=lengths, batches=1))
        for task in options.tasks
        for size in options.sizes
        for longest in options.longest
        for lengths in options.lengths
    ]
    rows: dict[str, Any] = {}
    for task, work in track(settings, "measuring", transient=True):
        rows[f"{task} {work.size} {work.batch}×{work.seq} {work.lengths}"] = compare(task, work)
    result = {"task": "training-memory", "contenders": rows, "machine": machine("cpu")}
    show(result, Console(width=200))
    if options.out:
        save(result, options.out)
