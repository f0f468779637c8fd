"""The predictions of a model on labelled data, and reports on them: scores by label and the
worst predictions."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .metrics import Metrics, entity_report


@dataclass
class Outcome:
    """The prediction of a model for one labelled row, or for one block of the text of a language
    model.

    Args:
        origin: The origin of the row as `file:line`.
        columns: Inputs, true values and predictions, for a table.
        severity: 0 for a right prediction, and larger for worse ones.
        true, predicted: The labels of a row, or the tags of a sentence. Empty for tasks without
            labels.
        score: The probability of the prediction, if the model has one.
    """

    origin: str
    columns: dict[str, Any]
    severity: float
    true: list[str] = field(default_factory=list)
    predicted: list[str] = field(default_factory=list)
    score: float | None = None


def report_of_labels(true: Any, predicted: Any, labels: Sequence[str]) -> dict[str, Metrics]:
    """The precision, recall, F1 and support of single labels, or of rows with any number of labels.
    A metric is 0 if it would divide by zero.

    Args:
        true, predicted: The label of each row, `(rows,)`, or zeros and ones, `(rows, labels)`.
        labels: The labels to report, in the order of the columns.
    """
    from sklearn.metrics import precision_recall_fscore_support

    chosen = labels if np.ndim(true) == 1 else None
    columns = precision_recall_fscore_support(true, predicted, labels=chosen, zero_division=0)
    values = zip(*(column.tolist() for column in columns), strict=True)
    return dict(zip(labels, map(_named, values), strict=True))


def report_of_entities(
    true: list[list[str]], predicted: list[list[str]], scheme: str
) -> dict[str, Metrics]:
    """The precision, recall, F1 and support of whole entities by type."""
    return {
        kind: _named(value.item() for value in row.values())
        for kind, row in entity_report(predicted, true, scheme).items()
        if kind not in ("micro avg", "macro avg", "weighted avg")
    }


def _named(values: Iterable[float]) -> Metrics:
    precision, recall, f1, support = values
    return {"precision": precision, "recall": recall, "f1": f1, "support": int(support)}


def worst(outcomes: Sequence[Outcome], number: int) -> list[Outcome]:
    """The worst wrong predictions, in descending order of severity."""
    wrong = [outcome for outcome in outcomes if outcome.severity > 0]
    return sorted(wrong, key=lambda outcome: -outcome.severity)[:number]
