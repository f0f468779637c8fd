"""Simple means for similarity and search: the cosine of two texts' words and character n-grams, weighted by TF-IDF."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.pipeline import FeatureUnion

from ..metrics import Metrics, regression_metrics
from . import at_most

_MOST_TEXTS = 50_000

ScoredPairs = tuple[Sequence[str], Sequence[str], Sequence[float]]
Search = tuple[Sequence[str], Sequence[str], Sequence[set[int]]]  # queries, documents, which of them are right


class TfidfCosine:
    """The cosine of texts by words, and by words and character n-grams together.

    Args:
        texts: Of the training data, which the weights are counted in; 50,000 at most are used.
    """

    def __init__(self, texts: Sequence[str]):
        words = TfidfVectorizer(sublinear_tf=True, token_pattern=r"(?u)\b\w+\b")
        characters = TfidfVectorizer(analyzer="char_wb", ngram_range=(2, 4), sublinear_tf=True)
        self.features = FeatureUnion([("words", words), ("characters", characters)])
        self.features.fit(at_most(texts, _MOST_TEXTS))

    def correlations(self, pairs: ScoredPairs) -> Metrics:
        """Correlations of the cosine of each pair with its score."""
        first, second = (self.features.transform(side) for side in pairs[:2])
        cosines = np.asarray(first.multiply(second).sum(1)).ravel()  # up to a factor: each half has length 1
        figures = regression_metrics(cosines, np.array(pairs[2], dtype=float))
        return {name: figures[name] for name in ("spearman", "pearson")}

    def retrieval(self, search: Search) -> Metrics:
        """How well the documents are found for each query."""
        queries, documents = (self.features.transform(side) for side in search[:2])
        scores = ((queries[number] @ documents.T).toarray().ravel() for number in range(len(search[0])))
        return ranking_metrics([_rank(row, right) for row, right in zip(scores, search[2], strict=True)])

    def reranking(self, samples: Sequence[Mapping[str, Any]]) -> Metrics:
        """How well the positives of each sample, `query`, `positive` and `negative`, are told from its negatives."""
        ranks = []
        for sample in samples:
            query = self.features.transform([sample["query"]])
            documents = self.features.transform([*sample["positive"], *sample["negative"]])
            ranks.append(_rank((query @ documents.T).toarray().ravel(), set(range(len(sample["positive"])))))
        return ranking_metrics(ranks)


def _rank(scores: np.ndarray, right: set[int]) -> float:
    """The rank of the best right document; among wrong ones of the same score, the middle one."""
    best, wrong = scores[list(right)].max(), np.delete(scores, list(right))
    return 1 + (wrong > best).sum() + (wrong == best).sum() / 2


def ranking_metrics(ranks: Sequence[float]) -> Metrics:
    """MRR of the first ten, and how often the first right document is the first, or one of the first ten.

    Args:
        ranks: From 1, of the first right document of each query.
    """
    ranks = np.array(ranks)
    return {
        "mrr@10": float(np.where(ranks <= 10, 1 / ranks, 0).mean()),
        "accuracy@1": float((ranks <= 1).mean()),
        "accuracy@10": float((ranks <= 10).mean()),
    }
