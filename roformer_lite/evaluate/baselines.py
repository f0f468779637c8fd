"""Baselines: simple methods that learn from the same data, for comparison with a trained model.

They are evaluated with the same functions as the model, and take seconds. There are none for
language models. Only training and evaluation need scikit-learn, so it is imported in functions.
"""

from __future__ import annotations

import re
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, compress, groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from .metrics import (
    HAN,
    KANA,
    OTHERS_WITHOUT_SPACES,
    Metrics,
    classification_metrics,
    regression_metrics,
    tagging_metrics,
    translation_metrics,
)

if TYPE_CHECKING:
    from sklearn.pipeline import FeatureUnion

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

# A baseline learns from at most this many rows.
MAX_ROWS = 100_000
_WORD = re.compile(r"\b\w+\b")

T = TypeVar("T")


def sample_rows(rows: Sequence[T], amount: int) -> Sequence[T]:
    """All rows, or `amount` random ones in their original order.

    The indices depend only on the length of the sequence.
    """
    if len(rows) <= amount:
        return rows
    order = np.random.default_rng(0).permutation(len(rows))
    places = np.sort(order[:amount])
    if isinstance(rows, np.ndarray):
        return rows[places]
    return [rows[place] for place in places]


def _sampled(train: tuple[Sequence[Any], Sequence[Any]]) -> tuple[Any, Any]:
    """The inputs and the answers of the rows from which a baseline learns."""
    return sample_rows(train[0], MAX_ROWS), sample_rows(train[1], MAX_ROWS)


def classification_baselines(
    problem_type: str, train: Examples, measured: Mapping[str, Examples]
) -> tuple[Baselines, dict[str, dict[str, np.ndarray]]]:
    """The most frequent class, or the mean of numbers, and a linear model on n-grams.

    The linear model is a support vector machine (ridge regression for numbers) on TF-IDF of words,
    word pairs and character n-grams, which is hard to beat on short texts (Wang & Manning 2012,
    ACL).

    Args:
        problem_type: As in the configuration of a model.
        train: Texts and answers to learn from; at most 100,000 of them are used.
        measured: Texts and answers of each split to evaluate. The baselines for the second split
            also learn from the first, like the linear part of the trained model.

    Returns:
        The metrics and the predictions by baseline and split.
    """
    from sklearn.dummy import DummyClassifier, DummyRegressor
    from sklearn.linear_model import Ridge
    from sklearn.multiclass import OneVsRestClassifier
    from sklearn.svm import LinearSVC

    if problem_type == "regression":
        measure = regression_metrics
        models = {"mean": DummyRegressor(), "ridge regression on n-grams": Ridge()}
    else:
        measure = classification_metrics
        linear = LinearSVC()
        if problem_type == "multi_label_classification":
            linear = OneVsRestClassifier(linear)
        models = {"most frequent class": DummyClassifier(), "linear SVM on n-grams": linear}
    metrics: Baselines = {name: {} for name in models}
    predicted: dict[str, dict[str, np.ndarray]] = {name: {} for name in models}
    known = train
    for split, examples in measured.items():
        texts, answers = _sampled(known)
        features = _text_features(texts)
        learned = features.fit_transform(texts)
        inputs = features.transform(examples[0])
        for name, model in models.items():
            model.fit(learned, answers)
            predicted[name][split] = model.predict(inputs)
            metrics[name][split] = measure(predicted[name][split], examples[1])
        known = _with_rows(train, examples, problem_type)
    return metrics, predicted


def _with_rows(train: Examples, more: Examples, problem_type: str) -> Examples:
    """The training rows and further rows, without labels that do not occur in the training rows."""
    texts, answers = train
    new_texts, new_answers = more
    keep = np.full(len(new_texts), True)
    if problem_type == "multi_label_classification":
        new_answers = new_answers[:, : answers.shape[1]]
    elif problem_type == "single_label_classification":
        keep = new_answers <= answers.max()
    kept_texts = compress(new_texts, keep)
    return [*texts, *kept_texts], np.concatenate((answers, new_answers[keep]))


def _text_features(texts: Sequence[str]) -> FeatureUnion:
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.pipeline import make_union

    sample = "".join(sample_rows(texts, 1000))
    scripts = (HAN, KANA, OTHERS_WITHOUT_SPACES)
    if sum(len(script.findall(sample)) for script in scripts) > len(sample) / 4:
        return make_union(TfidfVectorizer(analyzer="char", ngram_range=(1, 3), sublinear_tf=True))
    return make_union(
        TfidfVectorizer(token_pattern=r"\w+|[^\w\s]", ngram_range=(1, 2), sublinear_tf=True),
        TfidfVectorizer(analyzer="char_wb", ngram_range=(2, 5), sublinear_tf=True),
    )


def tagging_baselines(
    scheme: str | None, train: Sentences, measured: Mapping[str, Sentences]
) -> Baselines:
    """The most frequent tag of each word, and a conditional random field (Lafferty et al. 2001,
    ICML).

    Args:
        scheme: The scheme by which the tags mark entities; see `tagging_metrics`.
        train: Sentences and tags to learn from; the random field uses at most 100,000 of them.
        measured: Sentences and tags of each split to evaluate.
    """
    most_frequent = _most_frequent_tags(train)
    known_sentences, known_tags = _sampled(train)
    crf = train_crf(zip(map(word_features, known_sentences), known_tags, strict=True))
    found: Baselines = {"most frequent tag of each word": {}, "CRF": {}}
    for split, (sentences, tags) in measured.items():
        by_word = [[most_frequent[word] for word in words] for words in sentences]
        by_crf = [crf.tag(word_features(words)) for words in sentences]
        for name, predicted in zip(found, (by_word, by_crf), strict=True):
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


def train_crf(sentences: Iterable[tuple[list[list[str]], list[str]]]) -> Any:
    """Train a conditional random field with CRFsuite.

    Args:
        sentences: The features and the tag of each word of each sentence.

    Returns:
        A `pycrfsuite.Tagger`.
    """
    import pycrfsuite

    params = {
        "c1": 0.1,
        "c2": 0.01,
        # More iterations of L-BFGS change little and take long.
        "max_iterations": 60,
        "feature.possible_transitions": True,
    }
    trainer = pycrfsuite.Trainer(params=params, verbose=False)
    for features, tags in sentences:
        trainer.append(features, tags)
    tagger = pycrfsuite.Tagger()
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "crf"
        trainer.train(str(path))
        # The file is read as a whole, so the directory is not needed afterwards.
        tagger.open(str(path))
    return tagger


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
