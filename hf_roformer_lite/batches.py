"""Batches that are limited by their number of real tokens instead of their number of rows.

`batch_by_tokens` puts them into the data loader of a `Trainer`.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, IterableDataset, Sampler


def batch_by_tokens(
    loader: DataLoader, max_tokens: int, seed: int, lengths: Sequence[int] | None = None
) -> DataLoader:
    """The same data loader with batches of at most `max_tokens` real tokens.

    A subclass of any `Trainer` uses it in one method:

    ```python
    class TokenBudgetTrainer(Trainer):
        def get_train_dataloader(self):
            loader = super().get_train_dataloader()
            return batch_by_tokens(loader, max_tokens=2048, seed=self.args.seed)
    ```

    Each process of a distributed training gets the same number of batches, each within the budget.
    `TokenBudgetBatchSampler` describes the batches.

    Args:
        loader: The data loader of a dataset with a length. Its dataset, collator and workers are
            kept; its batch size and its sampler are not used.
        max_tokens: The largest number of real tokens in a batch on one device. Padding does not
            count.
        seed: Determines the batches, together with the epoch.
        lengths: The number of real tokens of each example. Default: the sum of its
            `attention_mask`, or the length of its `input_ids` if it has none. An encoder–decoder
            needs the tokens of source and target together.

    Raises:
        ValueError: for a stream, whose lengths are unknown, and if a single example exceeds the
            budget.
    """
    # The Trainer needs accelerate, and the rest of this package does not.
    from accelerate import PartialState

    if isinstance(loader.dataset, IterableDataset):
        raise ValueError("batches by tokens need a dataset with a length, not an IterableDataset")
    state = PartialState()
    sampler = TokenBudgetBatchSampler(
        token_counts(loader.dataset) if lengths is None else lengths,
        max_tokens=max_tokens,
        seed=seed,
        rank=state.process_index,
        world_size=state.num_processes,
    )
    return with_batches(loader, sampler)


def with_batches(loader: DataLoader, sampler: Sampler[list[int]]) -> DataLoader:
    """The same data loader with the batches of `sampler`, which are those of this process.

    Args:
        loader: The data loader of a dataset with a length, as in `batch_by_tokens`.
        sampler: Yields the indices of the examples of each batch.
    """
    # The Trainer needs accelerate, and the rest of this package does not.
    from accelerate import PartialState
    from accelerate.data_loader import prepare_data_loader

    batches = DataLoader(
        loader.dataset,
        batch_sampler=sampler,
        collate_fn=loader.collate_fn,
        num_workers=loader.num_workers,
        pin_memory=loader.pin_memory,
        timeout=loader.timeout,
        worker_init_fn=loader.worker_init_fn,
        multiprocessing_context=loader.multiprocessing_context,
        persistent_workers=loader.persistent_workers,
        prefetch_factor=loader.prefetch_factor,
    )
    # The sampler already yields only the batches of this process, so accelerate must not divide
    # them again.
    return prepare_data_loader(
        batches,
        device=PartialState().device,
        num_processes=1,
        process_index=0,
        put_on_device=True,
        dispatch_batches=False,
    )


def loss_per_label(
    outputs: Any, labels: torch.Tensor, num_items_in_batch: torch.Tensor | int
) -> torch.Tensor:
    """The loss of classifiers, taggers and masked language models as a `compute_loss_func` of a
    `Trainer`: the sum of the cross-entropies, divided by the number of labels of the whole step.

    The classes of BERT and of many other models take the mean over their own batch, although the
    Trainer passes them the number of labels of all accumulated batches and processes. Without this
    function, these means would be added up, and a batch with few labels would count as much as one
    with many. RoFormerLite models and stock causal models do not need this.

    Args:
        outputs: The output of a model, with logits of `(B, classes)` or `(B, L, classes)`.
        labels: `(B,)` or `(B, L)`; -100 where there is none, and at all padding.
        num_items_in_batch: The number of labels that the Trainer has counted.
    """
    logits = outputs["logits"].flatten(0, -2)
    return cross_entropy(logits, labels.flatten(), reduction="sum") / num_items_in_batch


def token_counts(dataset: Any) -> list[int]:
    """The number of real tokens of each example of a dataset: the sum of its `attention_mask`, or
    the length of its `input_ids` if it has none."""
    return [
        int(sum(row["attention_mask"])) if "attention_mask" in row else len(row["input_ids"])
        for row in dataset
    ]


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
        ValueError: if a single example exceeds the budget.
    """

    def __init__(
        self,
        lengths: Sequence[int],
        max_tokens: int,
        seed: int,
        rank: int = 0,
        world_size: int = 1,
    ):
        self.lengths = np.asarray(lengths, dtype=np.int64)
        longest = self.lengths.max()
        if longest > max_tokens:
            raise ValueError(
                f"a budget of {max_tokens} tokens is below the longest example, which has "
                f"{longest} tokens; raise the budget, or truncate the examples to fewer tokens"
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
