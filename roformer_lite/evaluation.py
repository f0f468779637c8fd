"""Evaluates the predictions of a saved model on labelled data, both at the end of a training and
later."""

from __future__ import annotations

import math
import sys
import time
from dataclasses import dataclass

import numpy as np
from datasets import Dataset

from .errors import InputError
from .evaluate.metrics import Metrics, calibration_error
from .evaluate.report import LabelReport, Outcome, are_right, scores_of
from .recipes.base import Recipe
from .recipes.loaded_model import LoadedModel

# Scores with a larger expected calibration error are not regarded as probabilities.
LARGE_CALIBRATION_ERROR = 0.1


@dataclass
class Evaluation:
    """The predictions of a saved model on a split, and their metrics.

    Args:
        split: The name of the data.
        metrics: The metrics by name.
        outcomes: The predictions, in the order of the rows.
        measurements: The number of measurements (rows or queries) that the metrics average over.
        rows: The number of rows.
        seconds: The duration of the evaluation.
        report: The metrics of each label, for tasks with labels.
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
        """Whether each prediction is right, `(rows,)`."""
        return are_right(self.outcomes)

    @property
    def scores(self) -> np.ndarray | None:
        """The probability of each prediction, `(rows,)`; None if the model has none."""
        return scores_of(self.outcomes)

    @property
    def calibration_error(self) -> float | None:
        """The expected calibration error of the scores; None without scores."""
        if self.scores is None:
            return None
        return calibration_error(self.scores, self.right)

    @property
    def warnings(self) -> list[str]:
        """Sentences about problems, to be printed with the metrics."""
        error = self.calibration_error
        if error is None or error <= LARGE_CALIBRATION_ERROR:
            return []
        return [
            "The scores of `predict` rank predictions, but they are not probabilities: their "
            f"expected calibration error is {error:.3f}."
        ]


def evaluate(
    saved: LoadedModel, recipe: Recipe, split: str, rows: Dataset, batch_size: int, seed: int
) -> Evaluation:
    """Evaluate a saved model on labelled data.

    Args:
        saved: The model.
        recipe: Its task, as `Recipe.for_rows` returns it.
        split: The name of the data in messages.
        rows: The data.
        batch_size: The number of rows in a batch.
        seed: The seed of random choices, such as the masks of masked language models.

    Raises:
        InputError: if a metric is not finite.
    """
    print(f"Measuring on the {split} data, {len(rows):,} rows", file=sys.stderr)
    started = time.monotonic()
    metrics, outcomes = recipe.evaluate(saved, rows, batch_size=batch_size, seed=seed)
    bad = [f"{name} {value}" for name, value in metrics.items() if not math.isfinite(value)]
    if bad:
        raise InputError(
            f"on the {split} data the metrics of the model are not finite: {', '.join(bad)}"
        )
    return Evaluation(
        split=split,
        metrics=metrics,
        outcomes=outcomes,
        measurements=recipe.measurements(rows),
        rows=len(rows),
        seconds=time.monotonic() - started,
        report=recipe.report(outcomes),
    )
