"""A linear model beside the encoder: scores of hashed n-grams of words and characters, read from the token ids.

On a few thousand short texts a linear model on n-grams is hard to beat (Wang & Manning 2012, ACL; Joulin et al. 2017,
EACL), and it errs elsewhere than an encoder does. The n-grams are those of the text, not of the tokens: a table knows
the bytes of each token, and the bytes of a document are put together again. Nothing but `input_ids` is needed, so
that pipelines, servers and exported graphs need no further input.
"""

import torch
from torch import nn
from torch.nn import functional as F
from transformers import initialization as init

from .configuration_roformer_lite import RoFormerLiteConfig

LONGEST_TOKEN = 32  # bytes of a token that the table holds; what follows is not read
_LONGEST_WORD = 48  # bytes of a word that tell it from others
_CHARACTER_NGRAMS = (2, 3, 4, 5)  # bytes
_AFFIXES = (1, 2, 3, 4)  # bytes
_PRIME, _BASE = 2**31 - 1, 1_000_003  # of the polynomial hashes; products of two numbers below fit 64 bits

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


_KINDS = _byte_kinds()
_POWERS = torch.tensor([pow(_BASE, place, _PRIME) for place in range(_LONGEST_WORD)])


class RoFormerLiteNgramScores(nn.Module):
    """Scores of the n-grams of a document, `(documents, num_labels)`, to be added to the logits of a classifier.

    The n-grams are words and pairs of words, and of each word of two bytes or more its substrings of 2 to 5 bytes and
    its first and last 1 to 4 bytes; ASCII letters count as lower case. Only those in a table of `classifier_ngrams`
    rows count, each once a document and with the weight `rarity` of its row; the sum of their scores is divided by the
    Euclidean norm of these weights. An n-gram is known by a hash of 31 bits.

    The scores are zero at first. `roformer-lite train classify` fits them; gradients reach them as well.
    """

    def __init__(self, config: RoFormerLiteConfig, num_labels: int):
        super().__init__()
        rows = config.classifier_ngrams
        self.weight = nn.Parameter(torch.zeros(rows, num_labels))
        self.register_buffer("hashes", torch.arange(rows))  # rising
        self.register_buffer("rarity", torch.ones(rows))
        self.register_buffer("token_bytes", torch.zeros(config.vocab_size, LONGEST_TOKEN, dtype=torch.uint8))

    def init_weights(self) -> None:
        """Scores of nothing, for what a checkpoint lacks."""
        init.zeros_(self.weight)
        init.copy_(self.hashes, torch.arange(len(self.hashes)))
        init.ones_(self.rarity)
        init.zeros_(self.token_bytes)

    def resize_vocabulary(self, size: int) -> None:
        """Room for `size` tokens; new ones have no bytes and so no n-grams."""
        self.token_bytes = F.pad(self.token_bytes, (0, 0, 0, size - len(self.token_bytes)))

    def forward(self, token_ids: torch.Tensor, documents: torch.Tensor, num_documents: int) -> torch.Tensor:
        """Scores `(num_documents, num_labels)` of real tokens `(N,)`, each in the document `documents` `(N,)`."""
        rows, owners = self.rows(token_ids, documents)  # each (K,)
        weights = self.rarity[rows]  # (K,)
        norms = weights.new_zeros(num_documents).index_add(0, owners, weights.square()).sqrt()
        offsets = torch.searchsorted(owners, torch.arange(num_documents, device=owners.device))
        sums = F.embedding_bag(rows, self.weight, offsets, mode="sum", per_sample_weights=weights)
        return sums / norms.clamp(min=1e-6)[:, None]

    def rows(self, token_ids: torch.Tensor, documents: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The rows of the table that are in each document, and the documents in rising order; each `(K,)`."""
        keys, owners = self.find_ngrams(token_ids, documents)
        places = torch.searchsorted(self.hashes, keys).clamp(max=len(self.hashes) - 1)
        is_known = self.hashes[places] == keys
        found = torch.unique(owners[is_known] * len(self.hashes) + places[is_known])
        return found % len(self.hashes), found // len(self.hashes)

    def find_ngrams(self, token_ids: torch.Tensor, documents: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The hash and the document of each n-gram, known or not, as often as it occurs; each `(K,)`."""
        return self._hashes(*self._text(token_ids, documents))

    def _text(self, token_ids: torch.Tensor, documents: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The bytes of the text in lower case, and the document of each, `(S,)`."""
        characters = self.token_bytes[token_ids].long()  # (N, LONGEST_TOKEN), 0 after the end of a token
        is_there = characters > 0
        text, owners = characters[is_there], documents[:, None].expand_as(characters)[is_there]  # (S,)
        return torch.where((text >= ord("A")) & (text <= ord("Z")), text + 32, text), owners

    def _hashes(self, text: torch.Tensor, documents: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """A number below `_PRIME` and the document of each n-gram, `(K,)`."""
        kinds = _KINDS.to(text.device)[text]
        places = torch.arange(len(text), device=text.device)
        lead = torch.where(kinds == _INNER, 0, places).cummax(0).values  # first byte of the character
        kinds_of_lead = kinds[lead]
        before = F.pad(kinds_of_lead, (1, 0), value=_BLANK)[:-1]
        begins = (kinds == _SINGLE) | ((kinds == _LETTER) & (before != _LETTER))
        begins |= (kinds != _INNER) & (F.pad(documents, (1, 0), value=-1)[:-1] != documents)
        in_word = (kinds_of_lead != _BLANK) & (begins.cumsum(0) > 0)
        text, documents, begins = text[in_word], documents[in_word], begins[in_word]  # (S,) without the blanks
        words = begins.cumsum(0) - 1  # (S,)
        starts = begins.nonzero().squeeze(-1)  # (W,)
        ends = torch.cat((starts[1:], starts.new_full((1,), len(text))))
        return self._word_hashes(text, documents, words, starts, ends)

    def _word_hashes(
        self,
        text: torch.Tensor,
        documents: torch.Tensor,
        words: torch.Tensor,
        starts: torch.Tensor,
        ends: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The n-grams of words that `starts` and `ends` `(W,)` cut from `text` `(S,)`."""
        places = torch.arange(len(text), device=text.device)
        place_in_word = (places - starts[words]).clamp(max=_LONGEST_WORD - 1)
        powers = _POWERS.to(text.device)[place_in_word]  # (S,)
        hashes = torch.zeros_like(starts).index_add(0, words, (text + 1) * powers) % _PRIME  # (W,)
        owners = documents[starts]  # (W,)
        same = owners[1:] == owners[:-1]
        pairs = (hashes[:-1] * 31 + hashes[1:] * 17 + 1) % _PRIME
        keys, of = [hashes, pairs[same]], [owners, owners[1:][same]]
        is_long = (ends - starts > 1)[words]  # (S,)
        left = ends[words] - places  # bytes up to the end of the word
        windows = torch.zeros_like(text)
        for length in range(1, max(_CHARACTER_NGRAMS) + 1):
            fits = is_long & (left >= length)
            shifted = F.pad(text, (0, length - 1), value=0)[length - 1 :]
            windows = (windows * _BASE + shifted + 1) % _PRIME  # the bytes from here on, `length` of them
            if length in _CHARACTER_NGRAMS:
                keys.append(_seeded(windows, length)[fits])
                of.append(documents[fits])
            if length in _AFFIXES:
                for seed, chosen in ((10, fits & (places == starts[words])), (20, fits & (left == length))):
                    keys.append(_seeded(windows, seed + length)[chosen])
                    of.append(documents[chosen])
        return torch.cat(keys), torch.cat(of)


def _seeded(hashes: torch.Tensor, seed: int) -> torch.Tensor:
    """Other numbers for n-grams of another sort."""
    return (hashes * 31 + 1_000_033 * seed) % _PRIME
