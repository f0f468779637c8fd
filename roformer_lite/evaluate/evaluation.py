"""Evaluation on labelled data: at the end of a training, and of a saved model, in the same way, by
the answers of the saved model."""

from __future__ import annotations

import math
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from datasets import Dataset

from ..errors import InputError
from .metrics import Metrics, calibration_error
from .report import LabelReport, Outcome

if TYPE_CHECKING:
    from ..answers import SavedModel


# Scores that are further than this from the fraction of right answers are no probabilities.
LARGE_CALIBRATION_ERROR = 0.1


@dataclass
class Evaluation:
    """What a saved model answered to a split, and how good that is.

    Args:
        split: The name of the data.
        metrics: By name.
        outcomes: The answers, in the order of the rows.
        measurements: How many measurements the metrics are means of: rows, or queries.
        rows: The number of rows.
        seconds: That answering and measuring took.
        report: How well each label is found, for tasks with labels.
    """

    split: str
    metrics: Metrics
    outcomes: list[Outcome]
    measurements: int
    rows: int
    seconds: float
    report: LabelReport | None

    @property
    def right(self) -> np.ndarray:
        """Whether each answer is right, `(rows,)`."""
        return np.array([outcome.is_right for outcome in self.outcomes], dtype=bool)

    @property
    def scores(self) -> np.ndarray | None:
        """The probability that the model gives each answer, `(rows,)`; None where it gives none."""
        scores = [outcome.score for outcome in self.outcomes]
        if not scores or None in scores:
            return None
        return np.array(scores)

    @property
    def calibration_error(self) -> float | None:
        """How far the scores are from the fraction of right answers; None without scores."""
        if self.scores is None:
            return None
        return calibration_error(self.scores, self.right)

    @property
    def warnings(self) -> list[str]:
        """What is printed with the metrics, where it is bad."""
        error = self.calibration_error
        if error is None or error <= LARGE_CALIBRATION_ERROR:
            return []
        return [
            "The scores of `predict` rank answers; they are not probabilities, as they are "
            f"{error:.3f} away from the fraction of right answers on average."
        ]


def evaluate(
    saved: SavedModel, split: str, rows: Dataset, batch_size: int, seed: int
) -> Evaluation:
    """Measure a saved model on labelled data.

    Args:
        saved: The model.
        split: What messages call the data.
        rows: The data.
        batch_size: Rows that are answered at once.
        seed: Of what is drawn at random, such as the masks of masked language models.

    Raises:
        InputError: when a metric is not a number.
    """
    print(f"Measuring on the {split} data, {len(rows):,} rows", file=sys.stderr)
    started = time.monotonic()
    metrics, outcomes = saved.recipe.evaluate(saved, rows, batch_size=batch_size, seed=seed)
    bad = [f"{name} {value}" for name, value in metrics.items() if not math.isfinite(value)]
    if bad:
        raise InputError(
            f"on the {split} data the model gives {', '.join(bad)} instead of a number"
        )
    return Evaluation(
        split=split,
        metrics=metrics,
        outcomes=outcomes,
        measurements=saved.recipe.measurements(rows),
        rows=len(rows),
        seconds=time.monotonic() - started,
        report=saved.recipe.report(outcomes),
    )
