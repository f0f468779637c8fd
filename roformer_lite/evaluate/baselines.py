"""Baselines: simple methods that learn from the same data, for comparison with a trained model.

They are evaluated with the same functions as the model, and take seconds. There are none for
language models. Only training and evaluation need scikit-learn, so it is imported in functions.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np

from ..baseline.crf import WordTagger
from ..baseline.ngrams import NgramClassifier, NgramFeatures
from ..data.sampling import MAX_ROWS, sample_rows
from .metrics import (
    Metrics,
    classification_metrics,
    regression_metrics,
    tagging_metrics,
    translation_metrics,
)

# The metrics by baseline and split.
Baselines = dict[str, dict[str, Metrics]]
# Whether each prediction is right, by baseline and split.
BaselinesRight = dict[str, dict[str, np.ndarray]]
# Texts with classes (rows,), zeros and ones (rows, labels), or numbers (rows,).
Examples = tuple[Sequence[str], np.ndarray]
# The words and the tags of each sentence.
Sentences = tuple[Sequence[list[str]], Sequence[list[str]]]
# Sources and targets.
Pairs = tuple[Sequence[str], Sequence[str]]
ScoredPairs = tuple[Sequence[str], Sequence[str], Sequence[float]]
# Queries, documents, and the indices of the relevant documents of each query.
Search = tuple[Sequence[str], Sequence[str], Sequence[set[int]]]

SVM = "linear SVM on n-grams"
CRF = "CRF"
_WORD = re.compile(r"\b\w+\b")


def _sampled(train: tuple[Any, Any]) -> tuple[Any, Any]:
    """The inputs and the answers of the rows from which a baseline learns."""
    return sample_rows(train[0], MAX_ROWS), sample_rows(train[1], MAX_ROWS)


def classification_baselines(
    train: Examples, measured: Mapping[str, Examples], machines: Mapping[str, NgramClassifier]
) -> tuple[Baselines, dict[str, dict[str, np.ndarray]]]:
    """The most frequent class, and a linear support vector machine on n-grams.

    Args:
        train: Texts and answers to learn from.
        measured: Texts and answers of each split to evaluate.
        machines: The fitted machine for each of these splits.

    Returns:
        The metrics and the predictions by baseline and split.
    """
    from sklearn.dummy import DummyClassifier

    simplest = DummyClassifier().fit(train[0], train[1])
    metrics: Baselines = {"most frequent class": {}, SVM: {}}
    predicted: dict[str, dict[str, np.ndarray]] = {name: {} for name in metrics}
    for split, (texts, answers) in measured.items():
        scores = machines[split].scores(texts)
        is_set = answers.ndim == 2
        predicted["most frequent class"][split] = simplest.predict(texts)
        predicted[SVM][split] = (scores > 0).astype(int) if is_set else scores.argmax(axis=1)
        for name, by_split in predicted.items():
            metrics[name][split] = classification_metrics(by_split[split], answers)
    return metrics, predicted


def regression_baselines(train: Examples, measured: Mapping[str, Examples]) -> Baselines:
    """The mean, and ridge regression on n-grams.

    Args:
        train: Texts and numbers to learn from; at most 100,000 of them are used.
        measured: Texts and numbers of each split to evaluate.
    """
    from sklearn.dummy import DummyRegressor
    from sklearn.linear_model import Ridge

    texts, numbers = _sampled(train)
    features = NgramFeatures.fit(texts)
    inputs = features.of(texts)
    models = {"mean": DummyRegressor(), "ridge regression on n-grams": Ridge()}
    metrics: Baselines = {}
    for name, model in models.items():
        model.fit(inputs, numbers)
        metrics[name] = {
            split: regression_metrics(model.predict(features.of(own_texts)), own_numbers)
            for split, (own_texts, own_numbers) in measured.items()
        }
    return metrics


def tagging_baselines(
    scheme: str | None,
    train: Sentences,
    measured: Mapping[str, Sentences],
    field: WordTagger,
    names: Sequence[str],
) -> Baselines:
    """The most frequent tag of each word, and a conditional random field.

    Args:
        scheme: The scheme by which the tags mark entities; see `tagging_metrics`.
        train: Sentences and tags to learn from.
        measured: Sentences and tags of each split to evaluate.
        field: The fitted field.
        names: The tags in the order of their numbers.
    """
    most_frequent = _most_frequent_tags(train)
    found: Baselines = {"most frequent tag of each word": {}, CRF: {}}
    for split, (sentences, tags) in measured.items():
        by_word = [[most_frequent[word] for word in words] for words in sentences]
        by_field = [[names[number] for number in field.tag(words)] for words in sentences]
        for name, predicted in zip(found, (by_word, by_field), strict=True):
            found[name][split] = tagging_metrics(predicted, list(tags), scheme)
    return found


def _most_frequent_tags(train: Sentences) -> defaultdict[str, str]:
    """The most frequent tag of each word. Unknown words get the most frequent tag overall."""
    counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for words, tags in zip(*train, strict=True):
        for word, tag in zip(words, tags, strict=True):
            counts[word][tag] += 1
    overall = Counter(chain.from_iterable(train[1]))
    default = max(overall, key=overall.__getitem__)
    by_word = {word: max(tags, key=tags.__getitem__) for word, tags in counts.items()}
    return defaultdict(lambda: default, by_word)


def text_to_text_baselines(
    bleu_tokenizer: str, train: Pairs, measured: Mapping[str, Pairs]
) -> Baselines:
    """A copy of the source, and the target of the most similar source in the training data, by the
    cosine of TF-IDF vectors of character n-grams.

    Args:
        bleu_tokenizer: As in `translation_metrics`.
        train: Sources and targets to remember; at most 100,000 pairs are used.
        measured: Sources and targets of each split to evaluate.
    """
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.neighbors import NearestNeighbors

    known_sources, known_targets = _sampled(train)
    features = TfidfVectorizer(analyzer="char", ngram_range=(1, 3), sublinear_tf=True)
    memory = NearestNeighbors(n_neighbors=1, metric="cosine")
    memory.fit(features.fit_transform(known_sources))
    found: Baselines = {"copying the source": {}, "nearest neighbour (TF-IDF)": {}}
    for split, (sources, targets) in measured.items():
        places = memory.kneighbors(features.transform(sources), return_distance=False)
        nearest = [known_targets[place] for place in places[:, 0].tolist()]
        for name, predicted in zip(found, (list(sources), nearest), strict=True):
            found[name][split] = translation_metrics(predicted, targets, bleu_tokenizer)
    return found


class TfidfCosine:
    """The cosine of the TF-IDF vectors of texts, from words and character n-grams together.

    Args:
        texts: The texts of the training data, which determine the weights; at most 100,000 are
            used.
    """

    def __init__(self, texts: Sequence[str]):
        from sklearn.feature_extraction.text import TfidfVectorizer
        from sklearn.pipeline import make_union

        known = sample_rows(texts, MAX_ROWS)
        parts = [TfidfVectorizer(analyzer="char_wb", ngram_range=(2, 4), sublinear_tf=True)]
        # The vectorizer of words refuses texts without any, such as emoji.
        if any(map(_WORD.search, known)):
            parts = [TfidfVectorizer(token_pattern=_WORD.pattern, sublinear_tf=True), *parts]
        self.features = make_union(*parts)
        self.features.fit(known)

    def correlations(self, pairs: ScoredPairs) -> Metrics:
        """Correlations of the cosine of each pair with its score."""
        first = self.features.transform(pairs[0])
        second = self.features.transform(pairs[1])
        # The vectors of each vectorizer have length 1, so the product is a multiple of the cosine.
        cosines = np.asarray(first.multiply(second).sum(axis=1)).ravel()
        metrics = regression_metrics(cosines, np.array(pairs[2], dtype=float))
        return {name: metrics[name] for name in ("spearman", "pearson")}

    def retrieval(self, search: Search) -> Metrics:
        """Retrieval metrics for the relevant documents of each query."""
        queries = self.features.transform(search[0])
        documents = self.features.transform(search[1])
        ranks = []
        for number, right in enumerate(search[2]):
            scores = (queries[number] @ documents.T).toarray().ravel()
            ranks.append(_rank(scores, right))
        return ranking_metrics(ranks)


def _rank(scores: np.ndarray, right: set[int]) -> float:
    """The rank of the best relevant document. Ties with other documents count as half a rank."""
    best = scores[list(right)].max()
    wrong = np.delete(scores, list(right))
    return 1 + (wrong > best).sum() + (wrong == best).sum() / 2


def ranking_metrics(ranks: Sequence[float]) -> Metrics:
    """The mean reciprocal rank among the first ten, and the fractions of queries with a relevant
    document at rank 1 and among the first ten.

    Args:
        ranks: The rank of the first relevant document of each query, counted from 1.
    """
    places = np.array(ranks)
    return {
        "mrr@10": float(np.where(places <= 10, 1 / places, 0).mean()),
        "accuracy@1": float((places <= 1).mean()),
        "accuracy@10": float((places <= 10).mean()),
    }
