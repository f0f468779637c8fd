"""Batches with a cap on their tokens, not on their rows."""

from collections.abc import Iterator, Sequence

import numpy as np
from torch.utils.data import Sampler


class TokenBudgetBatchSampler(Sampler[list[int]]):
    """Deals examples into batches of at most `max_tokens` real tokens, short and long ones evenly to all.

    The model computes real tokens alone, so there is no padding to be saved by putting like to like; and batches of
    a single length make a poor gradient (trained that way for 600 steps, the demo gets nothing right; with mixed
    batches of the same size 96 %).

    Each epoch, the examples are sorted by length, equal ones in random order, and dealt in rounds: a round holds as
    many consecutive examples as there are batches, and gives every batch one of them at random. A batch can at most
    get the longest example of every round, so the smallest number of batches for which those together are within the
    budget is always enough. This number does not depend on the epoch, which is what a step count fixed in advance and
    resuming in the middle of an epoch need. The budget should be several times the longest example.

    Every process computes the same batches and takes its own share, as many as every other one: batches from the
    beginning are repeated when the number of processes does not divide theirs.

    Args:
        lengths: Tokens of each example (source and target together, where there are two).
        max_tokens: The budget of one batch.
        seed: With the epoch, determines everything.
        rank, world_size: This process and how many there are.

    Raises:
        ValueError: when there is no example, or one alone is over the budget.
    """

    def __init__(self, lengths: Sequence[int], max_tokens: int, seed: int = 0, rank: int = 0, world_size: int = 1):
        self.lengths = np.asarray(lengths, dtype=np.int64)
        if len(self.lengths) == 0:
            raise ValueError("there are no examples to make batches of")
        longest_first = np.sort(self.lengths)[::-1]
        if longest_first[0] > max_tokens:
            raise ValueError(
                f"max_tokens={max_tokens} is below the longest example, which has {longest_first[0]} tokens; raise "
                "it, or cut the examples shorter"
            )
        self.num_batches = max(1, -(-int(longest_first.sum()) // max_tokens))
        while longest_first[:: self.num_batches].sum() > max_tokens:
            self.num_batches += 1
        self.seed, self.rank, self.world_size, self.epoch = seed, rank, world_size, 0

    def set_epoch(self, epoch: int) -> None:
        """Called by the `Trainer` before each epoch."""
        self.epoch = epoch

    def __len__(self) -> int:
        return -(-self.num_batches // self.world_size)

    def __iter__(self) -> Iterator[list[int]]:
        random = np.random.default_rng([self.seed, self.epoch])
        shuffled = random.permutation(len(self.lengths))
        longest_first = shuffled[np.argsort(-self.lengths[shuffled], kind="stable")]
        batches: list[list[int]] = [[] for _ in range(self.num_batches)]
        for start in range(0, len(longest_first), self.num_batches):
            dealt = longest_first[start : start + self.num_batches]
            for batch, index in zip(random.permutation(self.num_batches), dealt.tolist(), strict=False):
                batches[batch].append(index)
        for step in range(len(self)):
            yield batches[(step * self.world_size + self.rank) % self.num_batches]
