"""`python -m benchmarks versions --other PATH [options]`: compare this checkout with another one
of the same project, and with stock models of the same size.

    python -m benchmarks versions --other ../previous
    python -m benchmarks versions --other ../transformers-5.23:../previous --cases generate decode

Each version has its own process, the stock models have another, and all run during the
whole comparison. In each round every contender works once, in a different order, while all others
wait. PATH is the beginning of the search path of the other version, and its last part is the
checkout. Both versions map the same file of weights. Times are processor times, and models have
random weights and no dropout. A `step` is the forward pass, the loss and the backward pass.
`decode` stands for 20 passes with a cache and one token in each row, and `generate` for greedy
generation of 64 tokens. `difference` is the largest relative difference between the outcomes of the
versions: losses, norms of gradients, mean sizes of states and logits, or ids.
"""

import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from .contenders import ROFORMER_LITE
from .report import Row, difference, report, summary
from .versions_worker import Case

ROOT = Path(__file__).resolve().parent.parent
THIS = "this"
OTHER = "other"
TRANSFORMERS = "transformers"
# One measurement takes at least this many seconds; faster work is repeated within it.
MIN_SECONDS = 0.15
PEERS = {"causal-lm": ("llama",), "seq2seq": ("marian", "bart")}

# The arguments are the folder of this checkout and the settings. The search path precedes this
# checkout, except for the benchmarks.
START_WORKER = """
import sys
sys.path.insert(0, sys.argv[1])
import benchmarks
sys.path.remove(sys.argv[1])
from benchmarks.versions_worker import main
main()
"""


def all_cases() -> list[Case]:
    cases = [
        Case("encoder", "forward", "small", rows=16, seq=256, lengths="real"),
        Case("encoder", "forward", "small", rows=8, seq=128, lengths="full"),
        Case("classify", "step", "mini", rows=16, seq=128, lengths="real"),
        Case("classify", "step", "mini", rows=16, seq=128, lengths="full"),
        Case("masked-lm", "step", "mini", rows=16, seq=128, lengths="real"),
        Case("masked-lm", "step", "mini", rows=16, seq=128, lengths="full"),
        Case("causal-lm", "step", "mini", rows=8, seq=128, lengths="real"),
        Case("causal-lm", "step", "mini", rows=8, seq=128, lengths="full"),
        Case("seq2seq", "step", "mini", rows=32, seq=96, lengths="real"),
        Case("seq2seq", "step", "mini", rows=16, seq=64, lengths="full"),
    ]
    for mode in ("decode", "generate"):
        for task in ("causal-lm", "seq2seq"):
            for rows in (1, 8, 32):
                cases.append(Case(task, mode, "mini", rows=rows, seq=64, lengths="real"))
    return cases


@dataclass
class Options:
    other: str = field(metadata={"help": "folders, joined as in PYTHONPATH, of the other version"})
    cases: list[str] = field(
        default_factory=list,
        metadata={"help": "parts of names, such as step or generate-mini-8x64; default: all cases"},
    )
    vocab_size: int = 8192
    rounds: int = field(
        default=7, metadata={"help": "measurements of each contender; they alternate"}
    )
    quick: bool = field(
        default=False, metadata={"help": "tiny models and batches, to see that all of it works"}
    )
    out: Path | None = field(default=None, metadata={"help": "directory of the result, as JSON"})

    def __post_init__(self) -> None:
        if self.quick:
            self.vocab_size = 500
            self.rounds = 1
        for part in self.cases:
            if not any(part in case.name for case in all_cases()):
                names = "\n".join(case.name for case in all_cases())
                raise SystemExit(f"cases={part!r} is in none of these names:\n{names}")

    def chosen_cases(self) -> list[Case]:
        cases = []
        for case in all_cases():
            if self.cases and not any(part in case.name for part in self.cases):
                continue
            if self.quick:
                case = replace(case, size="tiny", rows=min(case.rows, 4), seq=16)
            cases.append(case)
        # With the small batches of `quick`, some cases are equal.
        return list(dict.fromkeys(cases))


class Process:
    """A process that runs some of the contenders."""

    def __init__(self, name: str, search_path: str, folder: Path, options: Options) -> None:
        self.name = name
        self.log = folder / f"{name}.log"
        settings = {"vocab_size": options.vocab_size, "folder": str(folder)}
        command = [sys.executable, "-c", START_WORKER, str(ROOT), json.dumps(settings)]
        inherited = os.environ.get("PYTHONPATH", "")
        variables = {**os.environ, "PYTHONPATH": f"{search_path}{os.pathsep}{inherited}"}
        with open(self.log, "w") as log:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=variables,
                cwd=folder,
                text=True,
            )
        self.facts = self.ask("describe")
        self.check_package(search_path)

    def ask(self, what: str, **arguments: Any) -> Any:
        request = json.dumps({"do": what, **arguments})
        line = ""
        try:
            self.process.stdin.write(f"{request}\n")
            self.process.stdin.flush()
            line = self.process.stdout.readline()
        except BrokenPipeError:
            pass
        if not line:
            raise SystemExit(f"The process of {self.name} ended:\n{self.log.read_text()[-2000:]}")
        return json.loads(line)

    def check_package(self, search_path: str) -> None:
        """Refuse a package that Python has found elsewhere, such as an installed one."""
        found = Path(self.facts["path"]).resolve()
        folders = [Path(folder).resolve() for folder in search_path.split(os.pathsep)]
        if not any(found.is_relative_to(folder) for folder in folders):
            self.close()
            raise SystemExit(f"{search_path} has no hf_roformer_lite; Python found {found}.")

    def close(self) -> None:
        self.process.communicate(timeout=60)


def compare(case: Case, processes: dict[str, Process], rounds: int) -> Row:
    """All contenders for one kind of work."""
    # This version comes first, because it writes the weights that the other one reads.
    sources = {name: (processes[name], ROFORMER_LITE) for name in (THIS, OTHER)}
    for peer in PEERS.get(case.task, ()):
        sources[peer] = (processes[TRANSFORMERS], peer)
    facts = {}
    for process in processes.values():
        families = {family: key for key, (own, family) in sources.items() if own is process}
        found = process.ask("build", case=asdict(case), families=list(families))
        facts |= {families[family]: of_family for family, of_family in found.items()}

    def run(name: str, repeats: int) -> float:
        process, family = sources[name]
        return process.ask("measure", family=family, repeats=repeats)

    seconds = take_turns(list(sources), run, rounds)
    return {
        "case": case.name,
        **asdict(case),
        "contenders": summary(seconds, base=THIS),
        "facts": facts,
        "difference": difference(facts[THIS]["outcome"], facts[OTHER]["outcome"]),
    }


def take_turns(
    names: list[str], run: Callable[[str, int], float], rounds: int
) -> dict[str, list[float]]:
    """The seconds of each contender in each round. Every round has a different order. Short work is
    repeated within a measurement."""
    repeats = {}
    for name in names:
        repeats[name] = max(1, round(MIN_SECONDS / run(name, 1)))
    seconds: dict[str, list[float]] = {name: [] for name in names}
    order = list(names)
    generator = random.Random(0)
    for _ in range(rounds):
        generator.shuffle(order)
        for name in order:
            seconds[name].append(run(name, repeats[name]))
    return seconds


@contextmanager
def all_processes(options: Options) -> Iterator[dict[str, Process]]:
    """The processes of this version, of the other one and of transformers, which run until the end
    of the context."""
    folders = [str(Path(folder).resolve()) for folder in options.other.split(os.pathsep)]
    search_paths = {
        THIS: str(ROOT),
        OTHER: os.pathsep.join(folders),
        TRANSFORMERS: str(ROOT),
    }
    processes: dict[str, Process] = {}
    with tempfile.TemporaryDirectory() as folder:
        try:
            for name, search_path in search_paths.items():
                processes[name] = Process(name, search_path, Path(folder), options)
            yield processes
        finally:
            for process in processes.values():
                process.close()


COLUMNS = ["case", f"{THIS}, ms", f"{OTHER}, ms", f"{OTHER}, times {THIS}"]
COLUMNS += ["llama", "marian", "bart", "difference"]


def cells_of(row: Row) -> list[str]:
    """Milliseconds, and multiples of the time of this version, are medians and, in parentheses,
    minima."""
    times = row["contenders"]
    cells = [row["case"]]
    for name in (THIS, OTHER):
        median = 1000 * times[name]["median_seconds"]
        least = 1000 * times[name]["least_seconds"]
        cells.append(f"{median:.1f} ({least:.1f})")
    for name in (OTHER, "llama", "marian", "bart"):
        own = times.get(name)
        cell = ""
        if own is not None:
            cell = f"{own['times']:.2f} ({own['times_of_least']:.2f})"
        cells.append(cell)
    return [*cells, f"{row['difference']:.0e}"]


def main(options: Options) -> None:
    with all_processes(options) as processes:
        facts = {name: processes[name].facts for name in (THIS, OTHER)}
        rows = (compare(case, processes, options.rounds) for case in options.chosen_cases())
        report(
            "versions", options, COLUMNS, rows, cells_of, unit="processor seconds", versions=facts
        )
