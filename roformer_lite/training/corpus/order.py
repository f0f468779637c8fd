"""In which order the blocks of a corpus are learnt: shuffled, mixed, packed, and shared by the ranks.

Blocks are shuffled within windows of chunks, and the chunks of all sources in each pass, so that a step touches little
of the data. Everything here reads the lengths of blocks alone and is determined by the seed. A training that continues
therefore draws the order again, without the text, and goes on at the same token.
"""

from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import chain, count, islice
from typing import NamedTuple, Protocol

import numpy as np
from torch.utils.data import Sampler

from ...errors import InputError
from ..token_budget import deal, most_examples
from .packing import Item, best_fit

WINDOW_CHUNKS = 64  # 8 million tokens, which are 34 MB of memory


class Blocks(Protocol):
    """Blocks of token ids that are read in chunks."""

    rows: np.ndarray  # blocks of each chunk
    tokens: int  # of all blocks

    def lengths(self, chunk: int) -> np.ndarray: ...

    def read(self, chunk: int) -> tuple[np.ndarray, np.ndarray]: ...


def first_blocks(sources: Sequence[Blocks]) -> np.ndarray:
    """The number of the first block of every chunk, `(chunks + 1,)`; the last is the number of all blocks."""
    return np.cumsum([0, *(rows for source in sources for rows in source.rows)])


class Batch(NamedTuple):
    """What one rank learns in a step, with the number of the step since the training began."""

    step: int
    items: list


class StepSize(NamedTuple):
    """How much one rank learns in a step: so many rows, which are packed to `packing` tokens if that is given, or as
    many blocks as have `max_tokens` tokens together."""

    rows: int
    packing: int | None = None
    max_tokens: int | None = None

    def check(self, longest: int) -> None:
        """Refuse a limit on tokens that a block may exceed.

        Raises:
            InputError: naming both.
        """
        if self.max_tokens is not None and self.max_tokens < longest:
            raise InputError(
                f"--max_tokens_per_batch {self.max_tokens} is below the length of the blocks, {longest}; give at "
                "least as many"
            )

    def steps(
        self, items: np.ndarray, lengths: np.ndarray, waiting: int, ranks: int, random: np.random.Generator
    ) -> "Steps":
        """Share blocks among steps and ranks.

        Args:
            items: Numbers of the blocks, those first that were left from the windows before.
            lengths: Tokens of each.
            waiting: How many were left. They are learnt before others, those first that have waited longest.
            ranks: How many there are.
            random: Draws the order.

        Returns:
            For each step and rank the items, and the numbers of the blocks that are left for the next window.
        """
        if self.max_tokens:
            batches = int(lengths.sum()) // self.max_tokens // ranks * ranks
            if not batches:
                return Steps([], items)
            taken = most_examples(lengths, batches, self.max_tokens)  # the rest would make a batch that is less full
            groups = balanced(deal(lengths[:taken], batches, random), lengths, ranks, random)
            return Steps([[[[int(items[i])] for i in batch] for batch in group] for group in groups], items[taken:])
        if not self.packing:
            each = self.rows * ranks
            whole = len(items) // each * each
            shared = items[:whole].reshape(-1, ranks, self.rows, 1)
            return Steps(shared.tolist(), items[whole:])
        bins = best_fit(lengths, self.packing)
        bins.sort(key=lambda item: (min(*item, waiting), -lengths[item].sum()))
        each = self.rows * ranks
        whole = len(bins) // each * each  # the least full are packed again
        if not whole:
            return Steps([], items)
        groups = balanced(bins[:whole], lengths, ranks, random)
        tokens = np.array([sum(lengths[item].sum() for item in group) for group in groups])
        dealt = deal(tokens, whole // each, random)  # each step gets fuller and less full ones
        steps = [[[items[groups[i][rank]].tolist() for i in step] for rank in range(ranks)] for step in dealt]
        left = [place for item in bins[whole:] for place in item]
        return Steps(steps, items[sorted(left)])


class Steps(NamedTuple):
    items: list[list[list[Item]]]  # by step and rank
    left: np.ndarray


def balanced(
    bins: Sequence[Sequence[int]], lengths: np.ndarray, ranks: int, random: np.random.Generator
) -> list[list[list[int]]]:
    """Groups of `ranks` bins with nearly the same number of tokens, in random order; a step takes them together."""
    tokens = np.array([lengths[item].sum() for item in bins])
    order = np.lexsort((random.random(len(bins)), -tokens))
    groups = [[list(bins[i]) for i in order[at : at + ranks]] for at in range(0, len(bins), ranks)]
    shuffled = [groups[i] for i in random.permutation(len(groups))]
    return [[group[i] for i in random.permutation(ranks)] for group in shuffled]


class CorpusBatchSampler(Sampler[Batch]):
    """The batches of one rank, epoch after epoch.

    The sources are read pass after pass without an end, and what a window leaves goes into the next one: every block
    is learnt once in each pass. An epoch is a fixed number of steps, about a pass, because the Trainer fixes the
    number of steps in advance; the next epoch goes on where it ended.

    Args:
        sources: The blocks, numbered through.
        size: How much a rank learns in a step.
        weights: The share of the tokens that each source gives. Default: all blocks equally often.
        seed: Determines the order.
        rank, ranks: Number of this process, and of all.
    """

    def __init__(
        self,
        sources: Sequence[Blocks],
        size: StepSize,
        weights: Sequence[float] | None = None,
        seed: int = 0,
        rank: int = 0,
        ranks: int = 1,
    ):
        self.sources, self.size, self.seed, self.rank, self.ranks = sources, size, seed, rank, ranks
        self.weights = None if weights is None else np.array(weights) / sum(weights)
        self.epoch = 0
        self._first_blocks = first_blocks(sources)
        self._first_chunks = np.cumsum([0, *(len(source.rows) for source in sources)])
        self._steps: Iterator[list[list[Item]]] = iter(())
        self._position = -1

    def set_epoch(self, epoch: int) -> None:
        """Called by the `Trainer` before each epoch."""
        self.epoch = epoch

    def __len__(self) -> int:
        return self._steps_of_a_pass

    @cached_property
    def _steps_of_a_pass(self) -> int:
        tokens, blocks = sum(source.tokens for source in self.sources), float(self._first_blocks[-1])
        if self.size.max_tokens or self.size.packing:  # how full rows are shows only when they have been filled
            steps, learnt = next((steps, learnt) for steps, learnt in self._steps_by_window() if steps)
            return -(-tokens * len(steps) // learnt)
        if self.weights is not None:
            lengths = np.array([source.tokens / source.rows.sum() for source in self.sources])
            blocks = float((self.weights * tokens / lengths).sum())
        return max(1, int(np.ceil(blocks / (self.size.rows * self.ranks))))

    def __iter__(self) -> Iterator[Batch]:
        start = self.epoch * len(self)
        if self._position != start:
            everything = chain.from_iterable(steps for steps, _ in self._steps_by_window())
            self._steps, self._position = islice(everything, start, None), start
        for _ in range(len(self)):
            step = next(self._steps)
            self._position += 1
            yield Batch(self._position - 1, step[self.rank])

    def _steps_by_window(self) -> Iterator[tuple[list[list[list[Item]]], int]]:
        """The steps of each window, and how many tokens they have."""
        left, left_lengths = np.array([], dtype=np.int64), np.array([], dtype=np.int64)
        for number, chunks in enumerate(self._windows()):
            random = np.random.default_rng([self.seed, 1, number])
            first = [self._first_blocks[chunk] for chunk in chunks]
            lengths = [self._lengths(chunk) for chunk in chunks]
            items = np.concatenate([start + np.arange(len(own)) for start, own in zip(first, lengths, strict=True)])
            order = random.permutation(len(items))
            items = np.concatenate((left, items[order]))
            lengths = np.concatenate((left_lengths, np.concatenate(lengths)[order]))
            steps, left = self.size.steps(items, lengths, len(left), self.ranks, random)
            kept = dict(zip(items.tolist(), lengths.tolist(), strict=True))
            left_lengths = np.array([kept[item] for item in left.tolist()], dtype=np.int64)
            yield steps, int(lengths.sum() - left_lengths.sum())

    def _lengths(self, chunk: int) -> np.ndarray:
        source = int(np.searchsorted(self._first_chunks, chunk, side="right")) - 1
        return self.sources[source].lengths(chunk - int(self._first_chunks[source]))

    def _windows(self) -> Iterator[list[int]]:
        """Numbers of the chunks of each window, without an end."""
        if self.weights is None:  # one pass after another over all of them
            for number in count():
                chunks = np.random.default_rng([self.seed, 0, number]).permutation(self._first_chunks[-1])
                yield from (chunks[at : at + WINDOW_CHUNKS].tolist() for at in range(0, len(chunks), WINDOW_CHUNKS))
        passes = [self._passes(source) for source in range(len(self.sources))]
        taken = np.zeros(len(self.sources))
        while True:
            window = []
            for _ in range(WINDOW_CHUNKS):
                source = int(np.argmin(taken / self.weights))
                chunk = next(passes[source])
                taken[source] += self._lengths(chunk).sum()
                window.append(chunk)
            yield window

    def _passes(self, source: int) -> Iterator[int]:
        first, end = self._first_chunks[source : source + 2]
        for number in count():
            order = np.random.default_rng([self.seed, 2, source, number]).permutation(end - first)
            yield from (first + order).tolist()
