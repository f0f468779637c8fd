"""Unigram with byte fallback: its training, which the trainer of `tokenizers` does not support, and its words."""

import json
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from tokenizers import Encoding, Regex, Tokenizer, models, pre_tokenizers
from tokenizers.trainers import UnigramTrainer
from transformers.tokenization_utils_tokenizers import TokenizersBackend

# SentencePiece (Kudo & Richardson 2018) recommends to cover this share of running Chinese and Japanese characters.
_CHARACTER_COVERAGE = 0.9995
# Two characters that never get a piece, free to delimit and to mark words while Unigram is trained.
_DELIMITER, _MARK = "\x00", "\uffff"
# Words seen this often are candidates for a piece. On 27,000 short Chinese–English sentence pairs and 8,192 entries,
# 5 makes 2 % fewer tokens than 2 in English and 4 % fewer in Chinese (3 lies in between).
_COMMON_WORD = 5


def train_unigram(
    tokenizer: TokenizersBackend, texts: Iterable[str], vocab_size: int, min_frequency: int, **options: Any
) -> None:
    """
    Gives `tokenizer` a Unigram model of its special tokens, the 256 bytes and pieces learned from `texts`.

    The trainer of `tokenizers` does not know byte fallback: it makes a piece for every character, so characters that
    are to become bytes are withheld from it. It also sees every distinct word once, and proposes as pieces only what
    continues in two ways: of the common word " that" it proposes " tha". So a common word is shown a second time, with
    a mark behind it.
    """
    backend = tokenizer.backend_tokenizer
    split = backend.pre_tokenizer[0]
    words = Counter(word for text in texts for word, _ in split.pre_tokenize_str(text))
    alphabet = _alphabet(words, min_frequency)
    special_tokens = [token.content for _, token in sorted(backend.get_added_tokens_decoder().items())]
    taken = len(special_tokens) + 256
    learned_size = max(vocab_size - taken, len(alphabet))
    rare = {ord(character): _DELIMITER for word in words for character in word if character not in alphabet}

    def words_as_often_as_seen() -> Iterator[str]:
        common: Counter[str] = Counter()
        for word, count in words.items():
            known = word.translate(rare)
            yield _DELIMITER.join([known] * count)
            for part in filter(None, known.split(_DELIMITER)):
                common[part] += count
        yield _DELIMITER.join(part + _MARK for part, count in common.items() if count >= _COMMON_WORD)

    trained = Tokenizer(models.Unigram())
    trained.pre_tokenizer = pre_tokenizers.Split(_DELIMITER, "removed")
    trainer = UnigramTrainer(vocab_size=learned_size + 1, **options)  # one more for the mark
    trained.train_from_iterator(words_as_often_as_seen(), trainer)
    scores = {piece: score for piece, score in json.loads(trained.to_str())["model"]["vocab"] if _MARK not in piece}
    # The trainer ends with the characters that it had pruned, each 1e-4 above the other, in an order that changes from
    # run to run, as do the last digits of all scores. They share the lowest score here.
    lowest = min(scores.values(), default=0.0)
    for character in alphabet:
        if scores.get(character, lowest) < lowest + 1e-4 * (len(alphabet) + 1):
            scores[character] = lowest
    learned = sorted(((piece, round(score, 6)) for piece, score in scores.items()), key=lambda e: (-e[1], e[0]))

    pieces = [(token, 0.0) for token in special_tokens] + [(f"<0x{byte:02X}>", 0.0) for byte in range(256)] + learned
    backend.model = models.Unigram(pieces, unk_id=special_tokens.index(tokenizer.unk_token), byte_fallback=True)
    # Neighbours without a piece would fall back as one and share their offsets: each is set apart. `with_whole_words`
    # makes one word of them again.
    unknown = "".join(rf"\x{{{ord(character):X}}}" for character in sorted(alphabet))
    backend.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.Split(Regex(f"[^{unknown}]"), "isolated")])


def _alphabet(words: Counter[str], min_frequency: int) -> set[str]:
    """The characters that get a piece each: the space, and frequent ones up to the `_CHARACTER_COVERAGE`."""
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


def with_whole_words(backend: Tokenizer, texts: list[str], pieces: list[Encoding]) -> list[Encoding]:
    """
    The encodings with word numbers that count the words of the first pre-tokenizer alone; the second one, which sets
    characters without a piece apart, gives each of these a number of its own.

    Args:
        backend: a tokenizer that `train_unigram` has made.
        texts: the text that was encoded, or the two of a pair.
        pieces: its encoding, or all parts of it when it was too long.
    """
    first_byte = backend.token_to_id("<0x00>")
    if first_byte is None or not isinstance(backend.pre_tokenizer, pre_tokenizers.Sequence):
        return pieces
    byte_ids = set(range(first_byte, first_byte + 256))
    if all(byte_ids.isdisjoint(piece.ids) for piece in pieces):
        return pieces
    cuts = [_cuts_within_words(backend, text) for text in texts]
    if not any(cuts):
        return pieces
    renumbered = []
    for piece in pieces:
        state = json.loads(piece.__getstate__())
        for part in (state, *state["overflowing"]):
            _renumber(part, cuts)
        renumbered.append(Encoding())
        renumbered[-1].__setstate__(json.dumps(state).encode())
    return renumbered


def _cuts_within_words(backend: Tokenizer, text: str) -> list[int]:
    """The characters before which all pre-tokenizers together cut the text and the first alone does not, rising."""
    added = sorted(
        (
            token.content
            for token in backend.get_added_tokens_decoder().values()
            if not (token.special and backend.encode_special_tokens)
        ),
        key=len,
        reverse=True,
    )
    cuts: list[int] = []
    start = 0
    for found in [*re.finditer("|".join(map(re.escape, added)), text)] if added else []:
        cuts += _cuts_between(backend, text, start, found.start())
        start = found.end()
    return cuts + _cuts_between(backend, text, start, len(text))


def _cuts_between(backend: Tokenizer, text: str, start: int, end: int) -> list[int]:
    """The same, for a part of the text without added tokens."""
    words, parts = (
        {begin for _, (begin, _) in splitter.pre_tokenize_str(text[start:end])}
        for splitter in (backend.pre_tokenizer[0], backend.pre_tokenizer)
    )
    return sorted(start + begin for begin in parts - words)


def _renumber(encoding: dict[str, Any], cuts: list[list[int]]) -> None:
    """Subtract from each word's number the cuts before it; `encoding` is the state of an `Encoding`."""
    for sequence, places in encoding["sequence_ranges"].items():
        for token in range(places["start"], places["end"]):
            start, end = encoding["offsets"][token]
            # The offsets of a space are empty, as those of spaces that pieces begin with: it stands before them.
            inside = start if start < end else end - 1
            if encoding["words"][token] is not None:
                encoding["words"][token] -= bisect_right(cuts[int(sequence)], inside)
