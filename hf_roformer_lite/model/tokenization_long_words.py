"""Very long words are cut for the training of a tokenizer, which takes quadratic time in the length of a word."""

import re
from collections.abc import Iterable, Iterator
from itertools import pairwise

from tokenizers import Tokenizer

# No word of a language is as long, nor often a run of Chinese between two marks of punctuation. Data of other kinds
# are: encoded images, sequences of proteins, rulers made of hyphens.
LONGEST_WORD = 256
# Where such a word may be; the space before it is a part of the word.
_RUN = re.compile(rf" ?(?<!\S)\S{{{LONGEST_WORD},}}|(?<!\s)\s{{{LONGEST_WORD + 1},}}")
_AT_ONCE = 2**20  # characters that are split into words at once


def cut_long_words(texts: Iterable[str], backend: Tokenizer) -> Iterator[str]:
    """The texts, those with words longer than `LONGEST_WORD` characters in several parts, so that none is longer.

    Args:
        texts: What to train on.
        backend: Its pre-tokenizer says what a word is.
    """
    for text in texts:
        cuts = _cuts(text, backend) if len(text) > LONGEST_WORD else ()
        yield from (text[start:end] for start, end in pairwise([0, *cuts, len(text)]))


def _cuts(text: str, backend: Tokenizer) -> Iterator[int]:
    for run in _RUN.finditer(text):
        for first in range(run.start(), run.end(), _AT_ONCE):
            part = text[first : min(first + _AT_ONCE, run.end())]
            words = [(0, len(part))]
            if backend.pre_tokenizer is not None:
                words = [offsets for _, offsets in backend.pre_tokenizer.pre_tokenize_str(part)]
            for start, end in words:
                yield from range(first + start + LONGEST_WORD, first + end, LONGEST_WORD)
