"""The words of a text, read from the tokens of a model.

A table gives the bytes of each token. The bytes of all tokens are joined and split into words, so
that the words do not depend on the tokenizer, and pipelines, servers and exported graphs need no
other input than `input_ids`.
"""

from dataclasses import dataclass

import torch
from torch.nn import functional as F

# The width of the table of tokens unless a configuration says otherwise, in bytes.
TOKEN_BYTES = 32
# Words that differ only after this many bytes may have the same hash.
MAX_WORD_BYTES = 48
# Special tokens consist of this byte, a blank that does not occur in texts.
SEPARATOR = 0x1F

# Polynomial hashes are computed modulo this prime, so that the product of two of them fits into 64
# bits.
PRIME = 2**31 - 1
HASH_BASE = 1_000_003
SEED_BASE = 1_000_033

# A byte of UTF-8 text separates words (blank), begins a character of a longer word (letter), begins
# a character that is a word by itself (single), or continues a character (inner).
BLANK = 0
LETTER = 1
SINGLE = 2
INNER = 3


def make_byte_kinds() -> torch.Tensor:
    """The kind of each byte, `(256,)`.

    Beyond ASCII the first byte of a character determines its kind. Punctuation, symbols, kana and
    Han (U+0080 to U+00BF, U+2000 to U+9FFF, U+F000 and above) are words by themselves, and all
    other characters are letters.
    """
    kinds = torch.full((256,), LETTER)
    for byte in range(0x80):
        if not chr(byte).isalnum():
            kinds[byte] = SINGLE
    kinds[: ord(" ") + 1] = BLANK
    kinds[0x7F] = BLANK
    kinds[0x80:0xC0] = INNER
    kinds[0xC2] = SINGLE
    kinds[0xE2:0xEA] = SINGLE
    kinds[0xEF:] = SINGLE
    return kinds


def make_byte_shapes() -> torch.Tensor:
    """The shape of each byte, `(256,)`: 1 for ASCII capitals, 2 for ASCII small letters, 3 for
    digits, 4 for bytes beyond ASCII. All other bytes are their own shape."""
    shapes = torch.arange(256)
    shapes[ord("A") : ord("Z") + 1] = 1
    shapes[ord("a") : ord("z") + 1] = 2
    shapes[ord("0") : ord("9") + 1] = 3
    shapes[0x80:] = 4
    return shapes


# The default device is "meta" if this file is imported while transformers creates a model without
# weights, but these tables need values.
with torch.device("cpu"):
    BYTE_KINDS = make_byte_kinds()
    BYTE_SHAPES = make_byte_shapes()
    powers = [pow(HASH_BASE, index, PRIME) for index in range(MAX_WORD_BYTES)]
    HASH_POWERS = torch.tensor(powers)


def indices_where(condition: torch.Tensor) -> torch.Tensor:
    """The indices at which `condition` `(N,)` is true.

    This file indexes tensors with integers instead of booleans, because exported graphs fail if a
    condition is true nowhere.
    """
    return condition.nonzero()[:, 0]


def shifted(values: torch.Tensor, distance: int, fill: int = 0) -> torch.Tensor:
    """The value at a `distance` after each of `values` `(N, ...)`, or `fill` if there is none."""
    padding = [0, 0] * (values.ndim - 1)
    if distance < 0:
        padding += [-distance, 0]
        return F.pad(values, padding, value=fill)[:distance]
    padding += [0, distance]
    return F.pad(values, padding, value=fill)[distance:]


def has_previous(documents: torch.Tensor) -> torch.Tensor:
    """Whether the item before each item belongs to the same document, `(N,)`.

    Args:
        documents: The document of each item, `(N,)`; -1 is allowed.
    """
    return documents == shifted(documents, distance=-1, fill=-2)


def seeded(hashes: torch.Tensor, seed: int) -> torch.Tensor:
    """The hashes of another kind of features that consist of the same bytes."""
    return (hashes * 31 + SEED_BASE * seed) % PRIME


def hash_pairs(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """The hashes of ordered pairs."""
    return (left * 31 + right * 17 + 1) % PRIME


@dataclass
class Words:
    """The words of several documents.

    The texts of all documents, without blanks, are one row of S bytes, which is divided into W
    words. No word spans two documents.

    Attributes:
        text: The bytes, `(S,)`.
        word_of_byte: The word of each byte, `(S,)`.
        starts: The first byte of each word, `(W,)`.
        ends: The byte after the last byte of each word, `(W,)`.
        documents: The document of each word, `(W,)`, ascending.
        word_of_token: The word of the first byte of each token, `(N,)`. A token without bytes in
            `text` gets the next word of its document, or -1 if there is none.
        is_first: Whether a word begins in each token, `(N,)`. The first token of a word may be the
            blank before it.
    """

    text: torch.Tensor
    word_of_byte: torch.Tensor
    starts: torch.Tensor
    ends: torch.Tensor
    documents: torch.Tensor
    word_of_token: torch.Tensor
    is_first: torch.Tensor

    @classmethod
    def of_tokens(
        cls,
        token_bytes: torch.Tensor,
        token_ids: torch.Tensor,
        documents: torch.Tensor,
    ) -> "Words":
        """The words of a row of tokens.

        Args:
            token_bytes: The first bytes of each token of the vocabulary, `(vocab, width)`,
                with zeros after the end of the token.
            token_ids: `(N,)`.
            documents: The document of each token, `(N,)`, ascending.
        """
        bytes_of_tokens = token_bytes[token_ids].long()  # (N, width)
        all_bytes = bytes_of_tokens.flatten()
        indices = indices_where(all_bytes)
        text = all_bytes[indices]
        token_of_byte = indices // token_bytes.shape[1]
        document_of_byte = documents[token_of_byte]

        begins, is_in_word = find_words(text, document_of_byte)
        kept = indices_where(is_in_word)
        text = text[kept]  # (S,)
        token_of_byte = token_of_byte[kept]  # (S,)
        document_of_byte = document_of_byte[kept]  # (S,)
        begins = begins[kept]  # (S,)

        word_of_byte = begins.cumsum(0) - 1
        starts = indices_where(begins)
        end_of_text = starts.new_full((1,), text.shape[0])
        ends = torch.cat((starts, end_of_text))[1:]
        word_of_token = find_words_of_tokens(
            word_of_byte=word_of_byte,
            token_of_byte=token_of_byte,
            document_of_byte=document_of_byte,
            documents=documents,
        )
        is_special = bytes_of_tokens[:, 0] == SEPARATOR
        is_part = (word_of_token >= 0) & ~is_special
        word_of_part = torch.where(is_part, word_of_token, -1)
        word_before = shifted(word_of_part, distance=-1, fill=-1)
        is_first = is_part & (word_of_token != word_before)
        return cls(
            text=text,
            word_of_byte=word_of_byte,
            starts=starts,
            ends=ends,
            documents=document_of_byte[starts],
            word_of_token=word_of_token,
            is_first=is_first,
        )

    @property
    def sizes(self) -> torch.Tensor:
        """The number of bytes of each word, `(W,)`."""
        return self.ends - self.starts

    @property
    def bytes_before(self) -> torch.Tensor:
        """The number of bytes of the same word before each byte, `(S,)`."""
        indices = torch.arange(self.text.shape[0], device=self.text.device)
        return indices - self.starts[self.word_of_byte]

    @property
    def bytes_left(self) -> torch.Tensor:
        """The number of bytes of the same word from each byte on, `(S,)`."""
        indices = torch.arange(self.text.shape[0], device=self.text.device)
        return self.ends[self.word_of_byte] - indices

    def lower(self) -> torch.Tensor:
        """The text with ASCII letters in lower case, `(S,)`."""
        is_capital = (self.text >= ord("A")) & (self.text <= ord("Z"))
        return torch.where(is_capital, self.text + 32, self.text)

    def hash_words(self, text: torch.Tensor) -> torch.Tensor:
        """The hash of each word, `(W,)`, where `text` `(S,)` replaces the bytes."""
        return self._hash(values=text, indices=self.bytes_before, words=self.word_of_byte)

    def hash_shapes(self) -> torch.Tensor:
        """The hash of the shape of each word, `(W,)`.

        A run of bytes of the same shape counts as one: the shape of Film is `Xx`, and that of 20.5
        is `d.d`.
        """
        shapes = BYTE_SHAPES.to(self.text.device)[self.text]
        begins_run = shapes != shifted(shapes, distance=-1)
        begins_run |= self.bytes_before == 0
        runs = begins_run.cumsum(0)
        indices = runs - runs[self.starts[self.word_of_byte]]
        first_bytes = indices_where(begins_run)
        return self._hash(
            values=shapes[first_bytes],
            indices=indices[first_bytes],
            words=self.word_of_byte[first_bytes],
        )

    def _hash(
        self,
        values: torch.Tensor,
        indices: torch.Tensor,
        words: torch.Tensor,
    ) -> torch.Tensor:
        """The polynomial hash of the values of each word, `(W,)`.

        Args:
            values: `(V,)`.
            indices: The index of each value in its word, `(V,)`.
            words: The word of each value, `(V,)`.
        """
        indices = indices.clamp(max=MAX_WORD_BYTES - 1)
        powers = HASH_POWERS.to(values.device)[indices]
        terms = (values + 1) * powers
        sums = torch.zeros_like(self.starts).index_add(0, words, terms)
        return sums % PRIME


def find_words(text: torch.Tensor, documents: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Whether a word begins at each byte, and whether the byte belongs to a word, each `(T,)`.

    Args:
        text: The bytes, `(T,)`.
        documents: The document of each byte, `(T,)`, ascending.
    """
    kinds = BYTE_KINDS.to(text.device)[text]
    is_lead = kinds != INNER
    # A cumulative maximum would find the first byte of each character too, but exporters do not
    # support it over a size that depends on the data.
    lead_indices = F.pad(indices_where(is_lead), (1, 0))
    lead_of_byte = lead_indices[is_lead.cumsum(0)]
    kind_of_character = kinds[lead_of_byte]
    kind_before = shifted(kind_of_character, distance=-1, fill=BLANK)

    begins = kinds == SINGLE
    begins |= (kinds == LETTER) & (kind_before != LETTER)
    begins |= is_lead & ~has_previous(documents)
    is_in_word = (kind_of_character != BLANK) & (begins.cumsum(0) > 0)
    return begins, is_in_word


def find_words_of_tokens(
    word_of_byte: torch.Tensor,
    token_of_byte: torch.Tensor,
    document_of_byte: torch.Tensor,
    documents: torch.Tensor,
) -> torch.Tensor:
    """The word of the first byte of each token, `(N,)`.

    A tokenizer may make the blank before a word a token of its own. A token without bytes therefore
    gets the next word of its document, or -1 if there is none.

    Args:
        word_of_byte: `(S,)`.
        token_of_byte: `(S,)`.
        document_of_byte: `(S,)`.
        documents: The document of each token, `(N,)`.
    """
    ones = torch.ones_like(token_of_byte)
    num_bytes = torch.zeros_like(documents).index_add(0, token_of_byte, ones)
    next_byte = num_bytes.cumsum(0) - num_bytes
    # If no byte follows the last tokens, their next byte is the one that is appended here.
    words = F.pad(word_of_byte, (0, 1), value=-1)
    documents_of_words = F.pad(document_of_byte, (0, 1), value=-1)
    is_in_document = documents_of_words[next_byte] == documents
    return torch.where(is_in_document, words[next_byte], -1)


def hash_substrings(text: torch.Tensor, max_length: int) -> list[torch.Tensor]:
    """The hashes of the substrings that begin at each byte, `(S,)` for each length from 1 to
    `max_length`. A substring may extend beyond the end of its word.

    Args:
        text: The bytes, `(S,)`.
        max_length: In bytes.
    """
    hashes = torch.zeros_like(text)
    hashes_by_length = []
    for length in range(1, max_length + 1):
        last_byte = shifted(text, distance=length - 1)
        hashes = (hashes * HASH_BASE + last_byte + 1) % PRIME
        hashes_by_length.append(hashes)
    return hashes_by_length
