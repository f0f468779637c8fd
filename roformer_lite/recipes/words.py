"""The tokens of the words of a sentence."""

from __future__ import annotations

from typing import Any

from transformers import BatchEncoding, PreTrainedTokenizerBase

from .loaded_model import right_sided, window_options

Sentence = list[str]
# The index of the first token of each word, except for the space before it.
Starts = dict[int, int]


def encode_words(
    sentences: list[Sentence], tokenizer: PreTrainedTokenizerBase, **options: Any
) -> tuple[BatchEncoding, list[Starts]]:
    """Encode lists of words. A word that the tokenizer drops, such as a lone control character, is
    replaced by the unknown token, or by the padding token if there is no unknown token.

    Args:
        sentences: The words of each sentence.
        tokenizer: A fast tokenizer.
        **options: Further arguments of the tokenizer.

    Returns:
        The output of the tokenizer, and for each of its rows the first token of each word.
    """
    _, starts = _encode(sentences, tokenizer, add_special_tokens=False)
    unknown = tokenizer.unk_token or tokenizer.pad_token
    complete = [
        [word if number in places else unknown for number, word in enumerate(words)]
        for words, places in zip(sentences, starts, strict=True)
    ]
    return _encode(complete, tokenizer, **options)


def encode_windows(
    sentences: list[Sentence], tokenizer: PreTrainedTokenizerBase
) -> tuple[BatchEncoding, list[int], list[Starts]]:
    """Encode lists of words in overlapping windows of as many tokens as the model reads at once.
    Most sentences have one window. A word belongs to the window in which it is farther from an
    edge.

    Args:
        sentences: The words of each sentence.
        tokenizer: A fast tokenizer.

    Returns:
        The output of the tokenizer with a row for each window, the number of the sentence of each
        window, and for each window the first token of each word that belongs to it.
    """
    options = window_options(tokenizer)
    encoded, starts = encode_words(sentences, right_sided(tokenizer), **options)
    numbers = encoded.pop("overflow_to_sample_mapping")
    # The distance from an edge and the window of each word of each sentence.
    best: dict[tuple[int, int], tuple[int, int]] = {}
    for window, (number, places) in enumerate(zip(numbers, starts, strict=True)):
        last = len(encoded["input_ids"][window]) - 1
        for word, place in places.items():
            found = (min(place, last - place), window)
            best[number, word] = max(found, best.get((number, word), found))
    chosen = [
        {word: place for word, place in places.items() if best[number, word][1] == window}
        for window, (number, places) in enumerate(zip(numbers, starts, strict=True))
    ]
    return encoded, numbers, chosen


def _encode(
    sentences: list[Sentence], tokenizer: PreTrainedTokenizerBase, **options: Any
) -> tuple[BatchEncoding, list[Starts]]:
    texts = [" ".join(words) for words in sentences]
    encoded = tokenizer(texts, return_offsets_mapping=True, verbose=False, **options)
    numbers = encoded.get("overflow_to_sample_mapping", range(len(sentences)))
    starts = []
    for number, offsets in zip(numbers, encoded.pop("offset_mapping"), strict=True):
        words = sentences[number]
        word_of_character = [place for place, word in enumerate(words) for _ in f"{word} "]
        places: Starts = {}
        for place, (start, end) in enumerate(offsets):
            # The space before a rare word may be a token of its own, which gets no tag.
            if texts[number][start:end].strip():
                places.setdefault(word_of_character[end - 1], place)
        starts.append(places)
    return encoded, starts
