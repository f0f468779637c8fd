"""The words behind token ids: the bytes of the tokens are put together and cut into words.

What reads the text in this way needs no input but `input_ids`, so that pipelines, servers and exported graphs work as
without it, and finds the same words whatever the tokens are.
"""

from dataclasses import dataclass

import torch
from torch.nn import functional as F
from transformers.utils.import_utils import is_tracing

LONGEST_TOKEN = 32  # bytes of a token that the table holds; what follows is not read
_LONGEST_WORD = 48  # bytes of a word that tell it from others
SEPARATOR = 0x1F  # the byte of a special token, a blank that no text has
PRIME, _BASE = 2**31 - 1, 1_000_003  # of the polynomial hashes; products of two numbers below fit 64 bits

# What a byte of UTF-8 is in a text: between words, in a word, a character that is a word, or inside a character.
_BLANK, _LETTER, _SINGLE, _INNER = range(4)


def _byte_kinds() -> torch.Tensor:
    """The kind of each byte, `(256,)`.

    The first byte of a character tells its block. Beyond ASCII, the blocks of punctuation, symbols, kana and Han
    (U+0080 to 00BF, U+2000 to 9FFF, from U+F000) are characters that are words, all others letters.
    """
    kinds = torch.full((256,), _LETTER)
    kinds[:128] = torch.tensor([_LETTER if chr(byte).isalnum() else _SINGLE for byte in range(128)])
    kinds[:33], kinds[127] = _BLANK, _BLANK
    kinds[0x80:0xC0] = _INNER
    kinds[0xC2], kinds[0xE2:0xEA], kinds[0xEF:] = _SINGLE, _SINGLE, _SINGLE
    return kinds


def _byte_shapes() -> torch.Tensor:
    """1 for a capital of ASCII, 2 for a small letter, 3 for a digit, 4 beyond ASCII; others stand for themselves."""
    shapes = torch.arange(256)
    shapes[ord("A") : ord("Z") + 1], shapes[ord("a") : ord("z") + 1], shapes[ord("0") : ord("9") + 1] = 1, 2, 3
    shapes[128:] = 4
    return shapes


_KINDS, _SHAPES = _byte_kinds(), _byte_shapes()
_POWERS = torch.tensor([pow(_BASE, place, PRIME) for place in range(_LONGEST_WORD)])


@dataclass
class Words:
    """The words of some documents: S bytes, blanks left out, cut into W words, none across two documents."""

    text: torch.Tensor  # (S,) bytes
    word_of_byte: torch.Tensor  # (S,)
    starts: torch.Tensor  # (W,) first byte of each word
    ends: torch.Tensor  # (W,) the byte after its last
    documents: torch.Tensor  # (W,) the number of its document, rising
    word_of_token: torch.Tensor  # (N,) the first word of a token or behind it, -1 after the last of its document
    is_first: torch.Tensor  # (N,) bool, the token that a word begins with, with the blank before it

    @classmethod
    def of_tokens(cls, token_bytes: torch.Tensor, token_ids: torch.Tensor, documents: torch.Tensor) -> "Words":
        """The words behind token ids `(N,)`.

        Args:
            token_bytes: The first bytes of each token, `(vocab, LONGEST_TOKEN)`, 0 after its end.
            token_ids: `(N,)`.
            documents: The number of the document of each token, `(N,)`, rising.
        """
        characters = token_bytes[token_ids].long()  # (N, LONGEST_TOKEN)
        there = places_where(characters.flatten())  # (S,) with the blanks
        text, tokens = characters.flatten()[there], there // LONGEST_TOKEN
        owners = documents[tokens]
        kinds = _KINDS.to(text.device)[text]
        places = torch.arange(text.shape[0], device=text.device)
        lead = torch.where(kinds == _INNER, 0, places).cummax(0)[0]  # first byte of the character
        kinds_of_lead = kinds[lead]
        before = F.pad(kinds_of_lead, (1, 0), value=_BLANK)[:-1]
        begins = (kinds == _SINGLE) | ((kinds == _LETTER) & (before != _LETTER))
        begins |= (kinds != _INNER) & (F.pad(owners, (1, 0), value=-1)[:-1] != owners)
        in_word = (kinds_of_lead != _BLANK) & (begins.cumsum(0) > 0)
        kept = places_where(in_word)
        text, owners, begins, tokens = text[kept], owners[kept], begins[kept], tokens[kept]  # each (S,)
        words = begins.cumsum(0) - 1
        starts = places_where(begins)
        ends = torch.cat((starts, starts.new_full((1,), text.shape[0])))[1:]  # none where there is no word
        word_of_token = _first_words(words, tokens, owners, documents)
        is_part = (word_of_token >= 0) & (characters[:, 0] != SEPARATOR)
        word_of_part = torch.where(is_part, word_of_token, -1)
        is_first = is_part & (F.pad(word_of_part, (1, 0), value=-1)[:-1] != word_of_token)
        return cls(text, words, starts, ends, owners[starts], word_of_token, is_first)

    def lower(self) -> torch.Tensor:
        """The text with small ASCII letters, `(S,)`."""
        return torch.where((self.text >= ord("A")) & (self.text <= ord("Z")), self.text + 32, self.text)

    def hash_words(self, text: torch.Tensor) -> torch.Tensor:
        """A number of each word `(W,)` from bytes `(S,)`, those of the text or others in their place."""
        places = torch.arange(text.shape[0], device=text.device) - self.starts[self.word_of_byte]
        return self._hash(text, places, self.word_of_byte)

    def shapes(self) -> torch.Tensor:
        """A number of the shape of each word, `(W,)`: that of `Xx` for Film and of `d.d` for 20.5, where each run of
        one kind of character is one letter."""
        shapes = _SHAPES.to(self.text.device)[self.text]
        is_first = torch.arange(shapes.shape[0], device=shapes.device) == self.starts[self.word_of_byte]
        is_new = is_first | (shapes != F.pad(shapes, (1, 0))[:-1])
        runs = is_new.cumsum(0)
        places = runs - runs[self.starts[self.word_of_byte]]
        return self._hash(shapes[is_new], places[is_new], self.word_of_byte[is_new])

    def _hash(self, values: torch.Tensor, places: torch.Tensor, words: torch.Tensor) -> torch.Tensor:
        """The polynomial of the values of each word, by their places in it."""
        powers = _POWERS.to(values.device)[places.clamp(max=_LONGEST_WORD - 1)]
        return torch.zeros_like(self.starts).index_add(0, words, (values + 1) * powers) % PRIME

    def parts(self, text: torch.Tensor, longest: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """For each length from 1 to `longest`: a number of the bytes from each place on, and whether so many are left
        in the word, both `(S,)`."""
        left = self.ends[self.word_of_byte] - torch.arange(text.shape[0], device=text.device)
        windows, parts = torch.zeros_like(text), []
        for length in range(1, longest + 1):
            shifted = F.pad(text, (0, length - 1))[length - 1 :]
            windows = (windows * _BASE + shifted + 1) % PRIME
            parts.append((windows, left >= length))
        return parts


def places_where(condition: torch.Tensor) -> torch.Tensor:
    """Where `condition` `(N,)` is true. Exported graphs fail to index by a condition that holds nowhere."""
    return condition.nonzero()[:, 0]


def places_in(rising: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """How many of `rising` `(F,)` are smaller than each of `values`. Exporters compare every pair for `searchsorted`;
    by halving, a graph of 2 to the power of 17 hashes reads 17 of them."""
    if not is_tracing(values):
        return torch.searchsorted(rising, values)
    places = torch.zeros_like(values)
    step = 1 << (rising.shape[0].bit_length() - 1)
    while step:
        further = places + step
        is_smaller = rising[further.clamp(max=rising.shape[0]) - 1] < values
        places = torch.where((further <= rising.shape[0]) & is_smaller, further, places)
        step //= 2
    return places


def seeded(hashes: torch.Tensor, seed: int) -> torch.Tensor:
    """Other numbers for features of another sort."""
    return (hashes * 31 + 1_000_033 * seed) % PRIME


def join(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """A number of two things in this order."""
    return (left * 31 + right * 17 + 1) % PRIME


def _first_words(
    words: torch.Tensor, tokens: torch.Tensor, owners: torch.Tensor, documents: torch.Tensor
) -> torch.Tensor:
    """The word of the first byte of each token, or of the next token that has one, as a tokenizer may cut the blank
    before a word from it; -1 where none follows in the document.

    Args:
        words, tokens, owners: Of each byte its word, token and document, `(S,)`.
        documents: Of each token, `(N,)`.
    """
    words, owners = F.pad(words, (0, 1), value=-1), F.pad(owners, (0, 1), value=-1)  # there may be no byte behind
    sizes = torch.zeros_like(documents).index_add(0, tokens, torch.ones_like(tokens))  # (N,) bytes of each token
    first = sizes.cumsum(0) - sizes
    return torch.where(owners[first] == documents, words[first], -1)
