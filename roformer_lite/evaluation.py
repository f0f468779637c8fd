"""Evaluates the predictions of a saved model on labelled data, both at the end of a training and
later."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from datasets import Dataset

from .data.duplicates import SEEN
from .errors import InputError
from .measuring.metrics import Metrics
from .measuring.report import LabelReport, Outcome, are_right, scores_of
from .measuring.significance import RowMetric
from .recipes.base import Recipe
from .recipes.loaded_model import LoadedModel

# The name of the saved model in comparisons.
THIS_MODEL = "this model"


@dataclass
class Evaluation:
    """The predictions of a saved model on a split, and their metrics.

    Args:
        split: The name of the data.
        metrics: The metrics by name.
        outcomes: The predictions, in the order of the rows.
        by_row: The main metric by row.
        without_seen: The main metric without the rows whose input also occurs in the training data;
            None if there are no such rows, or no others.
        rows: The number of rows.
        report: The metrics of each label, for tasks with labels.
    """

    split: str
    metrics: Metrics
    outcomes: Sequence[Outcome]
    by_row: RowMetric
    rows: int
    report: LabelReport | None
    without_seen: float | None = None

    @property
    def right(self) -> np.ndarray:
        """Whether each prediction is right, `(rows,)`."""
        return are_right(self.outcomes)

    @property
    def scores(self) -> np.ndarray | None:
        """The probability of each prediction, `(rows,)`; None if the model has none."""
        return scores_of(self.outcomes)


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
    measured = recipe.evaluate(saved, rows, batch_size=batch_size, seed=seed)
    values = measured.metrics.items()
    bad = [f"{name} {value}" for name, value in values if not math.isfinite(value)]
    if bad:
        raise InputError(
            f"on the {split} data the metrics of the model are not finite: {', '.join(bad)}"
        )
    without_seen = None
    if SEEN in rows.column_names:
        is_seen = recipe.are_seen(saved, rows)
        if not is_seen.all():
            without_seen = measured.by_row.of_rows(~is_seen).value
    return Evaluation(
        split=split,
        metrics=measured.metrics,
        outcomes=measured.outcomes,
        by_row=measured.by_row,
        rows=len(rows),
        report=recipe.report(measured.outcomes),
        without_seen=without_seen,
    )
