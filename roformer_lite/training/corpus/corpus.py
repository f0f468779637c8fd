"""Blocks of tokens from one source or several, read a batch at a time in the order of a sampler."""

import copy
import hashlib
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from transformers import PreTrainedTokenizerBase

from .manifest import TOKENIZER_FOLDER, read_manifest
from .order import WINDOW_CHUNKS, Batch, Blocks, CorpusBatchSampler, StepSize, first_blocks
from .shards import PreparedBlocks

SAMPLE_BLOCKS, _SAMPLE_CHUNKS = 5_000, 20  # from which simple means learn


class Corpus(torch.utils.data.Dataset):
    """The blocks of all sources, numbered through.

    Its length is the number of blocks. An index is a batch of `CorpusBatchSampler`, and what it gives is for
    `BatchCollator`.

    Args:
        sources: The blocks.
        digest: A hash of what the sources hold.
        longest: Tokens that a block has at most.
        weights: Share of the tokens that each source gives; see `CorpusBatchSampler`.
        packing: Tokens of a row, which holds several blocks. Default: a row is a block.
        tokenizer_folder, tokenizer_fingerprint: Where the tokenizer is, and a hash of it.
    """

    def __init__(
        self,
        sources: Sequence[Blocks],
        digest: str,
        longest: int,
        weights: Sequence[float] | None = None,
        packing: int | None = None,
        tokenizer_folder: Path | None = None,
        tokenizer_fingerprint: str = "",
    ):
        self.weights, self.packing = weights, packing
        self.sources, self.digest, self.longest = sources, digest, longest
        self.tokenizer_folder, self.tokenizer_fingerprint = tokenizer_folder, tokenizer_fingerprint
        self._first_blocks = first_blocks(sources)
        self._places = [(source, chunk) for source in sources for chunk in range(len(source.rows))]
        self._chunks: OrderedDict[int, tuple[np.ndarray, np.ndarray]] = OrderedDict()

    @classmethod
    def prepared(
        cls, folders: Sequence[str], weights: Sequence[float] | None = None, packing: int | None = None
    ) -> "Corpus":
        """The blocks of prepared directories.

        Raises:
            InputError: when one of them is not whole.
        """
        manifests = [read_manifest(folder) for folder in folders]
        sources = [PreparedBlocks(Path(folder), own) for folder, own in zip(folders, manifests, strict=True)]
        digest = hashlib.blake2b(" ".join(own.digest for own in manifests).encode(), digest_size=16).hexdigest()
        longest = max(own.block_size for own in manifests)
        tokenizer = Path(folders[0]) / TOKENIZER_FOLDER, manifests[0].tokenizer
        return cls(sources, digest, longest, weights, packing, *tokenizer)

    def __len__(self) -> int:
        return int(self._first_blocks[-1])

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_chunks": OrderedDict()}

    def loading(self, rows: int, max_tokens: int | None, seed: int, rank: int, ranks: int) -> dict[str, Any]:
        """Arguments of a `DataLoader` by which one of `ranks` processes reads its share; see `CorpusBatchSampler`.

        Raises:
            InputError: when `max_tokens` is below the length of a block.
        """
        size = StepSize(rows, self.packing, max_tokens)
        size.check(self.longest)
        sampler = CorpusBatchSampler(self.sources, size, self.weights, seed, rank, ranks)
        return {"dataset": self, "batch_sampler": sampler}

    def __getitems__(self, batch: Batch) -> Batch:
        return Batch(batch.step, [self._row(item) for item in batch.items])

    def _row(self, blocks: list[int]) -> dict[str, list[int]]:
        ids = [self.block(number) for number in blocks]
        return row_of_blocks(ids)

    def block(self, number: int) -> list[int]:
        """The token ids of a block."""
        chunk = int(np.searchsorted(self._first_blocks, number, side="right")) - 1
        ids, borders = self._chunk(chunk)
        place = number - int(self._first_blocks[chunk])
        return ids[borders[place] : borders[place + 1]].tolist()

    def _chunk(self, chunk: int) -> tuple[np.ndarray, np.ndarray]:
        if chunk in self._chunks:
            self._chunks.move_to_end(chunk)
        else:
            source, number = self._places[chunk]
            self._chunks[chunk] = source.read(number)
            if len(self._chunks) > 2 * WINDOW_CHUNKS:  # a batch can have blocks of two windows
                self._chunks.popitem(last=False)
        return self._chunks[chunk]

    def encoded_by(self, tokenizer: PreTrainedTokenizerBase) -> "Corpus":
        """Itself: its tokenizer has been checked."""
        return self

    def sample(self, tokenizer: PreTrainedTokenizerBase) -> Dataset:
        """Blocks from all over the corpus as rows of a language modelling task, with their text."""
        chunks = np.unique(np.linspace(0, len(self._places) - 1, _SAMPLE_CHUNKS).astype(int))
        each = SAMPLE_BLOCKS // len(chunks)
        borders = zip(self._first_blocks[chunks], self._first_blocks[chunks + 1], strict=True)
        chosen = [number for first, end in borders for number in range(first, min(end, first + each))]
        ids = [self.block(number) for number in chosen]
        return sample_of_blocks(ids, tokenizer)


def sample_of_blocks(blocks: list[list[int]], tokenizer: PreTrainedTokenizerBase) -> Dataset:
    """Blocks as rows of a language modelling task, with their text."""
    texts = tokenizer.batch_decode(blocks, skip_special_tokens=True)
    names = [f"block {number}" for number in range(1, len(blocks) + 1)]
    return Dataset.from_dict({"input_ids": blocks, "text": texts, "document": names, "origin": names})


def row_of_blocks(blocks: Sequence[list[int]]) -> dict[str, list[int]]:
    """The tokens of blocks that share a row, and how long each is."""
    return {"input_ids": [token for ids in blocks for token in ids], "lengths": [len(ids) for ids in blocks]}


class BatchCollator:
    """Makes tensors of a batch of a corpus by the task's own collator.

    What the collator draws, such as masks, is determined by seed, step and rank: it does not depend on how many
    batches are made ahead, and is the same when a training continues.

    Args:
        collator: Of transformers, for `{"input_ids", "attention_mask"}`; a copy of it draws, since evaluation has
            the same one.
        seed, rank: Of the training, and the number of this process.
    """

    def __init__(self, collator: Any, seed: int, rank: int):
        self.collator, self.seed, self.rank = copy.copy(collator), seed, rank

    def __call__(self, batch: Batch) -> dict[str, torch.Tensor]:
        state = np.random.SeedSequence([self.seed, batch.step, self.rank]).generate_state(1, np.uint64)
        self.collator.generator = torch.Generator().manual_seed(int(state[0]) >> 1)
        rows = [{"input_ids": row["input_ids"], "attention_mask": [1] * len(row["input_ids"])} for row in batch.items]
        tensors = dict(self.collator(rows))
        if any(len(row["lengths"]) > 1 for row in batch.items):
            tensors |= _told_apart(tensors, [length for row in batch.items for length in row["lengths"]])
        return tensors


def _told_apart(tensors: dict[str, torch.Tensor], lengths: list[int]) -> dict[str, torch.Tensor]:
    """Positions `(B, L)` that restart in every block, and labels `(B, L)` without those of first tokens, which no
    block may predict for the next one."""
    position_ids = torch.zeros_like(tensors["input_ids"])
    counted = torch.cat([torch.arange(length) for length in lengths])  # (N,)
    real = tensors["attention_mask"].bool()
    position_ids[real] = counted
    labels = tensors["labels"].masked_fill(real & (position_ids == 0), -100)
    return {"position_ids": position_ids, "labels": labels}
