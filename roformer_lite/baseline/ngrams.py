"""The baseline of classifiers: a linear support vector machine on n-grams.

Its packages belong to the extra `train`, so they are imported in functions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from ..data.sampling import MAX_ROWS, sample_rows
from ..data.scripts import HAN, KANA, OTHERS_WITHOUT_SPACES

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix
    from sklearn.feature_extraction.text import TfidfVectorizer

# The arguments of TfidfVectorizer for each kind of n-gram.
KINDS: dict[str, dict[str, Any]] = {
    "words": {"token_pattern": r"\w+|[^\w\s]", "ngram_range": (1, 2)},
    "parts of words": {"analyzer": "char_wb", "ngram_range": (2, 5)},
    "characters": {"analyzer": "char", "ngram_range": (1, 3)},
}
# The largest number of n-grams times labels, at which the coefficients take 32 MB. Rare n-grams are
# left out.
MAX_COEFFICIENTS = 8_000_000


class NgramFeatures:
    """TF-IDF of words, word pairs and parts of words, or of one to three characters in scripts
    without spaces.

    Args:
        vectorizers: The fitted vectorizers by their kind.
    """

    def __init__(self, vectorizers: dict[str, TfidfVectorizer]):
        self.vectorizers = vectorizers

    @classmethod
    def fit(cls, texts: Sequence[str], max_features: int | None = None) -> NgramFeatures:
        """Find the n-grams of some texts, only the most frequent ones if there are more than
        `max_features`."""
        from sklearn.feature_extraction.text import TfidfVectorizer

        sample = "".join(sample_rows(texts, 1000))
        scripts = (HAN, KANA, OTHERS_WITHOUT_SPACES)
        kinds = ["words", "parts of words"]
        if sum(len(script.findall(sample)) for script in scripts) > len(sample) / 4:
            kinds = ["characters"]
        if max_features is not None:
            max_features = max(1, max_features // len(kinds))
        vectorizers = {}
        for kind in kinds:
            vectorizer = TfidfVectorizer(
                **KINDS[kind], sublinear_tf=True, max_features=max_features
            )
            vectorizers[kind] = vectorizer.fit(texts)
        return cls(vectorizers)

    @classmethod
    def from_saved(
        cls, texts: dict[str, list[str]], arrays: dict[str, np.ndarray]
    ) -> NgramFeatures:
        """The features whose `texts()` and `arrays()` were saved."""
        from sklearn.feature_extraction.text import TfidfVectorizer

        vectorizers = {}
        for kind, terms in texts.items():
            vectorizer = TfidfVectorizer(**KINDS[kind], sublinear_tf=True, vocabulary=terms)
            vectorizer.idf_ = arrays[f"idf of {kind}"]
            vectorizers[kind] = vectorizer
        return cls(vectorizers)

    def texts(self) -> dict[str, list[str]]:
        """The n-grams by kind, in the order of their columns."""
        return {
            kind: vectorizer.get_feature_names_out().tolist()
            for kind, vectorizer in self.vectorizers.items()
        }

    def arrays(self) -> dict[str, np.ndarray]:
        """The inverse document frequencies by kind."""
        return {f"idf of {kind}": each.idf_ for kind, each in self.vectorizers.items()}

    def of(self, texts: Sequence[str]) -> csr_matrix:
        """The features of texts, `(texts, features)`."""
        from scipy.sparse import hstack

        parts = [vectorizer.transform(texts) for vectorizer in self.vectorizers.values()]
        return hstack(parts, format="csr")


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
    packages: ClassVar[tuple[str, ...]] = ("sklearn",)

    def __init__(self, features: NgramFeatures, coefficients: np.ndarray, intercepts: np.ndarray):
        self.features = features
        self.coefficients = coefficients
        self.intercepts = intercepts

    @classmethod
    def fit(cls, texts: Sequence[str], answers: np.ndarray, num_labels: int) -> NgramClassifier:
        """Learn from texts.

        Args:
            texts: The texts; at most 100,000 of them are used.
            answers: The number of the label of each text, `(texts,)`, or zeros and ones,
                `(texts, labels)`.
            num_labels: The number of labels.
        """
        texts = sample_rows(texts, MAX_ROWS)
        answers = answers[list(sample_rows(range(len(answers)), MAX_ROWS))]
        features = NgramFeatures.fit(texts, MAX_COEFFICIENTS // num_labels)
        inputs = features.of(texts)
        coefficients = np.zeros((num_labels, inputs.shape[1]), dtype=np.float32)
        # Without a hyperplane, no text has the label.
        intercepts = np.full(num_labels, -1, dtype=np.float32)
        if answers.ndim == 2:
            for label, has_label in enumerate(answers.T):
                if has_label.all():
                    intercepts[label] = 1
                elif has_label.any():
                    machine = _fit_machine(inputs, has_label)
                    coefficients[label] = machine.coef_[0]
                    intercepts[label] = machine.intercept_[0]
            return cls(features, coefficients, intercepts)
        machine = _fit_machine(inputs, answers)
        if len(machine.classes_) == 2:
            # One hyperplane separates two labels.
            signs = np.array([[-0.5], [0.5]])
            coefficients[machine.classes_] = signs * machine.coef_
            intercepts[machine.classes_] = signs[:, 0] * machine.intercept_
        else:
            coefficients[machine.classes_] = machine.coef_
            intercepts[machine.classes_] = machine.intercept_
        return cls(features, coefficients, intercepts)

    @classmethod
    def from_saved(
        cls, texts: dict[str, list[str]], arrays: dict[str, np.ndarray]
    ) -> NgramClassifier:
        """The classifier whose `texts()` and `arrays()` were saved."""
        features = NgramFeatures.from_saved(texts, arrays)
        return cls(features, arrays["coefficients"], arrays["intercepts"])

    def texts(self) -> dict[str, list[str]]:
        return self.features.texts()

    def arrays(self) -> dict[str, np.ndarray]:
        own = {"coefficients": self.coefficients, "intercepts": self.intercepts}
        return {**self.features.arrays(), **own}

    def scores(self, texts: Sequence[str]) -> np.ndarray:
        """The score of each label for each text, `(texts, labels)`: positive on the side of the
        label."""
        return self.features.of(texts) @ self.coefficients.T + self.intercepts


def _fit_machine(inputs: csr_matrix, answers: np.ndarray) -> Any:
    from sklearn.svm import LinearSVC

    return LinearSVC().fit(inputs, answers)
