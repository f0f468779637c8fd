"""Baselines: simple methods that learn from the same data, for comparison with a trained model.

Their predictions are evaluated with the same functions as those of the model. They take seconds.
Only training and evaluation need scikit-learn, so it is imported in functions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from ..baseline.ngrams import NgramClassifier, fit_ngrams, ngrams_of
from ..data.sampling import MAX_ROWS, sample_rows

# The predictions by baseline and split, in the form that `Recipe.measured` takes.
Predictions = dict[str, dict[str, Any]]
# Texts with classes (rows,), zeros and ones (rows, labels), or numbers (rows,).
Examples = tuple[Sequence[str], np.ndarray]
# Sources and targets.
Pairs = tuple[Sequence[str], Sequence[str]]
ScoredPairs = tuple[Sequence[str], Sequence[str], Sequence[float]]
# Queries, documents, and the indices of the relevant documents of each query.
Search = tuple[Sequence[str], Sequence[str], Sequence[set[int]]]


def _sampled(train: tuple[Any, Any]) -> tuple[Any, Any]:
    """The inputs and the answers of the rows from which a baseline learns."""
    return sample_rows(train[0], MAX_ROWS), sample_rows(train[1], MAX_ROWS)


def classification_baselines(
    train: Examples,
    measured: Mapping[str, Examples],
    machines: Mapping[str, NgramClassifier],
    threshold: float,
) -> Predictions:
    """The most frequent class, and a linear support vector machine on n-grams.

    Args:
        train: Texts and answers to learn from.
        measured: Texts and answers of each split to evaluate.
        machines: The fitted machine for each of these splits.
        threshold: The lowest score of the labels of a row that may have several.
    """
    from sklearn.dummy import DummyClassifier

    simplest = DummyClassifier().fit(train[0], train[1])
    most_frequent = {}
    by_machine = {}
    for split, (texts, answers) in measured.items():
        scores = machines[split].scores(texts)
        is_set = answers.ndim == 2
        most_frequent[split] = simplest.predict(texts)
        by_machine[split] = (scores >= threshold).astype(int) if is_set else scores.argmax(axis=1)
    return {"most frequent class": most_frequent, NgramClassifier.name: by_machine}


def regression_baselines(train: Examples, measured: Mapping[str, Sequence[str]]) -> Predictions:
    """Ridge regression on n-grams.

    Args:
        train: Texts and numbers to learn from; at most 100,000 of them are used.
        measured: Texts of each split to evaluate.
    """
    from sklearn.linear_model import Ridge

    texts, numbers = _sampled(train)
    features = fit_ngrams(texts)
    model = Ridge().fit(features.transform(texts), numbers)
    predicted = {split: model.predict(features.transform(own)) for split, own in measured.items()}
    return {"ridge regression on n-grams": predicted}


def text_to_text_baselines(train: Pairs, measured: Mapping[str, Sequence[str]]) -> Predictions:
    """A copy of the source, and the target of the most similar source in the training data, by the
    cosine of TF-IDF vectors of character n-grams.

    Args:
        train: Sources and targets to remember; at most 100,000 pairs are used.
        measured: Sources of each split to evaluate.
    """
    from sklearn.neighbors import NearestNeighbors

    known_sources, known_targets = _sampled(train)
    features = ngrams_of({"characters": {}})
    memory = NearestNeighbors(n_neighbors=1, metric="cosine")
    memory.fit(features.fit_transform(known_sources))
    copied = {split: list(sources) for split, sources in measured.items()}
    nearest = {}
    for split, sources in measured.items():
        places = memory.kneighbors(features.transform(sources), return_distance=False)
        nearest[split] = [known_targets[place] for place in places[:, 0].tolist()]
    return {"copying the source": copied, "nearest neighbour (TF-IDF)": nearest}


class TfidfCosine:
    """The cosine of the TF-IDF vectors of texts, from character n-grams within words.

    Args:
        texts: The texts of the training data, which determine the weights; at most 100,000 are
            used.
    """

    def __init__(self, texts: Sequence[str]):
        from sklearn.feature_extraction.text import TfidfVectorizer

        features = TfidfVectorizer(analyzer="char_wb", ngram_range=(2, 4), sublinear_tf=True)
        self.features = features.fit(sample_rows(texts, MAX_ROWS))

    def cosines(self, pairs: ScoredPairs) -> np.ndarray:
        """The cosine of each pair, `(pairs,)`."""
        first = self.features.transform(pairs[0])
        second = self.features.transform(pairs[1])
        # The vectors have length 1.
        return np.asarray(first.multiply(second).sum(axis=1)).ravel()

    def retrieval(self, search: Search) -> np.ndarray:
        """The `retrieval_scores` of the queries."""
        queries = self.features.transform(search[0])
        documents = self.features.transform(search[1])
        scores = ((queries[number] @ documents.T).toarray()[0] for number in range(len(search[0])))
        return retrieval_scores(scores, search[2])


def retrieval_scores(scores: Iterable[np.ndarray], right: Sequence[Iterable[int]]) -> np.ndarray:
    """The reciprocal rank among the first ten, and whether a relevant document is at rank 1 and
    among the first ten, `(queries, 3)`.

    Args:
        scores: The scores of all documents for each query.
        right: The relevant documents of each query.
    """
    pairs = zip(scores, right, strict=True)
    ranks = np.array([_rank(own_scores, own_right) for own_scores, own_right in pairs])
    is_found = ranks <= 10
    return np.stack([is_found / ranks, ranks <= 1, is_found], axis=1)


def _rank(scores: np.ndarray, right: Iterable[int]) -> float:
    """The rank of the best relevant document. Ties with other documents count as half a rank."""
    best = scores[list(right)].max()
    wrong = np.delete(scores, list(right))
    return 1 + (wrong > best).sum() + (wrong == best).sum() / 2
