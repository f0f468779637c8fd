"""Training of Unigram with byte fallback, which the trainer of `tokenizers` does not support."""

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from tokenizers import Regex, Tokenizer, models, pre_tokenizers
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
    # Neighbours without a piece would fall back as one and share their offsets: each is set apart.
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
