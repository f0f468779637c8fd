"""Simple means for classify: the commonest answer, and a linear model on n-grams of words and characters."""

import re
from collections.abc import Mapping, Sequence

import numpy as np
from sklearn.dummy import DummyClassifier, DummyRegressor
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import Ridge
from sklearn.multiclass import OneVsRestClassifier
from sklearn.pipeline import FeatureUnion, make_pipeline, make_union
from sklearn.svm import LinearSVC

from ..metrics import Metrics, classification_metrics, multi_label_metrics, regression_metrics
from . import Baselines, at_most

_MOST_ROWS = 50_000
# Han, kana, Thai, Lao, Burmese and Khmer are written without spaces.
_WITHOUT_SPACES = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff]")

Examples = tuple[Sequence[str], np.ndarray]  # texts, and classes (rows,), sets (rows, labels) of 0 and 1, or numbers


def classification_baselines(problem_type: str, train: Examples, measured: Mapping[str, Examples]) -> Baselines:
    """Figures of the commonest answer and of a linear model.

    The linear model is a support vector machine (ridge regression for numbers) on TF-IDF of words, word pairs and
    character n-grams, which is hard to beat on short texts (Wang & Manning 2012, ACL).

    Args:
        problem_type: As in the configuration of a model.
        train: Texts and answers to learn from; 50,000 of them at most are used.
        measured: Texts and answers of each split to measure.
    """
    texts, answers = at_most(train[0], _MOST_ROWS), at_most(train[1], _MOST_ROWS)
    if problem_type == "regression":
        commonest, linear = DummyRegressor(), Ridge()
    elif problem_type == "multi_label_classification":
        commonest, linear = DummyClassifier(), OneVsRestClassifier(LinearSVC())
    else:
        commonest, linear = DummyClassifier(), LinearSVC()
    means = {"the commonest answer": commonest, "a linear model on n-grams": make_pipeline(_features(texts), linear)}
    if problem_type == "regression":
        means["the mean"] = means.pop("the commonest answer")
    figures: Baselines = {}
    for name, model in means.items():
        model.fit(texts, answers)
        figures[name] = {
            split: _metrics(problem_type, model.predict(texts), answers)
            for split, (texts, answers) in measured.items()
        }
    return figures


def _features(texts: Sequence[str]) -> FeatureUnion:
    sample = "".join(at_most(texts, 1000))
    if len(_WITHOUT_SPACES.findall(sample)) > len(sample) / 4:
        return make_union(TfidfVectorizer(analyzer="char", ngram_range=(1, 3), sublinear_tf=True))
    return make_union(
        TfidfVectorizer(token_pattern=r"\w+|[^\w\s]", ngram_range=(1, 2), sublinear_tf=True),
        TfidfVectorizer(analyzer="char_wb", ngram_range=(2, 5), sublinear_tf=True),
    )


def _metrics(problem_type: str, predicted: np.ndarray, true: np.ndarray) -> Metrics:
    measure = {
        "regression": regression_metrics,
        "multi_label_classification": multi_label_metrics,
        "single_label_classification": classification_metrics,
    }[problem_type]
    return measure(predicted, true)
