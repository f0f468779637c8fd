"""Linear models of n-grams: support vector machines, or ridge regression for numbers.

Only training needs scipy and scikit-learn, so they are imported in functions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

# A share of naive Bayes in the weights of n-grams helps on some data and does harm on others.
NAIVE_BAYES_SHARES = (0.0, 0.5)
# A share is chosen by cross-validation on at least this many rows, and at most this many rows times
# labels.
MIN_TRIED_ROWS = 30
MAX_TRIED_LABELS = 300_000
NUM_FOLDS = 3
# The cost of an error in relation to the size of the weights (`C` of scikit-learn).
COST = 2.0
# This number is added to the sums of a feature over the rows with and without a label.
SMOOTHING = 0.1
# Scores of held-out rows are multiplied by at most this number, or divided by it.
MAX_SCALE = 50.0


def fit_linear_model(
    features: csr_matrix,
    answers: np.ndarray,
    num_labels: int,
    problem_type: str,
    importance: np.ndarray | None,
    calibrates: bool,
) -> tuple[np.ndarray, np.ndarray]:
    """Fit a linear model.

    Args:
        features: `(rows, features)`.
        answers: Classes `(rows,)`, `(rows, labels)` of 0 and 1, or numbers `(rows,)`.
        num_labels, problem_type: As in the configuration of a model.
        importance: The weight of each row, `(rows,)`. Default: equal weights.
        calibrates: Whether to scale the scores so that their softmax, or the sigmoid of each, has
            the lowest cross-entropy on held-out rows. Scores of numbers, or with fewer than
            `MIN_TRIED_ROWS` rows, are not calibrated.

    Returns:
        Weights `(features, labels)` and biases `(labels,)`.
    """
    from sklearn.linear_model import Ridge

    if problem_type == "regression":
        ridge = Ridge().fit(features, answers)
        return ridge.coef_[:, None], np.array([ridge.intercept_])
    labels = answers
    is_exclusive = problem_type != "multi_label_classification"
    if is_exclusive:
        labels = np.eye(num_labels, dtype=int)[answers]
    has_two_classes = is_exclusive and labels.shape[1] == 2
    if has_two_classes:
        # A single machine separates two classes.
        labels = labels[:, 1:]
        is_exclusive = False

    share = NAIVE_BAYES_SHARES[0]
    scale = 1.0
    order = np.random.default_rng(0).permutation(len(labels))
    tried = order[: MAX_TRIED_LABELS // labels.shape[1]]
    if len(tried) >= MIN_TRIED_ROWS:
        rows = Rows(features, labels, importance)[tried]
        share, scores = best_share(rows, is_exclusive)
        if calibrates:
            # The difference of the logits of two classes is twice the score.
            scale = best_scale(2 * scores if has_two_classes else scores, rows.labels, is_exclusive)
    weights, bias = fit_machines(Rows(features, labels, importance), share)
    if has_two_classes:
        weights = np.hstack((-weights, weights))
        bias = np.concatenate((-bias, bias))
    return scale * weights, scale * bias


@dataclass
class Rows:
    """Examples of a linear model.

    Args:
        features: `(rows, features)`.
        labels: Zeros and ones, `(rows, labels)`.
        importance: The weight of each row, `(rows,)`. Default: equal weights.
    """

    features: csr_matrix
    labels: np.ndarray
    importance: np.ndarray | None

    def __getitem__(self, places: np.ndarray) -> Rows:
        importance = None if self.importance is None else self.importance[places]
        return Rows(self.features[places], self.labels[places], importance)


def best_share(rows: Rows, is_exclusive: bool) -> tuple[float, np.ndarray]:
    """Find the share of naive Bayes with the highest accuracy in cross-validation.

    Args:
        rows: At least `NUM_FOLDS` rows.
        is_exclusive: Whether the prediction is the label with the highest score, rather than all
            labels with a positive score.

    Returns:
        The share, which is the first of several equally good ones, and the scores of the held-out
        rows, `(rows, labels)`.
    """
    from sklearn.model_selection import KFold

    found = []
    for share in NAIVE_BAYES_SHARES:
        scores = np.empty(rows.labels.shape)
        for known, asked in KFold(NUM_FOLDS).split(rows.labels):
            weights, bias = fit_machines(rows[known], share)
            scores[asked] = rows.features[asked] @ weights + bias
        answers = scores > 0
        if is_exclusive:
            answers = np.eye(rows.labels.shape[1])[scores.argmax(axis=1)]
        fraction = (answers == rows.labels).mean()
        found.append((fraction, share, scores))
    _, share, scores = max(found, key=lambda tried: tried[0])
    return share, scores


def best_scale(scores: np.ndarray, labels: np.ndarray, is_exclusive: bool) -> float:
    """The factor of scores `(rows, labels)` with the lowest cross-entropy of the labels. The other
    arguments are as in `best_share`."""
    from scipy.optimize import minimize_scalar
    from scipy.special import log_expit, log_softmax

    def loss(log_scale: float) -> float:
        logits = np.exp(log_scale) * scores
        if is_exclusive:
            return -(log_softmax(logits, axis=1) * labels).sum()
        return -np.where(labels, log_expit(logits), log_expit(-logits)).sum()

    limit = np.log(MAX_SCALE)
    return float(np.exp(minimize_scalar(loss, bounds=(-limit, limit), method="bounded").x))


def fit_machines(rows: Rows, share: float) -> tuple[np.ndarray, np.ndarray]:
    """Fit a linear support vector machine for each label, on features that are weighted by how
    informative they are: a share of each weight is the log-count ratio of naive Bayes, as in Wang &
    Manning (2012), and the rest is the same for all features.

    Returns:
        Weights `(features, labels)` and biases `(labels,)`.
    """
    machines = [fit_machine(rows, is_label, share) for is_label in rows.labels.T]
    weights, biases = zip(*machines, strict=True)
    return np.stack(weights, axis=1), np.array(biases)


def fit_machine(rows: Rows, is_label: np.ndarray, share: float) -> tuple[np.ndarray, float]:
    """The weights `(features,)` and the bias of one machine. The labels are zeros and ones."""
    from scipy.sparse import diags
    from sklearn.svm import LinearSVC

    if is_label.min() == is_label.max():
        return np.zeros(rows.features.shape[1]), 1.0 if is_label.max() else -1.0
    machine = LinearSVC(C=COST)
    if not share:
        machine.fit(rows.features, is_label, rows.importance)
        return machine.coef_[0], float(machine.intercept_[0])
    weights = naive_bayes_weights(rows.features, is_label, share)
    machine.fit(rows.features @ diags(weights), is_label, rows.importance)
    return machine.coef_[0] * weights, float(machine.intercept_[0])


def naive_bayes_weights(features: csr_matrix, is_label: np.ndarray, share: float) -> np.ndarray:
    """The weights of the features, `(features,)`, for the machine of one label."""
    of_label = SMOOTHING + features[is_label == 1].sum(axis=0).A1
    of_others = SMOOTHING + features[is_label == 0].sum(axis=0).A1
    ratios = np.log(of_label / of_label.sum()) - np.log(of_others / of_others.sum())
    ratios = np.abs(ratios)
    mean_square = (features.multiply(features) @ np.square(ratios)).mean()
    if mean_square == 0:
        # No feature is informative about the label.
        return np.ones(features.shape[1])
    return 1 - share + share * ratios / np.sqrt(mean_square)
