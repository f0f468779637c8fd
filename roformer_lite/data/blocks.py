"""Documents of tokens as the rows that language models learn from: split into blocks, packed,
collated."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from transformers import DataCollatorForLanguageModeling, PreTrainedTokenizerBase

from ..errors import InputError
from .data_files import in_pieces

if TYPE_CHECKING:
    from datasets import Dataset, IterableDataset

# characters that the tokenizer gets at once, and of which it makes a hundred times as many bytes
_AT_ONCE = 2**20
_PACKED_AT_ONCE = 10_000  # blocks among which those that fill a row are looked for


@dataclass(frozen=True)
class BlockCutter:
    """Splits documents into blocks of at most `block_size` tokens; no block spans two documents.

    In causal language modelling `[CLS]` and `[SEP]` stand around the whole document; in masked
    language modelling they stand around every block, as they will around the user's texts. The last
    two blocks of a document share the rest evenly, so that no block is very short.
    """

    start: int  # the id of [CLS]
    end: int  # the id of [SEP]
    block_size: int
    is_causal: bool

    @classmethod
    def of(
        cls, tokenizer: PreTrainedTokenizerBase, block_size: int, is_causal: bool
    ) -> BlockCutter:
        start, end = tokenizer.convert_tokens_to_ids(document_tokens(tokenizer))
        return cls(start, end, block_size, is_causal)

    def blocks(self, pieces: Iterable[tuple[str, Sequence[int]]]) -> Iterator[np.ndarray]:
        """The blocks of documents that come in pieces: the name of the document, and token ids that
        follow on those before. A document ends where another name begins."""
        capacity = self.block_size if self.is_causal else self.block_size - 2
        name, parts, count = None, [], 0
        for document, ids in pieces:
            if document != name:
                yield from self._rest(parts, capacity)
                name, parts = document, [np.array([self.start])] if self.is_causal else []
                count = len(parts)
            parts.append(np.asarray(ids, dtype=np.int64))
            count += len(ids)
            if count >= 2 * capacity:
                whole, cut = np.concatenate(parts), (count // capacity - 1) * capacity
                for at in range(0, cut, capacity):
                    yield self._framed(whole[at : at + capacity])
                parts, count = [whole[cut:]], count - cut
        yield from self._rest(parts, capacity)

    def _rest(self, parts: list[np.ndarray], capacity: int) -> Iterator[np.ndarray]:
        if self.is_causal and parts:
            parts = [*parts, np.array([self.end])]
        length = sum(map(len, parts))
        if not length:
            return
        ids, number = np.concatenate(parts), -(-length // capacity)
        # the longer ones first
        borders = [-(-length * block // number) for block in range(number + 1)]
        for start, end in pairwise(borders):
            yield self._framed(ids[start:end])

    def _framed(self, ids: np.ndarray) -> np.ndarray:
        return ids if self.is_causal else np.concatenate(([self.start], ids, [self.end]))


def document_tokens(tokenizer: PreTrainedTokenizerBase) -> list[str]:
    """The tokens before and after a document: [CLS] and [SEP], or what a tokenizer without them has
    in their place.

    Raises:
        InputError: when it has neither.
    """
    tokens = [
        tokenizer.cls_token or tokenizer.bos_token,
        tokenizer.sep_token or tokenizer.eos_token,
    ]
    if None in tokens:
        raise InputError(
            "the tokenizer has no token for the beginning or the end of a document; its tokenizer_config.json must "
            "name a bos_token and an eos_token"
        )
    return tokens


def blocks(
    rows: Dataset | IterableDataset,
    tokenizer: PreTrainedTokenizerBase,
    block_size: int,
    is_causal: bool,
) -> Iterator[dict[str, list[int]]]:
    """The blocks of rows with `document` and `text`, as examples; see `BlockCutter`."""
    options = {
        "add_special_tokens": False,
        "truncation": False,
        "return_attention_mask": False,
        "verbose": False,
    }

    def pieces() -> Iterator[tuple[str, Sequence[int]]]:
        for documents, texts in _bounded(rows):
            yield from zip(documents, tokenizer(texts, **options)["input_ids"], strict=True)

    for ids in BlockCutter.of(tokenizer, block_size, is_causal).blocks(pieces()):
        yield {"input_ids": ids.tolist(), "attention_mask": [1] * len(ids)}


def _bounded(rows: Dataset | IterableDataset) -> Iterator[tuple[list[str], list[str]]]:
    """The rows' documents and texts, of about `_AT_ONCE` characters; long texts are cut."""
    documents: list[str] = []
    texts: list[str] = []
    count = 0
    for batch in rows.iter(batch_size=100):
        for document, text in zip(batch["document"], batch["text"], strict=True):
            for piece in in_pieces(text):
                documents.append(document)
                texts.append(piece)
                count += len(piece)
                if count >= _AT_ONCE:
                    yield documents, texts
                    documents, texts, count = [], [], 0
    if texts:
        yield documents, texts


def packed(encoded: Dataset | IterableDataset, capacity: int) -> Dataset | IterableDataset:
    """Rows of up to `capacity` tokens, each of whole blocks. `position_ids` restart in every block,
    by which the model knows that no block sees another."""

    def pack(batch: dict[str, list]) -> dict[str, list]:
        ids = batch["input_ids"]
        bins = best_fit([len(block) for block in ids], capacity)
        rows = [[token for place in places for token in ids[place]] for places in bins]
        positions = [[at for place in places for at in range(len(ids[place]))] for places in bins]
        return {
            "input_ids": rows,
            "attention_mask": [[1] * len(row) for row in rows],
            "position_ids": positions,
        }

    columns = encoded.column_names or ["input_ids", "attention_mask"]  # a stream does not know them
    return encoded.map(pack, batched=True, batch_size=_PACKED_AT_ONCE, remove_columns=columns)


def best_fit(lengths: Sequence[int], capacity: int) -> list[list[int]]:
    """Put things of `lengths` into as few bins as can be, each of at most `capacity`; the places of
    those of each bin.

    The longest first, each into the fullest bin where it fits (best fit decreasing: Johnson 1974).
    Nothing is cut, as it would be where documents are joined and split at every `capacity` tokens,
    which harms what a model learns (Ding et al. 2024, arXiv:2404.10830).
    """
    bins: list[list[int]] = []
    free: dict[int, list[int]] = {}  # bins by the room that they have left
    rooms: list[int] = []  # those of which there are bins, rising
    for place in sorted(range(len(lengths)), key=lambda place: -lengths[place]):
        at = bisect_left(rooms, lengths[place])
        if at == len(rooms):
            bins.append([place])
            room, number = capacity - lengths[place], len(bins) - 1
        else:
            room = rooms[at]
            number = free[room].pop()
            if not free[room]:
                del rooms[at]
            bins[number].append(place)
            room -= lengths[place]
        if room:
            if not free.setdefault(room, []):
                insort(rooms, room)
            free[room].append(number)
    return bins


class BlockCollator(DataCollatorForLanguageModeling):
    """transformers' collator, for packed rows too, and with at least one masked token in a batch.

    In a batch of a few tokens chance may mask none of them. Such a batch has nothing to learn from,
    and text that makes no other batch could not be measured once the model is trained.
    """

    def torch_call(self, examples: list[dict[str, Any]]) -> dict[str, Any]:
        plain = [{name: row[name] for name in row if name != "position_ids"} for row in examples]
        batch = dict(super().torch_call(plain))
        if "position_ids" in examples[0]:
            positions = torch.zeros_like(batch["input_ids"])  # (B, L)
            real = batch["attention_mask"].bool()
            positions[real] = torch.cat([torch.as_tensor(row["position_ids"]) for row in examples])
            # No block may predict the first token of the next one.
            batch |= {
                "position_ids": positions,
                "labels": batch["labels"].masked_fill(real & (positions == 0), -100),
            }
        return batch

    def torch_mask_tokens(
        self,
        inputs: torch.Tensor,
        special_tokens_mask: Any | None = None,
        offset_mapping: Any | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Inputs with masks `(B, L)`, and labels `(B, L)` that are -100 at all other tokens."""
        ids = inputs.clone()
        inputs, labels = super().torch_mask_tokens(inputs, special_tokens_mask, offset_mapping)
        if (labels == -100).all():
            words = (~torch.isin(ids, torch.tensor(self.tokenizer.all_special_ids))).nonzero()
            if len(words):
                row, place = words[torch.randint(len(words), (), generator=self.generator)]
                labels[row, place] = ids[row, place]
                inputs[row, place] = self.tokenizer.mask_token_id
        return inputs, labels
