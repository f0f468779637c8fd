"""Simple means for tag: the commonest tag of each word, and a conditional random field on features of words."""

import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from pathlib import Path

import pycrfsuite

from ..metrics import tagging_metrics
from . import Baselines, at_most

_MOST_SENTENCES = 10_000
_SETTINGS = {
    "c1": 0.1,
    "c2": 0.01,
    "max_iterations": 60,  # of L-BFGS; more change little and take long
    "feature.possible_transitions": True,
}
_AFFIXES = (1, 2, 3, 4)
_NEIGHBOURS = (-2, -1, 1, 2)

Sentences = tuple[Sequence[list[str]], Sequence[list[str]]]  # words and tags of each


def tagging_baselines(entities: bool, train: Sentences, measured: Mapping[str, Sentences]) -> Baselines:
    """Figures of the tag that each word has most often, and of a conditional random field.

    The field (Lafferty et al. 2001, ICML; the library is CRFsuite) sees the word, its shape and its affixes, and the
    words beside it.

    Args:
        entities: Whether the tags mark entities; see `tagging_metrics`.
        train: Sentences and tags to learn from; 10,000 of them at most are used by the field.
        measured: Sentences and tags of each split to measure.
    """
    commonest = _commonest_tags(train)
    words, tags = (at_most(part, _MOST_SENTENCES) for part in train)
    field = train_field(zip(map(word_features, words), tags, strict=True))
    means = {
        "the commonest tag of a word": lambda words: [commonest[word] for word in words],
        "a conditional random field": lambda words: field.tag(word_features(words)),
    }
    return {
        name: {
            split: tagging_metrics([tag(words) for words in sentences], list(tags), entities)
            for split, (sentences, tags) in measured.items()
        }
        for name, tag in means.items()
    }


def _commonest_tags(train: Sentences) -> defaultdict[str, str]:
    """The commonest tag of each word, and of all words for an unknown one."""
    counts: defaultdict[str, Counter] = defaultdict(Counter)
    for words, tags in zip(*train, strict=True):
        for word, tag in zip(words, tags, strict=True):
            counts[word][tag] += 1
    overall = sum(counts.values(), Counter()).most_common(1)[0][0]
    return defaultdict(lambda: overall, {word: tags.most_common(1)[0][0] for word, tags in counts.items()})


def train_field(sentences: Iterable[tuple[list[list[str]], list[str]]]) -> pycrfsuite.Tagger:
    """A conditional random field of sentences: the features and the tag of each of their words."""
    trainer = pycrfsuite.Trainer(verbose=False)
    trainer.set_params(_SETTINGS)
    for features, tags in sentences:
        trainer.append(features, tags)
    tagger = pycrfsuite.Tagger()
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "field"
        trainer.train(str(path))
        tagger.open(str(path))  # which reads all of it
    return tagger


def word_features(words: Sequence[str]) -> list[list[str]]:
    """Features of each word of a sentence: itself, its shape, its affixes, its neighbours and pairs with them."""
    lower, shapes = [word.lower() for word in words], [word_shape(word) for word in words]
    features = []
    for i, word in enumerate(words):
        own = ["bias", f"word={word}", f"lower={lower[i]}", f"shape={shapes[i]}"]
        for length in _AFFIXES:
            if length < len(word):
                own += [f"prefix={lower[i][:length]}", f"suffix={lower[i][-length:]}"]
        for distance in _NEIGHBOURS:
            inside = 0 <= i + distance < len(words)
            own.append(f"{distance}={lower[i + distance] if inside else None}")
            own.append(f"shape{distance}={shapes[i + distance] if inside else None}")
        if i:
            own.append(f"pair-1={lower[i - 1]} {lower[i]}")
        if i + 1 < len(words):
            own.append(f"pair1={lower[i]} {lower[i + 1]}")
        features.append(own)
    return features


def word_shape(word: str) -> str:
    """`Xx` for a capitalised word, `d.d` for 20.5: each run of one kind of character is one letter."""
    return "".join(kind for kind, _ in groupby(map(_kind, word)))


def _kind(character: str) -> str:
    if character.isdigit():
        return "d"
    if not character.isalpha():
        return character
    return "X" if character.isupper() else "x" if character.islower() else "c"
