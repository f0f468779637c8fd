"""Joins the scores of an encoder with those of a baseline, by a weight that validation rows
choose."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean, geometric_mean

import numpy as np

NUM_FOLDS = 5
WEIGHTS = tuple(np.linspace(0, 1, 21).tolist())


@dataclass(frozen=True)
class Join:
    """A weighted sum of the scores of an encoder and of a baseline.

    Args:
        scale: A factor of the distances of a support vector machine, which are no logits, or of
            the transitions of a random field.
        weight: The weight of the encoder, from 0 to 1. The baseline has the rest. Default: equal
            weights, if there are too few validation rows to choose others.
    """

    scale: float
    weight: float = 0.5


def choose_join(
    losses_of: Callable[[Join], np.ndarray], scales: Sequence[float], default_scale: float
) -> Join:
    """Choose the join with the lowest loss on validation rows by cross-fitting: one is chosen
    without each fifth of the rows, and their mean is the result. With few rows this mean is less
    extreme than the best join of all rows. With fewer than two rows, both parts have equal weight.

    Args:
        losses_of: The loss of each validation row for a join, `(rows,)`.
        scales: The scales to try.
        default_scale: The scale if there are fewer than two rows.
    """
    joins = [Join(scale, weight) for weight in WEIGHTS for scale in scales]
    losses = np.stack([losses_of(join) for join in joins])  # (joins, rows)
    num_rows = losses.shape[1]
    if num_rows < 2:
        return Join(default_scale)
    num_folds = min(NUM_FOLDS, num_rows)
    fold_of_row = np.arange(num_rows) % num_folds
    chosen = []
    for fold in range(num_folds):
        totals = losses[:, fold_of_row != fold].sum(axis=1)
        chosen.append(joins[totals.argmin()])
    return Join(
        scale=geometric_mean(join.scale for join in chosen),
        weight=fmean(join.weight for join in chosen),
    )
