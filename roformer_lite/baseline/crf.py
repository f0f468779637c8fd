"""The baseline of taggers: a conditional random field on words (Lafferty et al. 2001, ICML).

CRFsuite fits it. It is used from arrays, because CRFsuite ends the whole process if one of its
files is damaged.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import numpy as np

from ..data.sampling import MAX_ROWS, sample_rows
from .sequences import best_sequence

# The score of a tag that does not occur in the training data.
IMPOSSIBLE = -1e4


@dataclass(frozen=True, eq=False)
class WordTagger:
    """A conditional random field on words, shapes, affixes and neighbours.

    Attributes:
        name: Its name on the card.
        packages: The packages that it needs.

    Args:
        features: The number of each feature.
        weights: The weight of each feature for each tag, `(features, tags)`.
        transitions: The score of each tag after each other one, `(tags before, tags)`.
    """

    name = "CRF"
    packages = ()

    features: dict[str, int]
    weights: np.ndarray
    transitions: np.ndarray

    @classmethod
    def fit(
        cls, sentences: Sequence[list[str]], tags: Sequence[list[str]], names: Sequence[str]
    ) -> WordTagger:
        """Learn from sentences.

        Args:
            sentences: The words of each sentence; at most 100,000 sentences are used.
            tags: The tag of each word.
            names: All tags, in the order of their numbers.
        """
        import pycrfsuite

        sentences = sample_rows(sentences, MAX_ROWS)
        tags = sample_rows(tags, MAX_ROWS)
        params = {
            "c1": 0.1,
            "c2": 0.01,
            # More iterations of L-BFGS change little and take long.
            "max_iterations": 60,
            "feature.possible_transitions": True,
        }
        trainer = pycrfsuite.Trainer(params=params, verbose=False)
        for words, own_tags in zip(sentences, tags, strict=True):
            trainer.append(word_features(words), own_tags)
        tagger = pycrfsuite.Tagger()
        with tempfile.TemporaryDirectory() as directory:
            path = Path(directory) / "crf"
            trainer.train(str(path))
            # The file is read as a whole, so the directory is not needed afterwards.
            tagger.open(str(path))
        model = tagger.info()
        numbers = {name: number for number, name in enumerate(names)}
        known = dict.fromkeys(["bias", *(feature for feature, _ in model.state_features)])
        features = {feature: number for number, feature in enumerate(known)}
        weights = np.zeros((len(features), len(names)), dtype=np.float32)
        for (feature, name), weight in model.state_features.items():
            weights[features[feature], numbers[name]] = weight
        transitions = np.zeros((len(names), len(names)), dtype=np.float32)
        for (before, name), weight in model.transitions.items():
            transitions[numbers[before], numbers[name]] = weight
        for name in set(names).difference(model.labels):
            # All words have this feature.
            weights[features["bias"], numbers[name]] = IMPOSSIBLE
        return cls(features, weights, transitions)

    @classmethod
    def from_saved(cls, texts: dict[str, list[str]], arrays: dict[str, np.ndarray]) -> WordTagger:
        """The tagger whose `texts()` and `arrays()` were saved."""
        features = {feature: number for number, feature in enumerate(texts["features"])}
        transitions = arrays["transitions"]
        weights = np.zeros((len(features), len(transitions)), dtype=np.float32)
        weights[arrays["feature_of_weight"], arrays["tag_of_weight"]] = arrays["weights"]
        return cls(features, weights, transitions)

    def texts(self) -> dict[str, list[str]]:
        return {"features": list(self.features)}

    def arrays(self) -> dict[str, np.ndarray]:
        """The transitions, and the weights other than 0, which are few."""
        features, tags = self.weights.nonzero()
        return {
            "weights": self.weights[features, tags],
            "feature_of_weight": features.astype(np.int32),
            "tag_of_weight": tags.astype(np.int32),
            "transitions": self.transitions,
        }

    def scores(self, words: Sequence[str]) -> np.ndarray:
        """The scores of the tags of each word without regard to the other tags, `(words, tags)`."""
        found = np.zeros((len(words), self.weights.shape[1]))
        for word, own in enumerate(word_features(words)):
            numbers = [self.features[feature] for feature in own if feature in self.features]
            found[word] = self.weights[numbers].sum(axis=0)
        return found

    def tag(self, words: Sequence[str]) -> list[int]:
        """The numbers of the most likely tags of a sentence."""
        return best_sequence(self.scores(words), np.pad(self.transitions, (1, 0)))


def word_features(words: Sequence[str]) -> list[list[str]]:
    """Features of each word of a sentence: the word, its shape, its affixes, the neighbouring words
    and pairs with them."""
    lower = [word.lower() for word in words]
    shapes = [word_shape(word) for word in words]
    features = []
    for i, word in enumerate(words):
        own = ["bias", f"word={word}", f"lower={lower[i]}", f"shape={shapes[i]}"]
        for length in range(1, min(5, len(word))):
            own += [f"prefix={lower[i][:length]}", f"suffix={lower[i][-length:]}"]
        for distance in (-2, -1, 1, 2):
            other = i + distance
            is_inside = 0 <= other < len(words)
            own.append(f"{distance}={lower[other] if is_inside else None}")
            own.append(f"shape{distance}={shapes[other] if is_inside else None}")
        if i > 0:
            own.append(f"pair-1={lower[i - 1]} {lower[i]}")
        if i + 1 < len(words):
            own.append(f"pair1={lower[i]} {lower[i + 1]}")
        features.append(own)
    return features


def word_shape(word: str) -> str:
    """The shape of a word, in which each run of one kind of character is one letter: `Xx` for a
    capitalised word, `d.d` for 20.5."""
    return "".join(kind for kind, _ in groupby(word, key=_kind_of_character))


def _kind_of_character(character: str) -> str:
    if character.isdigit():
        return "d"
    if not character.isalpha():
        return character
    if character.isupper():
        return "X"
    return "x" if character.islower() else "c"
