"""What trains a tokenizer: its texts, very long words in them, and Unigram with byte fallback.

No part of a model, so that it does not travel to the Hub with one. `RoFormerLiteTokenizer.train`
calls it.
"""

import gzip
import json
import os
import re
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

from tokenizers import Regex, Tokenizer, models, pre_tokenizers
from tokenizers.trainers import UnigramTrainer
from transformers.tokenization_utils_tokenizers import TokenizersBackend
from transformers.utils import logging

logger = logging.get_logger(__name__)

# No word of a language is as long, nor often a run of Chinese between two marks of punctuation.
# Data of other kinds are: encoded images, sequences of proteins, rulers made of hyphens. The space
# before a word is a part of it.
_LONGEST_WORD = 256
_LONG_RUN = re.compile(rf" ?(?<!\S)\S{{{_LONGEST_WORD},}}|(?<!\s)\s{{{_LONGEST_WORD + 1},}}")
_AT_ONCE = 2**20  # characters of a run that are split into words at once
# SentencePiece (Kudo & Richardson 2018) recommends to cover this share of running Chinese and
# Japanese characters.
_CHARACTER_COVERAGE = 0.9995
# Two characters that never get a piece, free to delimit and to mark words while Unigram is trained.
_DELIMITER, _MARK = "\x00", "\uffff"
# Words seen this often are candidates for a piece. On 27,000 short Chinese–English sentence pairs
# and 8,192 entries, 5 makes 2 % fewer tokens than 2 in English and 4 % fewer in Chinese (3 lies in
# between).
_COMMON_WORD = 5


def trained(
    tokenizer: TokenizersBackend,
    text_iterator: Iterable[str] | Iterable[list[str]],
    vocab_size: int,
    is_bound: bool = False,
    length: int | None = None,
    min_frequency: int = 2,
    new_special_tokens: list[Any] | None = None,
    special_tokens_map: dict[str, str] | None = None,
    **kwargs: Any,
) -> Any:
    """A tokenizer of the kind of `tokenizer`, a `RoFormerLiteTokenizer`, with `vocab_size` entries.
    Where the alphabet alone takes more, it has more, and a warning says so; with `is_bound` that is
    a `ValueError`."""
    texts = cut_long_words(not_empty(text_iterator), tokenizer.backend_tokenizer)
    names = {"new_special_tokens": new_special_tokens, "special_tokens_map": special_tokens_map}
    if isinstance(tokenizer.backend_tokenizer.model, models.Unigram):
        # The special tokens are arranged as for the others, on a throwaway text; then the pieces
        # are replaced.
        new = TokenizersBackend.train_new_from_iterator(
            tokenizer, ["a"], vocab_size, show_progress=False, **names
        )
        train_unigram(new, texts, vocab_size, min_frequency, **kwargs)
    else:
        kwargs |= {"min_frequency": min_frequency, **names}
        new = TokenizersBackend.train_new_from_iterator(
            tokenizer, texts, vocab_size, length, **kwargs
        )
    new.backend_tokenizer.post_processor = new.template()  # with the new ids
    new.add_bos_token, new.add_eos_token = tokenizer.add_bos_token, tokenizer.add_eos_token
    new.update_post_processor()
    if new.vocab_size > vocab_size:
        needed = f"special tokens and the alphabet of this text take {new.vocab_size} entries"
        message = f"vocab_size={vocab_size} is too small: {needed}"
        if is_bound:
            raise ValueError(message)
        logger.warning(message)
    return new


def read_texts(source: str | os.PathLike | Iterable[str] | Iterable[os.PathLike]) -> Iterable[Any]:
    """The lines of a file or of a list of files; any other source is itself the texts.

    Raises:
        FileNotFoundError: when a path is no file.
        ValueError: while reading, for a line that is not UTF-8.
    """
    if isinstance(source, str | os.PathLike):
        source = [Path(source)]
    if not (isinstance(source, list | tuple) and source):
        return source
    first = source[0]
    if not (
        isinstance(first, os.PathLike)
        or os.path.isfile(first)
        or str(first).endswith((".txt", ".gz"))
    ):
        return source
    for path in source:
        if not os.path.isfile(path):
            raise FileNotFoundError(f"no such file to train on: {path}")
    return chain.from_iterable(_read_lines(Path(path)) for path in source)


def _read_lines(path: Path) -> Iterator[str]:
    number = 0
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                yield line.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{path}, line {number}, byte {error.start + 1}: not UTF-8 ({error.reason})"
        ) from error
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(f"{path}: not a whole gzip file ({error})") from error


def not_empty(items: Iterable[str] | Iterable[list[str]]) -> Iterator[str]:
    """The texts, from a flat iterable or one of lists, without the blank ones.

    Raises:
        ValueError: if none is left.
        TypeError: for an item that is no string.
    """
    texts = filter(
        _is_text, chain.from_iterable(x if isinstance(x, list | tuple) else [x] for x in items)
    )
    first = next(texts, None)
    if first is None:
        raise ValueError("nothing to train on: the source holds no text")
    return chain([first], texts)


def _is_text(item: Any) -> bool:
    if not isinstance(item, str):
        raise TypeError(
            f"the source of texts holds {item!r}, a {type(item).__name__} and not a str"
        )
    return bool(item.strip())


def cut_long_words(texts: Iterable[str], backend: Tokenizer) -> Iterator[str]:
    """The texts, those with words of more than `_LONGEST_WORD` characters in several parts, so that
    none is longer."""
    for text in texts:
        cuts: list[int] = []
        for run in _LONG_RUN.finditer(text) if len(text) > _LONGEST_WORD else ():
            for first in range(run.start(), run.end(), _AT_ONCE):
                part = text[first : min(first + _AT_ONCE, run.end())]
                words = [(0, len(part))]
                if backend.pre_tokenizer is not None:
                    words = [offsets for _, offsets in backend.pre_tokenizer.pre_tokenize_str(part)]
                for start, end in words:
                    cuts += range(first + start + _LONGEST_WORD, first + end, _LONGEST_WORD)
        yield from (text[start:end] for start, end in pairwise([0, *cuts, len(text)]))


def train_unigram(
    tokenizer: TokenizersBackend,
    texts: Iterable[str],
    vocab_size: int,
    min_frequency: int,
    **options: Any,
) -> None:
    """
    Gives `tokenizer` a Unigram model of its special tokens, the 256 bytes and pieces learned from
    `texts`.

    The trainer of `tokenizers` does not know byte fallback: it makes a piece for every character,
    so characters that are to become bytes are withheld from it. It also sees every distinct word
    once, and proposes as pieces only what continues in two ways: of the common word " that" it
    proposes " tha". So a common word is shown a second time, with a mark after it.
    """
    backend = tokenizer.backend_tokenizer
    split = backend.pre_tokenizer[0]
    words = Counter(word for text in texts for word, _ in split.pre_tokenize_str(text))
    alphabet = _alphabet(words, min_frequency)
    special_tokens = [
        token.content for _, token in sorted(backend.get_added_tokens_decoder().items())
    ]
    taken = len(special_tokens) + 256
    learned_size = max(vocab_size - taken, len(alphabet))
    rare = {
        ord(character): _DELIMITER
        for word in words
        for character in word
        if character not in alphabet
    }

    def words_as_often_as_seen() -> Iterator[str]:
        common: Counter[str] = Counter()
        for word, count in words.items():
            known = word.translate(rare)
            yield _DELIMITER.join([known] * count)
            for part in filter(None, known.split(_DELIMITER)):
                common[part] += count
        yield _DELIMITER.join(
            part + _MARK for part, count in common.items() if count >= _COMMON_WORD
        )

    trained = Tokenizer(models.Unigram())
    trained.pre_tokenizer = pre_tokenizers.Split(_DELIMITER, "removed")
    trainer = UnigramTrainer(vocab_size=learned_size + 1, **options)  # one more for the mark
    trained.train_from_iterator(words_as_often_as_seen(), trainer)
    scores = {
        piece: score
        for piece, score in json.loads(trained.to_str())["model"]["vocab"]
        if _MARK not in piece
    }
    # The trainer ends with the characters that it had pruned, each 1e-4 above the other, in an
    # order that changes from run to run, as do the last digits of all scores. They share the lowest
    # score here.
    lowest = min(scores.values(), default=0.0)
    for character in alphabet:
        if scores.get(character, lowest) < lowest + 1e-4 * (len(alphabet) + 1):
            scores[character] = lowest
    learned = sorted(
        ((piece, round(score, 6)) for piece, score in scores.items()), key=lambda e: (-e[1], e[0])
    )

    pieces = (
        [(token, 0.0) for token in special_tokens]
        + [(f"<0x{byte:02X}>", 0.0) for byte in range(256)]
        + learned
    )
    backend.model = models.Unigram(
        pieces, unk_id=special_tokens.index(tokenizer.unk_token), byte_fallback=True
    )
    # Neighbours without a piece would fall back as one and share their offsets: each is set apart.
    unknown = "".join(rf"\x{{{ord(character):X}}}" for character in sorted(alphabet))
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [split, pre_tokenizers.Split(Regex(f"[^{unknown}]"), "isolated")]
    )


def _alphabet(words: Counter[str], min_frequency: int) -> set[str]:
    """The characters that get a piece each: the space, and frequent ones up to the
    `_CHARACTER_COVERAGE`."""
    characters: Counter[str] = Counter()
    for word, count in words.items():
        for character in word:
            characters[character] += count
    alphabet, covered = {" "}, 0
    for character, count in characters.most_common():
        if count < min_frequency or covered >= _CHARACTER_COVERAGE * characters.total():
            break
        alphabet.add(character)
        covered += count
    return alphabet - {_DELIMITER, _MARK}
