"""The units of a sentence that get tags, and their tokens."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from string import whitespace
from typing import Any

from tokenizers import Regex, pre_tokenizers
from transformers import BatchEncoding, PreTrainedTokenizerBase, TokenizersBackend

from hf_roformer_lite.model.tokenization_roformer_lite import RoFormerLiteTokenizer

from ..errors import InputError
from .loaded_model import right_sided, window_options

CHARACTERS = "characters"
WORDS = "words"


@dataclass(frozen=True)
class UnitTokenizer:
    """Encodes lists of units, and finds the first token of each unit.

    Args:
        tokenizer: A fast tokenizer.
        joiner: The text between two units in the input of the tokenizer; None if the tokenizer gets
            a list of units.
    """

    tokenizer: PreTrainedTokenizerBase
    joiner: str | None

    def encode(
        self, sentences: list[list[str]], **options: Any
    ) -> tuple[BatchEncoding, list[dict[int, int]]]:
        """Encode lists of units as texts with the joiner between units, or as lists if there is no
        joiner.

        Returns:
            The output of the tokenizer, and for each of its rows the index of the first token of
            each unit that has one.
        """
        if self.joiner is None:
            encoded = self.tokenizer(sentences, is_split_into_words=True, verbose=False, **options)
            units = [encoded.word_ids(number) for number in range(len(encoded["input_ids"]))]
        else:
            texts = [self.joiner.join(sentence) for sentence in sentences]
            encoded = self.tokenizer(texts, return_offsets_mapping=True, verbose=False, **options)
            owners = [unit_of_characters(sentence, self.joiner) for sentence in sentences]
            rows = encoded.get("overflow_to_sample_mapping", range(len(sentences)))
            units = [
                [first_unit(owners[number][start:end]) for start, end in spans]
                for number, spans in zip(rows, encoded.pop("offset_mapping"), strict=True)
            ]
        blank = blank_tokens(self.tokenizer)
        starts = []
        for own, ids in zip(units, encoded["input_ids"], strict=True):
            places: dict[int, int] = {}
            for place, unit in enumerate(own):
                has_text = unit in places and ids[places[unit]] not in blank
                if unit is not None and not has_text:
                    places[unit] = place
            starts.append(places)
        return encoded, starts

    def windows(
        self, sentences: list[list[str]]
    ) -> tuple[BatchEncoding, list[int], list[dict[int, int]]]:
        """Encode sentences in windows of as many tokens as the model reads at once. Most sentences
        have one window.

        Windows overlap, and each unit belongs to the window in which its first token is farther
        from an edge.

        Returns:
            The output of the tokenizer with a row for each window, the number of the sentence of
            each window, and for each window the index of the first token of the units that belong
            to it.
        """
        whole = UnitTokenizer(right_sided(self.tokenizer), self.joiner)
        options = window_options(self.tokenizer)
        encoded, starts = whole.encode(self.with_unknown(sentences), **options)
        numbers = encoded.pop("overflow_to_sample_mapping")
        best: dict[tuple[int, int], tuple[int, int, int]] = {}
        for row, (number, places) in enumerate(zip(numbers, starts, strict=True)):
            last = len(encoded["input_ids"][row]) - 1
            for unit, place in places.items():
                distance = min(place, last - place)
                if (number, unit) not in best or distance >= best[number, unit][0]:
                    best[number, unit] = (distance, row, place)
        found: list[dict[int, int]] = [{} for _ in numbers]
        for (_, unit), (_, row, place) in best.items():
            found[row][unit] = place
        return encoded, numbers, found

    def with_unknown(self, sentences: list[list[str]]) -> list[list[str]]:
        """Replace units that have no token, such as a lone control character, by the unknown token,
        or by the padding token if there is no unknown token."""
        _, starts = self.encode(sentences, add_special_tokens=False)
        unknown = self.tokenizer.unk_token or self.tokenizer.pad_token
        return [
            [unit if number in places else unknown for number, unit in enumerate(sentence)]
            for sentence, places in zip(sentences, starts, strict=True)
        ]


@lru_cache(maxsize=1)
def blank_tokens(tokenizer: PreTrainedTokenizerBase) -> set[int]:
    """The ids of the tokens that consist only of spaces. Tokenizers may split the space from a rare
    word and regard it as the first token of the word, although it does not have the word's tag."""
    numbers = list(tokenizer.get_vocab().values())
    decode = tokenizer.backend_tokenizer.decode_batch
    texts = decode([[number] for number in numbers], skip_special_tokens=False)
    pairs = zip(numbers, texts, strict=True)
    return {number for number, text in pairs if not text.strip(whitespace)}


def adapt(tokenizer: PreTrainedTokenizerBase, unit: str) -> str | None:
    """Prevent tokens from spanning two characters in any text, if characters get the tags. Some
    classes of tokenizers would lose that change when they are loaded again; they get lists of
    characters instead.

    Args:
        tokenizer: The tokenizer, which is changed.
        unit: The unit that gets a tag.

    Returns:
        The text between two units in the input of the tokenizer; None if the tokenizer gets a list
        of units.

    Raises:
        InputError: for a tokenizer written in Python, which does not say where tokens come from.
    """
    if not tokenizer.is_fast:
        raise InputError(
            f"{type(tokenizer).__name__} is written in Python and does not say which word a token "
            "belongs to; pass a model with a fast tokenizer"
        )
    if unit != CHARACTERS:
        return " "
    if type(tokenizer) not in (RoFormerLiteTokenizer, TokenizersBackend):
        return None
    backend = tokenizer.backend_tokenizer
    kept = [] if backend.pre_tokenizer is None else [backend.pre_tokenizer]
    spaces = pre_tokenizers.Split(Regex(r"\s"), "removed")
    # Here, (?m) lets the dot match line breaks.
    characters = pre_tokenizers.Split(Regex(r"(?m)."), "isolated")
    backend.pre_tokenizer = pre_tokenizers.Sequence([spaces, characters, *kept])
    return ""


def characters_of(token: str) -> str:
    """The characters of a token that have a tag of their own."""
    return "".join(token.split())


def unit_of_characters(units: list[str], joiner: str) -> list[int | None]:
    """The index of the unit that contains each character of the joined text; None for spaces."""
    owners: list[int | None] = []
    for number, unit in enumerate(units):
        if number:
            owners.extend([None] * len(joiner))
        owners.extend(None if character.isspace() else number for character in unit)
    return owners


def first_unit(owners: Iterable[int | None]) -> int | None:
    """The first unit in a list of the units of characters."""
    return next((number for number in owners if number is not None), None)
