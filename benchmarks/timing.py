"""Contenders in turns, so that a noisy machine is noisy for all of them alike."""

import random
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from rich.progress import track

SHORTEST = 0.15  # seconds a measurement takes at least: faster work is repeated inside it


@dataclass
class Contender:
    """Something to be timed. `scale` turns its time into the one that counts (see `floor.py`)."""

    name: str
    run: Callable[[], object]
    scale: float = 1.0
    seconds: list[float] = field(default_factory=list)

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)


def synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def seconds_of(run: Callable[[], object], repeats: int) -> float:
    synchronize()
    start = time.perf_counter()
    for _ in range(repeats):
        run()
    synchronize()
    return (time.perf_counter() - start) / repeats


def race(contenders: list[Contender], rounds: int) -> None:
    """Fill in the `seconds` of each contender, one for each round, every round in another order."""
    repeats = {}
    for contender in track(contenders, "warming up", transient=True):
        contender.run()
        once = min(seconds_of(contender.run, 1) for _ in range(2))
        repeats[contender.name] = max(1, round(SHORTEST / once))
    order, generator = list(contenders), random.Random(0)
    for _ in track(range(rounds), "measuring", transient=True):
        generator.shuffle(order)
        for contender in order:
            contender.run()  # as in a loop of its own: with its own data in the caches, its own memory in the heap
            contender.seconds.append(seconds_of(contender.run, repeats[contender.name]) * contender.scale)


def ratio(slow: Contender, fast: Contender) -> float:
    """How many times as long `slow` takes: the median over the rounds, whose two halves had the same neighbours."""
    return statistics.median(a / b for a, b in zip(slow.seconds, fast.seconds, strict=True))
