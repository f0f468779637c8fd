"""The baseline of classifiers: a linear support vector machine on n-grams.

Its packages belong to the extra `train`, so they are imported in functions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ..data.sampling import MAX_ROWS, sample_rows
from ..data.scripts import HAN, KANA, OTHERS_WITHOUT_SPACES

if TYPE_CHECKING:
    from sklearn.pipeline import FeatureUnion

# The arguments of TfidfVectorizer for each kind of n-gram.
KINDS: dict[str, dict[str, Any]] = {
    "words": {"token_pattern": r"\w+|[^\w\s]", "ngram_range": (1, 2)},
    "parts of words": {"analyzer": "char_wb", "ngram_range": (2, 5)},
    "characters": {"analyzer": "char", "ngram_range": (1, 3)},
}
# The largest number of n-grams times labels, at which the coefficients take 32 MB. Rare n-grams are
# left out.
MAX_COEFFICIENTS = 8_000_000


def fit_ngrams(texts: Sequence[str], max_features: int | None = None) -> FeatureUnion:
    """The TF-IDF of words, word pairs and parts of words, or of one to three characters in scripts
    without spaces.

    Args:
        texts: The texts whose n-grams are the features.
        max_features: The largest number of features. Only the most frequent n-grams are used.
    """
    sample = "".join(sample_rows(texts, 1000))
    scripts = (HAN, KANA, OTHERS_WITHOUT_SPACES)
    kinds = ["words", "parts of words"]
    if sum(len(script.findall(sample)) for script in scripts) > len(sample) / 4:
        kinds = ["characters"]
    if max_features is not None:
        max_features = max(1, max_features // len(kinds))
    return ngrams_of({kind: {"max_features": max_features} for kind in kinds}).fit(texts)


def ngrams_of(kinds: dict[str, dict[str, Any]]) -> FeatureUnion:
    """The vectorizers of some kinds of n-grams, side by side.

    Args:
        kinds: The further arguments of the vectorizer of each kind.
    """
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.pipeline import FeatureUnion

    return FeatureUnion(
        [
            (kind, TfidfVectorizer(**KINDS[kind], sublinear_tf=True, **options))
            for kind, options in kinds.items()
        ]
    )


@dataclass(frozen=True, eq=False)
class NgramClassifier:
    """A linear support vector machine on n-grams, with one hyperplane for each label. It is hard to
    beat on short texts (Wang & Manning 2012, ACL).

    Attributes:
        name: Its name on the card.
        packages: The packages that it needs.

    Args:
        features: The n-grams.
        coefficients: `(labels, features)`.
        intercepts: `(labels,)`.
    """

    name = "linear SVM on n-grams"
    packages = ("sklearn",)

    features: FeatureUnion
    coefficients: np.ndarray
    intercepts: np.ndarray

    @classmethod
    def fit(cls, texts: Sequence[str], answers: np.ndarray, num_labels: int) -> NgramClassifier:
        """Learn from texts.

        Args:
            texts: The texts; at most 100,000 of them are used.
            answers: The number of the label of each text, `(texts,)`, or zeros and ones,
                `(texts, labels)`.
            num_labels: The number of labels.
        """
        from sklearn.svm import LinearSVC

        texts = sample_rows(texts, MAX_ROWS)
        answers = answers[list(sample_rows(range(len(answers)), MAX_ROWS))]
        features = fit_ngrams(texts, MAX_COEFFICIENTS // num_labels)
        inputs = features.transform(texts)
        coefficients = np.zeros((num_labels, inputs.shape[1]), dtype=np.float32)
        # Without a hyperplane, no text has the label.
        intercepts = np.full(num_labels, -1, dtype=np.float32)
        if answers.ndim == 2:
            for label, has_label in enumerate(answers.T):
                if has_label.all():
                    intercepts[label] = 1
                elif has_label.any():
                    machine = LinearSVC().fit(inputs, has_label)
                    coefficients[label] = machine.coef_[0]
                    intercepts[label] = machine.intercept_[0]
            return cls(features, coefficients, intercepts)
        machine = LinearSVC().fit(inputs, answers)
        # One hyperplane separates two labels.
        signs = np.array([[-0.5], [0.5]]) if len(machine.classes_) == 2 else 1
        coefficients[machine.classes_] = signs * machine.coef_
        intercepts[machine.classes_] = (signs * machine.intercept_[:, np.newaxis])[:, 0]
        return cls(features, coefficients, intercepts)

    @classmethod
    def from_saved(
        cls, texts: dict[str, list[str]], arrays: dict[str, np.ndarray]
    ) -> NgramClassifier:
        """The classifier whose `texts()` and `arrays()` were saved."""
        features = ngrams_of({kind: {"vocabulary": terms} for kind, terms in texts.items()})
        for kind, vectorizer in features.transformer_list:
            vectorizer.idf_ = arrays[f"idf of {kind}"]
        return cls(features, arrays["coefficients"], arrays["intercepts"])

    def texts(self) -> dict[str, list[str]]:
        """The n-grams by kind, in the order of their columns."""
        return {
            kind: vectorizer.get_feature_names_out().tolist()
            for kind, vectorizer in self.features.transformer_list
        }

    def arrays(self) -> dict[str, np.ndarray]:
        """The hyperplanes, and the inverse document frequencies by kind."""
        frequencies = {
            f"idf of {kind}": vectorizer.idf_ for kind, vectorizer in self.features.transformer_list
        }
        return {"coefficients": self.coefficients, "intercepts": self.intercepts, **frequencies}

    def scores(self, texts: Sequence[str]) -> np.ndarray:
        """The score of each label for each text, `(texts, labels)`: positive on the side of the
        label."""
        return self.features.transform(texts) @ self.coefficients.T + self.intercepts
