"""Training of tokenizers: the texts, very long words in them, and Unigram with byte fallback.

`RoFormerLiteTokenizer` calls this module, which is not a part of a model and does not travel to the
Hub with one. Tokenizers of saved bundles call `trained` and `read_texts` by name.
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

# No word of a language is as long, and a run of Chinese between two marks of punctuation rarely is.
# Encoded images, sequences of proteins and rulers made of hyphens are. The space before a word is a
# part of it.
MAX_WORD_LENGTH = 256
LONG_RUN = re.compile(
    rf" ?(?<!\S)\S{{{MAX_WORD_LENGTH},}}"
    rf"|(?<!\s)\s{{{MAX_WORD_LENGTH + 1},}}"
)
# The number of characters of a run that are split into words at once.
MAX_RUN_LENGTH = 2**20

# SentencePiece (Kudo & Richardson 2018) recommends to cover this share of the characters of running
# Chinese and Japanese text.
CHARACTER_COVERAGE = 0.9995
# Words with this count are candidates for a piece. A count of 5 makes 2 % fewer tokens than 2 in
# English and 4 % fewer in Chinese, and 3 lies between them (27,000 short Chinese–English sentence
# pairs, 8,192 entries).
MIN_COUNT_OF_WORD = 5
# These two characters never get a piece. While Unigram is trained, the first delimits words and the
# second marks their ends.
DELIMITER = "\x00"
MARK = "\uffff"
NUM_BYTES = 256


def trained(
    tokenizer: Any,
    text_iterator: Iterable[str] | Iterable[list[str]],
    vocab_size: int,
    is_bound: bool = False,
    length: int | None = None,
    min_frequency: int = 2,
    new_special_tokens: list[Any] | None = None,
    special_tokens_map: dict[str, str] | None = None,
    **kwargs: Any,
) -> Any:
    """Train a tokenizer of the kind of `tokenizer`, a `RoFormerLiteTokenizer`.

    Args:
        vocab_size: The number of entries. If special tokens and alphabet already need more, the
            tokenizer has more, and a warning says so.
        is_bound: Whether that is an error instead.
        length: The number of texts, for the progress bar.
        kwargs: Further arguments of the trainer in `tokenizers`.

    Raises:
        ValueError: if `vocab_size` is too small and `is_bound`, or if there is no text.
    """
    texts = cut_long_words(texts_of(text_iterator), tokenizer.backend_tokenizer)
    special_tokens = {
        "new_special_tokens": new_special_tokens,
        "special_tokens_map": special_tokens_map,
    }
    if isinstance(tokenizer.backend_tokenizer.model, models.Unigram):
        # A throwaway text arranges the special tokens as for the other algorithms. Then the pieces
        # are replaced.
        new = TokenizersBackend.train_new_from_iterator(
            tokenizer, ["a"], vocab_size, show_progress=False, **special_tokens
        )
        train_unigram(new, texts, vocab_size, min_frequency, **kwargs)
    else:
        new = TokenizersBackend.train_new_from_iterator(
            tokenizer,
            texts,
            vocab_size,
            length,
            min_frequency=min_frequency,
            **special_tokens,
            **kwargs,
        )
    # The ids of the special tokens may have changed.
    new.backend_tokenizer.post_processor = new.template()
    new.add_bos_token = tokenizer.add_bos_token
    new.add_eos_token = tokenizer.add_eos_token
    new.update_post_processor()
    if new.vocab_size > vocab_size:
        message = (
            f"vocab_size={vocab_size} is too small: special tokens and the alphabet of this text "
            f"take {new.vocab_size} entries"
        )
        if is_bound:
            raise ValueError(message)
        logger.warning(message)
    return new


def read_texts(source: str | os.PathLike | Iterable[str] | Iterable[os.PathLike]) -> Iterable[Any]:
    """The lines of a file or of a list of files. Any other source is itself the texts.

    Raises:
        FileNotFoundError: if there is no file at a path.
        ValueError: while reading, for a line that is not UTF-8.
    """
    if isinstance(source, str | os.PathLike):
        paths = [Path(source)]
    elif isinstance(source, list | tuple) and source and names_a_file(source[0]):
        paths = [Path(path) for path in source]
    else:
        return source
    for path in paths:
        if not path.is_file():
            raise FileNotFoundError(f"no such file to train on: {path}")
    return chain.from_iterable(read_lines(path) for path in paths)


def names_a_file(item: Any) -> bool:
    """Whether the first item of a list says that the list is one of paths."""
    if isinstance(item, os.PathLike) or os.path.isfile(item):
        return True
    return str(item).endswith((".txt", ".gz"))


def read_lines(path: Path) -> Iterator[str]:
    """The lines of a UTF-8 file, without their ends, unpacked if its name ends in .gz.

    Raises:
        ValueError: for a line that is not UTF-8, and for a damaged gzip file.
    """
    number = 0
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                # The first line may begin with a byte order mark.
                encoding = "utf-8-sig" if number == 1 else "utf-8"
                yield line.decode(encoding).rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{path}, line {number}, byte {error.start + 1}: not UTF-8 ({error.reason})"
        ) from error
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(f"{path}: not a whole gzip file ({error})") from error


def texts_of(items: Iterable[str] | Iterable[list[str]]) -> Iterator[str]:
    """The texts that are not blank, from an iterable of texts or of lists of texts.

    Raises:
        ValueError: if there is none.
        TypeError: for an item that is not a string.
    """
    has_text = False
    for item in items:
        for text in item if isinstance(item, list | tuple) else [item]:
            if not isinstance(text, str):
                raise TypeError(
                    f"the source of texts holds {text!r}, a {type(text).__name__} and not a str"
                )
            if text.strip():
                has_text = True
                yield text
    if not has_text:
        raise ValueError("nothing to train on: the source holds no text")


def cut_long_words(texts: Iterable[str], backend: Tokenizer) -> Iterator[str]:
    """The texts in parts, so that no word has more than `MAX_WORD_LENGTH` characters."""
    for text in texts:
        cuts = [0, *places_to_cut(text, backend), len(text)]
        for start, end in pairwise(cuts):
            yield text[start:end]


def places_to_cut(text: str, backend: Tokenizer) -> Iterator[int]:
    """The places inside long words at which a text is cut, in ascending order."""
    if len(text) <= MAX_WORD_LENGTH:
        return
    for run in LONG_RUN.finditer(text):
        for first in range(run.start(), run.end(), MAX_RUN_LENGTH):
            last = min(first + MAX_RUN_LENGTH, run.end())
            for start, end in offsets_of_words(text[first:last], backend):
                yield from range(first + start + MAX_WORD_LENGTH, first + end, MAX_WORD_LENGTH)


def offsets_of_words(text: str, backend: Tokenizer) -> list[tuple[int, int]]:
    """Start and end of each word that the pre-tokenizer of `backend` makes of a text."""
    if backend.pre_tokenizer is None:
        return [(0, len(text))]
    return [offsets for _, offsets in backend.pre_tokenizer.pre_tokenize_str(text)]


def train_unigram(
    tokenizer: TokenizersBackend,
    texts: Iterable[str],
    vocab_size: int,
    min_frequency: int,
    **options: Any,
) -> None:
    """
    Give `tokenizer` a Unigram model of its special tokens, the 256 bytes and pieces learned from
    `texts`.
    """
    backend = tokenizer.backend_tokenizer
    split = backend.pre_tokenizer[0]
    words: Counter[str] = Counter()
    for text in texts:
        words.update(word for word, _ in split.pre_tokenize_str(text))
    alphabet = alphabet_of(words, min_frequency)

    added_tokens = sorted(backend.get_added_tokens_decoder().items())
    special_tokens = [token.content for _, token in added_tokens]
    num_learned = max(vocab_size - len(special_tokens) - NUM_BYTES, len(alphabet))
    pieces = [(token, 0.0) for token in special_tokens]
    pieces += [(f"<0x{byte:02X}>", 0.0) for byte in range(NUM_BYTES)]
    pieces += learn_pieces(words, alphabet, num_learned, **options)
    backend.model = models.Unigram(
        pieces,
        unk_id=special_tokens.index(tokenizer.unk_token),
        byte_fallback=True,
    )
    # Neighbouring characters without a piece would fall back to bytes as one and share their
    # offsets, so each of them is set apart.
    known = "".join(rf"\x{{{ord(character):X}}}" for character in sorted(alphabet))
    set_apart = pre_tokenizers.Split(Regex(f"[^{known}]"), "isolated")
    backend.pre_tokenizer = pre_tokenizers.Sequence([split, set_apart])


def alphabet_of(words: Counter[str], min_frequency: int) -> set[str]:
    """The characters that get a piece each: the space, and frequent ones up to the
    `CHARACTER_COVERAGE`."""
    characters: Counter[str] = Counter()
    for word, count in words.items():
        for character in word:
            characters[character] += count
    enough = CHARACTER_COVERAGE * characters.total()
    alphabet = {" "}
    covered = 0
    for character, count in characters.most_common():
        if count < min_frequency or covered >= enough:
            break
        alphabet.add(character)
        covered += count
    return alphabet - {DELIMITER, MARK}


def learn_pieces(
    words: Counter[str],
    alphabet: set[str],
    num_pieces: int,
    **options: Any,
) -> list[tuple[str, float]]:
    """Learn `num_pieces` pieces, including the alphabet, with their scores."""
    trainer = UnigramTrainer(vocab_size=num_pieces + 1, **options)  # One more is for the mark.
    learned = Tokenizer(models.Unigram())
    learned.pre_tokenizer = pre_tokenizers.Split(DELIMITER, "removed")
    learned.train_from_iterator(texts_for_trainer(words, alphabet), trainer)
    scores = {}
    for piece, score in json.loads(learned.to_str())["model"]["vocab"]:
        if MARK not in piece:
            scores[piece] = score
    # The trainer ends with the characters that it had pruned, each 1e-4 above the other, in an
    # order that changes from run to run, as do the last digits of all scores. Here they share the
    # lowest score.
    lowest = min(scores.values(), default=0.0)
    for character in alphabet:
        if scores.get(character, lowest) < lowest + 1e-4 * (len(alphabet) + 1):
            scores[character] = lowest
    pieces = [(piece, round(score, 6)) for piece, score in scores.items()]
    return sorted(pieces, key=lambda entry: (-entry[1], entry[0]))


def texts_for_trainer(words: Counter[str], alphabet: set[str]) -> Iterator[str]:
    """
    The words as the trainer of `tokenizers` needs them, divided by delimiters.

    The trainer does not know byte fallback: it makes a piece for every character, so characters
    that are to become bytes are withheld from it. It also reads every distinct word only once, and
    proposes as pieces only strings that continue in two ways: of the common word " that" it
    proposes " tha". So common words are repeated with a mark after each.
    """
    unknown = {character for word in words for character in word} - alphabet
    withhold = str.maketrans(dict.fromkeys(unknown, DELIMITER))
    common: Counter[str] = Counter()
    for word, count in words.items():
        known = word.translate(withhold)
        yield DELIMITER.join([known] * count)
        for part in filter(None, known.split(DELIMITER)):
            common[part] += count
    marked = [part + MARK for part, count in common.items() if count >= MIN_COUNT_OF_WORD]
    yield DELIMITER.join(marked)
