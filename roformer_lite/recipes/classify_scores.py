"""The losses, the thresholds and the joint scores of classifiers."""

from __future__ import annotations

import numpy as np
import torch
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

from ..baseline.join import Join

# The threshold for rows with several labels, unless validation data choose another one.
DEFAULT_THRESHOLD = 0.5


def best_threshold(scores: np.ndarray, true: np.ndarray) -> float:
    """The threshold of the scores with the highest micro F1.

    Args:
        scores: The scores of the labels, `(rows, labels)`.
        true: Zeros and ones for the same labels, and possibly for more that the model lacks.
    """
    from sklearn.metrics import precision_recall_curve

    true = true[:, : scores.shape[1]]
    if not true.any():
        return DEFAULT_THRESHOLD
    precision, recall, thresholds = precision_recall_curve(true.ravel(), scores.ravel())
    # The last precision and recall belong to no threshold. One of the two may be zero.
    sums = (precision + recall)[:-1]
    products = (precision * recall)[:-1]
    f1 = 2 * products / np.where(sums > 0, sums, 1)
    best = int(f1.argmax())
    # Any threshold above the next lower score selects the same labels.
    return float(thresholds[max(best - 1, 0) : best + 1].mean())


def joint_logits(join: Join, logits: np.ndarray, distances: np.ndarray) -> np.ndarray:
    """The weighted sum of the logits of an encoder and the distances of a support vector machine,
    both `(rows, labels)`."""
    return join.weight * logits + (1 - join.weight) * join.scale * distances


def losses_of_rows(logits: np.ndarray, answers: np.ndarray) -> np.ndarray:
    """The cross-entropy of each row, `(rows,)`.

    Args:
        logits: `(rows, labels)`.
        answers: Classes `(rows,)`, or zeros and ones `(rows, labels)`.
    """
    scores = torch.from_numpy(logits)
    true = torch.from_numpy(answers)
    if true.ndim == 1:
        return cross_entropy(scores, true, reduction="none").numpy()
    losses = binary_cross_entropy_with_logits(scores, true.to(scores.dtype), reduction="none")
    return losses.mean(dim=1).numpy()
