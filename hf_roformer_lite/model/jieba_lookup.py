"""The tokens of a text by Jieba's words, each word's looked up in memory; for `RoFormerLiteJiebaTokenizer`."""

import re
import unicodedata
from collections.abc import Callable
from itertools import accumulate, chain, compress, pairwise
from types import ModuleType
from typing import TypeVar

import tokenizers
from tokenizers import Tokenizer, normalizers

# Words whose tokens are remembered at a time, about 20 MB; a tenth of them covers most of running text.
_REMEMBERED = 100_000

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


class NeedsBackend(Exception):
    """Raised for a text whose tokens only the backend can tell."""


class WordLookup:
    """The tokens of a text, found word by word in memory; and a pre-tokenizer that finds the same words."""

    def __init__(self, backend: Tokenizer):
        self._model = backend.model
        self._normalizer = backend.normalizer
        self._around_chinese = normalizers.BertNormalizer(
            clean_text=False, handle_chinese_chars=True, strip_accents=False, lowercase=False
        )
        self._cut = require_rjieba().cut
        added = [token.content for token in backend.get_added_tokens_decoder().values()]
        added += list(map(self._normalizer.normalize_str, added))
        self._added = re.compile("|".join(map(re.escape, filter(None, added))) or "(?!)")
        self._resized: set[str] = set()
        self._characters: _Memory[int, str] = _Memory(self._normalize)
        self._ids: _Memory[str, list[int]] = _Memory(self._ids_of)
        self._lengths: _Memory[str, list[int]] = _Memory(self._lengths_of)

    def encode(self, text: str, with_offsets: bool) -> tuple[list[int], list[tuple[int, int]]]:
        """The ids of a text, without special tokens, and, if wanted, where each token lies in it."""
        normalized = text.translate(self._characters)
        if self._added.search(text) or self._added.search(normalized):
            raise NeedsBackend
        words = self._cut(normalized, False)
        ids = list(chain.from_iterable(map(self._ids.__getitem__, words)))
        return ids, self._offsets(text, words) if with_offsets else []

    def _offsets(self, text: str, words: list[str]) -> list[tuple[int, int]]:
        lengths = list(chain.from_iterable(map(self._lengths.__getitem__, words)))
        spans = compress(pairwise(accumulate(map(abs, lengths), initial=0)), map((0).__lt__, lengths))
        if self._resized.isdisjoint(text):
            return list(spans)
        origin = [index for index, character in enumerate(text) for _ in self._characters[ord(character)]]
        return [(origin[start], origin[end - 1] + 1) for start, end in spans]

    def _normalize(self, code: int) -> str:
        """What becomes of a character; `NeedsBackend` if its neighbours matter: canonical order moves marks."""
        normalized = self._normalizer.normalize_str(chr(code))
        if any(map(unicodedata.combining, normalized)):
            raise NeedsBackend
        if len(normalized) != 1:
            self._resized.add(chr(code))
        return normalized

    def _ids_of(self, word: str) -> list[int]:
        return [token.id for piece in self._pieces(word) for token in self._model.tokenize(piece)]

    def _lengths_of(self, word: str) -> list[int]:
        """The characters of each token; of a word without tokens, their number below zero."""
        lengths = []
        for piece in self._pieces(word):
            octets = piece.encode()
            lengths += [len(octets[slice(*token.offsets)].decode()) for token in self._model.tokenize(piece)]
        return lengths or [-len(word)]

    def _pieces(self, word: str) -> list[str]:
        """A word of the vocabulary whole, any other cut around its Chinese characters; nothing of white space."""
        if self._model.token_to_id(word) is not None:
            return [word]
        return self._around_chinese.normalize_str(word).split()

    def pre_tokenize(self, text: tokenizers.PreTokenizedString) -> None:
        """Called by the backend; cuts all parts of the text, which added tokens may have divided."""
        text.split(lambda _, part: self._split(part))

    def _split(self, text: tokenizers.NormalizedString) -> list[tokenizers.NormalizedString]:
        parts, position = [], 0
        for word in self._cut(str(text), False):
            lengths = map(len, self._pieces(word))
            parts += [text[start:end] for start, end in pairwise(accumulate(lengths, initial=position))]
            position += len(word)
        return parts


class _Memory(dict[_Key, _Value]):
    """Remembers what `compute` makes of a key, and forgets everything when it is full."""

    def __init__(self, compute: Callable[[_Key], _Value]):
        super().__init__()
        self._compute = compute

    def __missing__(self, key: _Key) -> _Value:
        value = self._compute(key)
        if len(self) >= _REMEMBERED:
            self.clear()
        self[key] = value
        return value


def require_rjieba() -> ModuleType:
    try:
        import rjieba
    except ImportError as error:
        raise ImportError(
            'RoFormerLiteJiebaTokenizer needs rjieba, which is not installed: pip install "hf_roformer_lite[jieba]"'
        ) from error
    return rjieba
