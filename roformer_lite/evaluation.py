"""Evaluates the predictions of a saved model on labelled data, both at the end of a training and
later."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass

from datasets import Dataset

from .data.duplicates import SEEN
from .errors import InputError
from .measuring.metrics import Metrics
from .measuring.significance import Measured
from .recipes.base import Recipe
from .recipes.loaded_model import LoadedModel

# The name of the saved model in comparisons.
THIS_MODEL = "this model"


@dataclass(frozen=True, kw_only=True)
class Evaluation(Measured):
    """How well a saved model does on a split, with its predictions in the order of the rows.

    Args:
        split: The name of the data.
        rows: The number of rows.
        report: The metrics of each label; empty for tasks without labels.
        without_seen: The main metric without the rows whose input also occurs in the data used for
            training; None if there are no such rows, or no others.
    """

    split: str
    rows: int
    report: dict[str, Metrics]
    without_seen: float | None = None


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
    bad = [
        f"{name} {value}" for name, value in measured.metrics.items() if not math.isfinite(value)
    ]
    if bad:
        raise InputError(
            f"on the {split} data the metrics of the model are not finite: {', '.join(bad)}"
        )
    without_seen = None
    if SEEN in rows.column_names:
        is_seen = recipe.are_seen(saved, rows)
        if not is_seen.all():
            without_seen = recipe.of_unseen(measured, is_seen, rows).value
    return Evaluation(
        **vars(measured),
        split=split,
        rows=len(rows),
        report=recipe.report(measured.outcomes),
        without_seen=without_seen,
    )
