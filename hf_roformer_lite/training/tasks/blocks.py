"""Documents of tokens, split into the blocks that language models learn from."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True)
class BlockCutter:
    """Splits documents into blocks of at most `block_size` tokens; no block spans two documents.

    In causal language modelling `[CLS]` and `[SEP]` stand around the whole document; in masked language modelling they
    stand around every block, as they will around the user's texts. The last two blocks of a document share the rest
    evenly, so that no block is very short.
    """

    start: int  # the id of [CLS]
    end: int  # the id of [SEP]
    block_size: int
    is_causal: bool

    @classmethod
    def of(cls, tokenizer: PreTrainedTokenizerBase, block_size: int, is_causal: bool) -> "BlockCutter":
        return cls(tokenizer.cls_token_id, tokenizer.sep_token_id, block_size, is_causal)

    def blocks(self, pieces: Iterable[tuple[str, np.ndarray]]) -> Iterator[np.ndarray]:
        """The blocks of documents that come in pieces: the name of the document, and token ids that follow on those
        before. A document ends where another name begins."""
        capacity = self.block_size if self.is_causal else self.block_size - 2
        name, parts, count = None, [], 0
        for document, ids in pieces:
            if document != name:
                yield from self._rest(parts, capacity)
                name, parts = document, [np.array([self.start])] if self.is_causal else []
                count = len(parts)
            parts.append(ids)
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
        ids = np.concatenate(parts) if parts else np.array([])
        if len(ids):
            yield from map(self._framed, np.array_split(ids, -(-len(ids) // capacity)))

    def _framed(self, ids: np.ndarray) -> np.ndarray:
        return ids if self.is_causal else np.concatenate(([self.start], ids, [self.end]))


def token_ids(texts: list[str], tokenizer: PreTrainedTokenizerBase) -> list[np.ndarray]:
    """The token ids of each text, without special tokens."""
    encoded = tokenizer(
        texts,
        add_special_tokens=False,
        truncation=False,
        return_attention_mask=False,
        return_token_type_ids=False,
        verbose=False,
    )
    return [np.array(ids, dtype=np.int64) for ids in encoded["input_ids"]]
