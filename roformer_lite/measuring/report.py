"""The predictions of a model on labelled data, and reports on them: scores by label and the
worst predictions."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .metrics import ByLabel, entity_report, metrics_by_entity, metrics_by_label

# Longer values in examples are cut.
MAX_SHOWN_CHARACTERS = 300


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

    @property
    def is_right(self) -> bool:
        return self.severity == 0


def are_right(outcomes: Sequence[Outcome]) -> np.ndarray:
    """Whether each prediction is right, `(rows,)`."""
    return np.array([outcome.is_right for outcome in outcomes], dtype=bool)


def scores_of(outcomes: Sequence[Outcome]) -> np.ndarray | None:
    """The probability of each prediction, `(rows,)`; None if the model has none."""
    scores = [outcome.score for outcome in outcomes]
    if not scores or None in scores:
        return None
    return np.array(scores)


@dataclass
class LabelReport:
    """The metrics of each label.

    Args:
        text: The report of scikit-learn or seqeval: precision, recall, F1 and support of each
            label, and their means.
        scores: The same numbers by label.
        true, predicted: The true and the predicted label of each row. Empty if a row may have
            several labels.
    """

    text: str
    scores: ByLabel
    true: list[str] = field(default_factory=list)
    predicted: list[str] = field(default_factory=list)


def report_of_classes(true: list[str], predicted: list[str], labels: Sequence[str]) -> LabelReport:
    """The report of single labels. `labels` that do not occur are left out."""
    from sklearn.metrics import classification_report

    found = {*true, *predicted}
    there = [label for label in labels if label in found]
    text = classification_report(true, predicted, labels=there, digits=4, zero_division=0)
    return LabelReport(text, metrics_by_label(predicted, true, there), true, predicted)


def report_of_sets(
    true: list[list[str]], predicted: list[list[str]], labels: Sequence[str]
) -> LabelReport:
    """The report of rows with any number of `labels`."""
    from sklearn.metrics import classification_report
    from sklearn.preprocessing import MultiLabelBinarizer

    binary = MultiLabelBinarizer(classes=list(labels)).fit(true)
    theirs = binary.transform(true)
    ours = binary.transform(predicted)
    text = classification_report(theirs, ours, target_names=list(labels), digits=4, zero_division=0)
    return LabelReport(text, metrics_by_label(ours, theirs, labels))


def report_of_entities(
    true: list[list[str]], predicted: list[list[str]], scheme: str
) -> LabelReport | None:
    """The report of whole entities by type; None if there are no entities."""
    scores = metrics_by_entity(predicted, true, scheme)
    if not scores:
        return None
    return LabelReport(entity_report(predicted, true, scheme, digits=4), scores)


def worst(outcomes: Sequence[Outcome], number: int) -> list[Outcome]:
    """The worst wrong predictions, in descending order of severity."""
    wrong = [outcome for outcome in outcomes if outcome.severity > 0]
    return sorted(wrong, key=lambda outcome: -outcome.severity)[:number]


def example_text(outcome: Outcome) -> str:
    """A wrong prediction as lines of text."""
    width = max(map(len, outcome.columns))
    lines = [f"  {name:{width}}  {_shown(value)}" for name, value in outcome.columns.items()]
    return "\n".join([f"{outcome.origin}:", *lines])


def _shown(value: Any) -> str:
    if isinstance(value, list):
        value = " ".join(value)
    text = " ".join(str(value).split())
    if len(text) > MAX_SHOWN_CHARACTERS:
        text = f"{text[:MAX_SHOWN_CHARACTERS]} …"
    return text
