"""Tokenizer of RoFormer checkpoints: Jieba's words where the vocabulary has them, else characters and WordPiece."""

import os
import re
import sys
import threading
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, partial
from itertools import accumulate, chain, compress, pairwise
from types import ModuleType
from typing import Any, NamedTuple, TypeVar

import tokenizers
from tokenizers import Encoding, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import BatchEncoding
from transformers.tokenization_utils_base import TruncationStrategy
from transformers.tokenization_utils_tokenizers import TokenizersBackend
from transformers.utils import PaddingStrategy

from .configuration_roformer_lite import RemoteCodeTokenizer
from .tokenization_roformer_lite import SPECIAL_TOKENS

_FLAGS = {name: f"return_{name}" for name in ("token_type_ids", "attention_mask", "special_tokens_mask")}
_FLAGS["offset_mapping"] = "return_offsets_mapping"
# Options that ask for more than one row of numbers for each text.
_BACKEND_ONLY = ("is_split_into_words", "return_overflowing_tokens", "stride", "sanitize_control_tokens")

# Words whose tokens are remembered at a time, about 20 MB; a tenth of them covers most of running text.
_REMEMBERED = 100_000

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")

# Whoever changes a backend waits, holding Python's own lock, for the calls that use it; these wait for Python's lock
# to call Jieba. So only one thread at a time may do either. No fork may happen meanwhile: its lock would stay shut.
_one_at_a_time = threading.RLock()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_one_at_a_time.acquire,
        after_in_parent=_one_at_a_time.release,
        after_in_child=_one_at_a_time.release,
    )


class RoFormerLiteJiebaTokenizer(RemoteCodeTokenizer, TokenizersBackend):
    """
    Opens the directories of HF's `RoFormerTokenizer` and `RoFormerTokenizerFast` (RoFormer, Su et al. 2021: a Chinese
    model of words) and gives the ids and offsets of an HF tokenizer constructed from the same vocabulary. Needs the
    package rjieba.

    **Splitting.** The text is cleaned and lower-cased as BERT does, and cut by Jieba, without its hidden Markov model.
    A word of the vocabulary is one token. Any other is cut around its Chinese characters, and WordPiece does the rest.

    **Speed.** Ids, masks and offsets are looked up word by word. The slower backend does the rest: texts with added
    tokens or combining marks, pairs to be truncated, text split into words, overflowing tokens, and what a
    `BatchEncoding` offers besides its columns (`tokens()`, `word_ids()`, `char_to_token()` …). The latter is computed
    on first use or when pickled, with the tokenizer as it is then: worker processes should send `dict(batch)`.

    **Storage.** `tokenizer.json` names BERT's pre-tokenizer, as HF's does: the format cannot hold a call of Jieba.

    Args:
        vocab: token to id, or the path of a `vocab.txt` with one token a line.
        do_lower_case: lower case, and no accents unless `strip_accents` says otherwise.
        strip_accents: whether accents go; `None` is the value of `do_lower_case`.
        pad_token, unk_token, cls_token, sep_token, mask_token: special tokens other than `[PAD]` and so on.

    Raises:
        ImportError: rjieba is not installed.
    """

    vocab_files_names = {"vocab_file": "vocab.txt", "tokenizer_file": "tokenizer.json"}
    model = models.WordPiece

    def __init__(
        self,
        vocab: dict[str, int] | str | os.PathLike,
        do_lower_case: bool = True,
        strip_accents: bool | None = None,
        **kwargs: Any,
    ):
        require_rjieba()
        kwargs = {f"{token[1:-1].lower()}_token": token for token in SPECIAL_TOKENS} | kwargs
        if not isinstance(vocab, dict):
            vocab = models.WordPiece.read_file(os.fspath(vocab))
        backend = Tokenizer(models.WordPiece(vocab, unk_token=str(kwargs["unk_token"])))
        backend.normalizer = normalizers.BertNormalizer(
            clean_text=True, handle_chinese_chars=False, strip_accents=strip_accents, lowercase=do_lower_case
        )
        backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        backend.decoder = decoders.WordPiece()
        super().__init__(tokenizer_object=backend, do_lower_case=do_lower_case, strip_accents=strip_accents, **kwargs)
        self.update_post_processor()

    def update_post_processor(self) -> None:
        """`[CLS] x [SEP]`, and `[CLS] a [SEP] b [SEP]` for pairs (token types 0 and 1)."""
        single = f"{self.cls_token}:0 $A:0 {self.sep_token}:0"
        self.backend_tokenizer.post_processor = processors.TemplateProcessing(
            single=single,
            pair=f"{single} $B:1 {self.sep_token}:1",
            special_tokens=[(self.cls_token, self.cls_token_id), (self.sep_token, self.sep_token_id)],
        )

    def save_vocabulary(self, save_directory: str, filename_prefix: str | None = None) -> tuple[str, ...]:
        """Writes `vocab.txt`, without added tokens, and returns its path."""
        return tuple(self.backend_tokenizer.model.save(os.fspath(save_directory), filename_prefix))

    def train_new_from_iterator(self, *args: Any, **kwargs: Any) -> "RoFormerLiteJiebaTokenizer":
        """Raises `NotImplementedError`: the trainers of `tokenizers` cannot call Jieba."""
        raise NotImplementedError(f"{type(self).__name__} is made from a vocabulary; it cannot be trained")

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_lookup"}

    def add_tokens(self, *args: Any, **kwargs: Any) -> int:
        """As in every tokenizer of transformers; texts with added tokens are looked up anew."""
        self.__dict__.pop("_lookup", None)
        return super().add_tokens(*args, **kwargs)

    @cached_property
    def _lookup(self) -> "WordLookup":
        return WordLookup(self.backend_tokenizer)

    # A private name of transformers, for the reason beside that of RoFormerLiteTokenizer.
    def _encode_plus(self, text: Any, text_pair: Any = None, **options: Any) -> BatchEncoding:
        by_backend = partial(self._encode_by_backend, text, text_pair, **options)
        batched = isinstance(text, list | tuple)
        texts, pairs = (text, text_pair) if batched else ([text], [text_pair] if text_pair else None)
        valid = _are_texts(texts) and (pairs is None or _are_texts(pairs) and len(pairs) == len(texts))
        if not valid or any(options.get(name) for name in _BACKEND_ONLY):
            return by_backend()
        rows = list(self._rows(list(zip(texts) if pairs is None else zip(texts, pairs, strict=True)), **options))
        columns = self._columns(rows, **options)
        tensors = options.get("return_tensors")
        if not batched and tensors is None:
            columns = {name: column[0] if isinstance(column[0], list) else column for name, column in columns.items()}
        return BatchEncoding(columns, _Encodings(len(rows), by_backend), tensors, n_sequences=1 + (pairs is not None))

    def _rows(self, texts: list[tuple[str, ...]], **options: Any) -> Iterator["_Row"]:
        """A row for each text or pair of texts, truncated if wanted."""
        encode, single = self._lookup.encode, len(texts[0]) == 1
        has_special_tokens = options.get("add_special_tokens", True)
        before, after = ([self.cls_token_id], [self.sep_token_id]) if has_special_tokens else ([], [])
        with_offsets, around = options.get("return_offsets_mapping", False), [(0, 0)] * len(after)
        strategy, space = options.get("truncation_strategy", TruncationStrategy.DO_NOT_TRUNCATE), sys.maxsize
        if strategy != TruncationStrategy.DO_NOT_TRUNCATE:
            space = options["max_length"] - len(before) - len(after) * len(texts[0])
        can_cut = single and space > 0 and strategy != TruncationStrategy.ONLY_SECOND
        kept = slice(space) if self.truncation_side == "right" else slice(-space, None)
        for row in texts:
            try:
                ids, offsets = encode(row[0], with_offsets)
                more, more_offsets = ([], []) if single else encode(row[1], with_offsets)
                if len(ids) + len(more) > space:
                    if not can_cut:
                        raise NeedsBackend
                    ids, offsets = ids[kept], offsets[kept]
            except (NeedsBackend, UnicodeEncodeError):
                yield self._row_by_backend(row, has_special_tokens, **options)
                continue
            ids, offsets = [*before, *ids, *after], [*around, *offsets, *around]
            first = len(ids)
            if not single:
                ids, offsets = [*ids, *more, *after], [*offsets, *more_offsets, *around]
            yield _Row(ids, offsets, first, has_special_tokens)

    def _row_by_backend(self, texts: tuple[str, ...], has_special_tokens: bool, **options: Any) -> "_Row":
        options |= {"padding_strategy": PaddingStrategy.DO_NOT_PAD, "return_tensors": None, "verbose": False}
        options |= {"return_token_type_ids": True, "return_offsets_mapping": True}
        row = self._encode_by_backend(*([text] for text in texts), **options)
        first = row["token_type_ids"][0].count(0)
        return _Row(row["input_ids"][0], row["offset_mapping"][0], first, has_special_tokens)

    def _columns(
        self,
        rows: list["_Row"],
        padding_strategy: PaddingStrategy = PaddingStrategy.DO_NOT_PAD,
        max_length: int | None = None,
        pad_to_multiple_of: int | None = None,
        padding_side: str | None = None,
        return_length: bool = False,
        verbose: bool = True,
        **options: Any,
    ) -> dict[str, list[Any]]:
        """The wanted columns of a batch, padded if wanted."""
        wanted = {name: options.get(flag) for name, flag in _FLAGS.items()}
        names = [name for name, flag in wanted.items() if (name in self.model_input_names if flag is None else flag)]
        columns = {name: [getattr(row, name) for row in rows] for name in ("input_ids", *names)}
        if padding_strategy != PaddingStrategy.DO_NOT_PAD:
            fills = {"input_ids": self.pad_token_id, "token_type_ids": self.pad_token_type_id, "attention_mask": 0}
            fills |= {"special_tokens_mask": 1, "offset_mapping": (0, 0)}
            fixed = padding_strategy == PaddingStrategy.MAX_LENGTH
            length = max_length if fixed else max(map(len, columns["input_ids"]))
            length += -length % (pad_to_multiple_of or 1)
            right = (padding_side or self.padding_side) == "right"
            for name, column in columns.items():
                for values in column:
                    place = len(values) if right else 0
                    values[place:place] = [fills[name]] * (length - len(values))
        if return_length:
            columns["length"] = list(map(len, columns["input_ids"]))
        return columns

    def _encode_by_backend(self, text: Any, text_pair: Any = None, **options: Any) -> BatchEncoding:
        # With Jieba inside, the backend could not be pickled, copied or saved: it is lent for this call only.
        with _one_at_a_time:
            before = self.backend_tokenizer.pre_tokenizer
            self.backend_tokenizer.pre_tokenizer = pre_tokenizers.PreTokenizer.custom(self._lookup)
            try:
                return super()._encode_plus(text, text_pair, **options)
            finally:
                self.backend_tokenizer.pre_tokenizer = before


class _Row(NamedTuple):
    """The numbers of a text, or of a pair whose first text has `first` tokens, special ones included."""

    input_ids: list[int]
    offset_mapping: list[tuple[int, int]]
    first: int
    has_special_tokens: bool

    @property
    def token_type_ids(self) -> list[int]:
        return [0] * self.first + [1] * (len(self.input_ids) - self.first)

    @property
    def attention_mask(self) -> list[int]:
        return [1] * len(self.input_ids)

    @property
    def special_tokens_mask(self) -> list[int]:
        mask = [0] * len(self.input_ids)
        if self.has_special_tokens:
            mask[0] = mask[self.first - 1] = mask[-1] = 1
        return mask


class _Encodings(Sequence[Encoding]):
    """The encodings of a batch, made when one is asked for."""

    def __init__(self, size: int, encode: Callable[[], BatchEncoding]):
        self._size = size
        self._encode = encode

    @cached_property
    def _made(self) -> list[Encoding]:
        return self._encode().encodings

    def __getitem__(self, index: Any) -> Any:
        return self._made[index]

    def __len__(self) -> int:
        return self._size

    def __reduce__(self) -> tuple[type[list], tuple[list[Encoding]]]:
        return list, (self._made,)


def _are_texts(items: Any) -> bool:
    return isinstance(items, list | tuple) and len(items) > 0 and all(isinstance(item, str) for item in items)


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


__all__ = ["RoFormerLiteJiebaTokenizer"]
