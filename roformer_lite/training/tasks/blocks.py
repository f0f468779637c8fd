"""Documents of tokens, split into the blocks that language models learn from."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from transformers import PreTrainedTokenizerBase
from transformers.tokenization_utils_tokenizers import TokenizersBackend

from hf_roformer_lite.model.tokenization_roformer_lite import RoFormerLiteTokenizer

from ...errors import InputError

# Of these tokenizers, though not of all that extend them, the backend by itself gives the same ids, and a sixth faster
# without the places of the tokens in the text.
_IDS_OF_BACKEND = (TokenizersBackend, RoFormerLiteTokenizer)


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
        start, end = tokenizer.convert_tokens_to_ids(document_tokens(tokenizer))
        return cls(start, end, block_size, is_causal)

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
        length = sum(map(len, parts))
        if not length:
            return
        ids = parts[0] if len(parts) == 1 else np.concatenate(parts)
        number = -(-length // capacity)
        borders = [-(-length * block // number) for block in range(number + 1)]  # the longer ones first
        for start, end in pairwise(borders):
            yield self._framed(ids[start:end])

    def _framed(self, ids: np.ndarray) -> np.ndarray:
        if self.is_causal:
            return ids
        framed = np.empty(len(ids) + 2, ids.dtype)
        framed[0], framed[1:-1], framed[-1] = self.start, ids, self.end
        return framed


def document_tokens(tokenizer: PreTrainedTokenizerBase) -> list[str]:
    """The tokens before and after a document: [CLS] and [SEP], or what a tokenizer without them has in their place.

    Raises:
        InputError: when it has neither.
    """
    tokens = [tokenizer.cls_token or tokenizer.bos_token, tokenizer.sep_token or tokenizer.eos_token]
    if None in tokens:
        raise InputError(
            "the tokenizer has no token for the beginning or the end of a document; its tokenizer_config.json must "
            "name a bos_token and an eos_token"
        )
    return tokens


def token_ids(texts: list[str], tokenizer: PreTrainedTokenizerBase) -> list[np.ndarray]:
    """The token ids of each text, without special tokens."""
    if type(tokenizer) in _IDS_OF_BACKEND:
        backend = tokenizer.backend_tokenizer
        backend.no_truncation()
        backend.no_padding()
        backend.encode_special_tokens = tokenizer.split_special_tokens
        encodings = backend.encode_batch_fast(texts, add_special_tokens=False)
        return [np.array(encoding.ids, dtype=np.int64) for encoding in encodings]
    encoded = tokenizer(
        texts,
        add_special_tokens=False,
        truncation=False,
        return_attention_mask=False,
        return_token_type_ids=False,
        verbose=False,
    )
    return [np.array(ids, dtype=np.int64) for ids in encoded["input_ids"]]
