"""`python -m benchmarks by-length`: how time and memory for one text grow with its length, compared
with ModernBERT.

The work is a forward pass without gradients, and a step of masked language modelling (forward and
backward). Both have global attention in every third layer and windows of 128 tokens in the others.
Each figure is measured in a separate process.
"""

import statistics
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import track
from transformers import HfArgumentParser

from .curves import Panel, draw
from .processes import peak
from .report import machine, save, show
from .stacks import OURS
from .workload import Workload

TASKS = {"forward": "local-layers", "step": "local-layers-step"}
QUANTITIES = {
    "seconds": "seconds of the processor",
    "above_model_mib": "MiB above the model",
}
PEERS = {"forward": "modernbert", "step": "modernbert, sparse"}


@dataclass
class Options:
    size: str = field(
        default="small", metadata={"help": "of the models: tiny, mini, small or base"}
    )
    lengths: list[int] = field(
        default_factory=lambda: [512, 1024, 2048, 4096, 8192, 16384, 32768],
        metadata={"help": "tokens of the text"},
    )
    rounds: int = field(
        default=1, metadata={"help": "processes for each figure, all of them alternating"}
    )
    out: Path | None = field(
        default=None, metadata={"help": "directory of the result, as JSON and SVG"}
    )

    def __post_init__(self) -> None:
        if self.rounds < 1:
            raise SystemExit(f"rounds={self.rounds} is not possible: it must be at least 1.")


def contenders(kind: str) -> tuple[str, ...]:
    return OURS, PEERS[kind], "ours, all layers local"


def compare(kind: str, options: Options) -> dict[str, Any]:
    """The median seconds, and the median MiB in addition to the model, by contender and length."""
    found: dict[str, dict[int, list[dict[str, float]]]] = {
        name: {length: [] for length in options.lengths} for name in contenders(kind)
    }
    turns = list(product(range(options.rounds), options.lengths, contenders(kind)))
    for _, length, name in track(turns, kind, transient=True):
        work = Workload(size=options.size, batch=1, seq=length, lengths="full")
        found[name][length].append(peak(TASKS[kind], work, name))
    rows: dict[str, dict[str, float]] = {}
    for name, by_length in found.items():
        row = rows[f"{kind}, {name}"] = {}
        for length, runs in by_length.items():
            for quantity in QUANTITIES:
                row[f"{length} {quantity}"] = statistics.median(run[quantity] for run in runs)
    return rows


def panels(result: dict[str, Any]) -> list[Panel]:
    """Draw the seconds and MiB of each kind of work against the length."""
    found = []
    for kind in TASKS:
        for quantity, unit in QUANTITIES.items():
            curves = {
                name.partition(", ")[2].removesuffix(", sparse"): [
                    (float(column.split()[0]), value)
                    for column, value in row.items()
                    if column.endswith(quantity)
                ]
                for name, row in result["contenders"].items()
                if name.startswith(kind)
            }
            found.append(Panel(f"{kind}: {unit}", "tokens", curves, is_logarithmic=True))
    return found


def main(arguments: list[str]) -> None:
    parser = HfArgumentParser(Options, prog="python -m benchmarks by-length", allow_abbrev=False)
    (options,) = parser.parse_args_into_dataclasses(arguments)
    rows = {name: row for kind in TASKS for name, row in compare(kind, options).items()}
    result = {
        "task": "by-length",
        "size": options.size,
        "contenders": rows,
        "machine": machine("cpu"),
    }
    show(result, Console(width=240))
    if options.out:
        save(result, options.out)
        draw(panels(result), options.out / "by-length.svg")
