"""Text that is read and tokenised while the model learns, without a copy."""

import hashlib
import os
from collections.abc import Iterator
from itertools import islice
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from transformers import PreTrainedTokenizerBase

from ...errors import InputError
from ..data_files import Row
from ..source import Source
from ..task_arguments import LanguageModelDataArguments
from ..tasks.base import Task
from ..tasks.blocks import BlockCutter
from .corpus import SAMPLE_BLOCKS, row_of_blocks, sample_of_blocks
from .order import Batch, StepSize
from .tokenising import first_texts, tokenised

_WINDOW_TOKENS = 2**20  # within which blocks are shuffled
_BEGINNING, _SAMPLE, _SAMPLES = 2**20, 2**16, 64  # bytes of a file that are digested, and how often


class TextStream:
    """The rows of a source, pass after pass without an end.

    Args:
        task: Masked or causal language modelling.
        source: Where the rows come from.
        skipped: How many rows at the beginning are left out, since they are held out.
        args: The options of the data.
    """

    def __init__(self, task: Task, source: Source, skipped: int, args: LanguageModelDataArguments):
        self.task, self.source, self.skipped, self.args = task, source, skipped, args
        self.tokenizer: PreTrainedTokenizerBase | None = None

    @property
    def digest(self) -> str:
        """A hash of the length of every file, its beginning and samples from all over it, or of the name of a dataset
        on the Hub."""
        digest = hashlib.blake2b(repr((self.source.name, self.skipped)).encode(), digest_size=16)
        for path in self.args.train_file or ():
            size = os.path.getsize(path)
            with open(path, "rb") as stream:
                digest.update(str(size).encode() + stream.read(_BEGINNING))
                for number in range(_SAMPLES if size > _BEGINNING else 0):
                    stream.seek((size - _SAMPLE) * number // (_SAMPLES - 1))
                    digest.update(stream.read(_SAMPLE))
        return digest.hexdigest()

    def loading(self, rows: int, max_tokens: int | None, seed: int, rank: int, ranks: int) -> dict[str, Any]:
        """Arguments of a `DataLoader` by which one of `ranks` processes reads its share; see `StreamedBatches`.

        Raises:
            InputError: when `max_tokens` is below the length of a block.
        """
        size = StepSize(rows, self.args.packing, max_tokens)
        size.check(self.args.block_size)
        return {"dataset": StreamedBatches(self, size, seed, rank, ranks), "batch_size": None}

    def encoded_by(self, tokenizer: PreTrainedTokenizerBase) -> "TextStream":
        """The stream, which `tokenizer` will encode while it is read."""
        self.tokenizer = tokenizer
        return self

    def sample(self, tokenizer: PreTrainedTokenizerBase) -> Dataset:
        """The first blocks as rows of a language modelling task, with their text."""
        cutter = BlockCutter.of(tokenizer, self.args.block_size, self.task.is_causal)
        blocks = islice(cutter.blocks(tokenised(self.rows(0, 1), tokenizer)), SAMPLE_BLOCKS)
        return sample_of_blocks([ids.tolist() for ids in blocks], tokenizer)

    def texts(self) -> Iterator[str]:
        """The first 100 MB of the text."""
        return first_texts(self.task.texts(self.rows(0, 1)))

    def rows(self, share: int, shares: int) -> Iterator[Row]:
        """The rows of every `shares`-th document of one pass."""
        documents, name = -1, None
        for number, row in enumerate(self.source.rows()):
            if number < self.skipped or self.task.is_empty(row):
                continue
            documents, name = documents + (row["document"] != name), row["document"]
            if documents % shares == share:
                yield row


class StreamedBatches(torch.utils.data.IterableDataset):
    """The batches of one rank from a stream, for `BatchCollator`.

    Blocks are shuffled within windows of a million tokens. The last blocks of a pass share theirs with the first ones
    of the next, as a small window would leave batches that are not full. A training that continues reads and tokenises
    again what was read before, which takes as long as it took then, but comes to the same token.

    Args:
        stream: With its tokenizer.
        size: How much a rank learns in a step.
        seed: Determines the order.
        rank, ranks: Number of this process, and of all. Each reads its share of the documents.
    """

    def __init__(self, stream: TextStream, size: StepSize, seed: int, rank: int, ranks: int):
        self.stream, self.size, self.seed, self.rank, self.ranks = stream, size, seed, rank, ranks

    def __iter__(self) -> Iterator[Batch]:
        worker = torch.utils.data.get_worker_info()
        number, workers = (0, 1) if worker is None else (worker.id, worker.num_workers)
        share = self.rank * workers + number
        batches = self._batches(share, self.ranks * workers)
        return (Batch(step * workers + number, items) for step, items in enumerate(batches))

    def _batches(self, share: int, shares: int) -> Iterator[list[dict[str, list[int]]]]:
        left: list[np.ndarray] = []
        for number, window in enumerate(self._windows(share, shares)):
            random = np.random.default_rng([self.seed, share, number])
            pool = left + [window[i] for i in random.permutation(len(window))]
            lengths = np.array([len(ids) for ids in pool])
            steps, rest = self.size.steps(np.arange(len(pool)), lengths, len(left), 1, random)
            left = [pool[i] for i in rest]
            for (rows,) in steps:
                yield [row_of_blocks([pool[i].tolist() for i in row]) for row in rows]

    def _windows(self, share: int, shares: int) -> Iterator[list[np.ndarray]]:
        stream, tokenizer = self.stream, self.stream.tokenizer
        cutter = BlockCutter.of(tokenizer, stream.args.block_size, stream.task.is_causal)
        window, tokens = [], 0
        while True:
            is_short = True  # a pass that is shorter than a window is a window of its own
            for ids in cutter.blocks(tokenised(stream.rows(share, shares), tokenizer)):
                window.append(ids)
                tokens += len(ids)
                if tokens >= _WINDOW_TOKENS:
                    yield window
                    window, tokens, is_short = [], 0, False
            if is_short and not window:
                raise InputError(
                    f"{stream.source.name}: there is no document for process {share + 1} of {shares}; give more "
                    "documents or fewer processes"
                )
            if is_short:
                yield window
                window, tokens = [], 0
