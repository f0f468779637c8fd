"""Times implementations that alternate in one process, so that other load on the machine affects
all of them alike."""

import random
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from rich.progress import track

# One measurement takes at least this many seconds; faster work is repeated within it.
MIN_SECONDS = 0.15


@dataclass
class Contender:
    """One of the implementations that a task compares. `scale` is a factor for its measured time
    (see `floor.py`)."""

    name: str
    run: Callable[[], object]
    scale: float = 1.0
    seconds: list[float] = field(default_factory=list)

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)


def synchronize() -> None:
    if torch.accelerator.is_available():
        torch.accelerator.synchronize()


def seconds_of(run: Callable[[], object], repeats: int) -> float:
    synchronize()
    start = time.perf_counter()
    for _ in range(repeats):
        run()
    synchronize()
    return (time.perf_counter() - start) / repeats


def measure_alternating(contenders: list[Contender], rounds: int) -> None:
    """Measure the `seconds` of each contender in each round. Every round runs all of them in a
    different order."""
    repeats = {}
    for contender in track(contenders, "warming up", transient=True):
        contender.run()
        once = min(seconds_of(contender.run, 1) for _ in range(2))
        repeats[contender.name] = max(1, round(MIN_SECONDS / once))
    order = list(contenders)
    generator = random.Random(0)
    for _ in track(range(rounds), "measuring", transient=True):
        generator.shuffle(order)
        for contender in order:
            # An untimed run fills the caches and the heap with the contender's own data.
            contender.run()
            seconds = seconds_of(contender.run, repeats[contender.name])
            contender.seconds.append(seconds * contender.scale)


def time_when_finished() -> float:
    """The time at which an accelerator has finished all work so far, for `alternate`."""
    synchronize()
    return time.perf_counter()


def alternate(
    runs: list[Callable[[], object]],
    rounds: int,
    clock: Callable[[], float] = time.process_time,
) -> list[list[float]]:
    """The seconds of each run in each round, by default of the processor. Every round runs all of
    them in a different order."""
    seconds: list[list[float]] = [[] for _ in runs]
    order = list(range(len(runs)))
    generator = random.Random(0)
    for run in runs:
        run()
    for _ in range(rounds):
        generator.shuffle(order)
        for number in order:
            started = clock()
            runs[number]()
            seconds[number].append(clock() - started)
    return seconds


def ratio(slow: Contender, fast: Contender) -> float:
    """The ratio of the times of `slow` and `fast`: the median of the ratios in the rounds."""
    return statistics.median(a / b for a, b in zip(slow.seconds, fast.seconds, strict=True))
