"""Times implementations that alternate in one process, so that other load on the machine affects
all of them alike."""

import random
import time
from collections.abc import Callable, Sequence

import torch


def time_when_finished() -> float:
    """The time at which an accelerator has finished all work so far, for `alternate`."""
    if torch.accelerator.is_available():
        torch.accelerator.synchronize()
    return time.perf_counter()


def alternate(
    runs: Sequence[Callable[[], object]],
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
