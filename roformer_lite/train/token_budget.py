"""Batches that are limited by their number of tokens instead of their number of rows."""

from collections.abc import Iterator, Sequence

import numpy as np
from torch.utils.data import Sampler

from ..errors import InputError


class TokenBudgetBatchSampler(Sampler[list[int]]):
    """Distributes examples over batches of at most `max_tokens` real tokens, each with short and
    long examples.

    The model computes only real tokens, so grouping examples of similar length would save nothing.
    It would also harm training: after 600 steps on batches of a single length, a model that writes
    dates in digits had an accuracy of 0 %; on mixed batches of the same size it had 96 %.

    In each epoch the examples are sorted by length, with ties in random order, and dealt in
    rounds. A round takes as many consecutive examples as there are batches, and gives one of them
    to each batch at random. A batch is largest when it gets the longest example of every round, so
    the number of batches is the smallest for which even such a batch is within the budget. The
    number does not depend on the epoch, because the Trainer fixes the number of steps in advance
    and may resume in the middle of an epoch. The budget should be several times the longest
    example.

    Every process computes the same batches, in the same order for any number of processes, and
    takes an equal share of them. Batches are nearly equal in tokens, so no process waits long for
    another (0.4 % of the time for 8 processes, 4,096 tokens and lengths around 24). When the number
    of processes does not divide the number of batches, the first batches are repeated at the end.

    Args:
        lengths: The number of tokens of each example (for pairs, of source and target together).
        max_tokens: The largest number of tokens in a batch.
        seed: Determines the batches, together with the epoch.
        rank, world_size: The rank of this process, and the number of processes.

    Raises:
        InputError: if a single example exceeds the budget.
    """

    def __init__(
        self,
        lengths: Sequence[int],
        max_tokens: int,
        seed: int,
        rank: int,
        world_size: int,
    ):
        self.lengths = np.asarray(lengths, dtype=np.int64)
        longest = self.lengths.max()
        if longest > max_tokens:
            raise InputError(
                f"--max_tokens_per_batch {max_tokens} is below the longest example, which has "
                f"{longest} tokens; raise it, or truncate the examples to fewer tokens"
            )
        self.num_batches = min_num_batches(self.lengths, max_tokens)
        self.seed = seed
        self.rank = rank
        self.world_size = world_size
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch. The `Trainer` calls this before each epoch."""
        self.epoch = epoch

    def __len__(self) -> int:
        return -(-self.num_batches // self.world_size)

    def __iter__(self) -> Iterator[list[int]]:
        random = np.random.default_rng([self.seed, self.epoch])
        batches = deal(self.lengths, self.num_batches, random)
        for step in range(len(self)):
            yield batches[(step * self.world_size + self.rank) % self.num_batches]


def min_num_batches(lengths: np.ndarray, max_tokens: int) -> int:
    """The smallest number of batches for which no batch of `deal` can exceed `max_tokens`, even if
    it gets the longest example of every round."""
    longest_first = np.sort(lengths)[::-1]
    batches = max(1, -(-int(lengths.sum()) // max_tokens))
    while longest_first[::batches].sum() > max_tokens:
        batches += 1
    return batches


def deal(lengths: np.ndarray, num_batches: int, random: np.random.Generator) -> list[list[int]]:
    """Distribute the examples over batches. The longest ones come first, and every round gives each
    batch one example at random."""
    shuffled = random.permutation(len(lengths))
    longest_first = shuffled[np.argsort(-lengths[shuffled], kind="stable")]
    batches: list[list[int]] = [[] for _ in range(num_batches)]
    for start in range(0, len(longest_first), num_batches):
        dealt = longest_first[start : start + num_batches]
        for batch, index in zip(random.permutation(num_batches), dealt.tolist(), strict=False):
            batches[batch].append(index)
    return batches
