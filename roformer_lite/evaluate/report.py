"""What a model answered to labelled data, and the reports of it: scores by label, confusions, the
worst answers."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .metrics import STRICT_SCHEMES, ByLabel, metrics_by_entity, metrics_by_label

MAX_CONFUSED_PAIRS = 10
MAX_SHOWN_CHARACTERS = 300  # This many of a value in an example.


@dataclass
class Outcome:
    """What a model answered to one labelled row, or to one block of the text of a language model.

    Args:
        origin: Where the row comes from, as `file:line`.
        columns: Inputs, what is right and what was answered, for a table.
        mistake: 0 where the answer is right, and larger the worse it is, to find the worst ones.
        true, predicted: The labels of a row, or the tags of a sentence. Empty for tasks without
            labels.
        score: The probability that the model gives its answer, where it gives one.
    """

    origin: str
    columns: dict[str, Any]
    mistake: float
    true: list[str] = field(default_factory=list)
    predicted: list[str] = field(default_factory=list)
    score: float | None = None

    @property
    def is_right(self) -> bool:
        return self.mistake == 0


@dataclass
class LabelReport:
    """How well each label is found.

    Args:
        text: The report of scikit-learn or seqeval: precision, recall, F1 and support of each
            label, and their means.
        scores: The same by label, as numbers.
        true, predicted: The labels, one for each decision. Empty where a decision is not between
            single labels.
    """

    text: str
    scores: ByLabel
    true: list[str] = field(default_factory=list)
    predicted: list[str] = field(default_factory=list)


def report_of_classes(true: list[str], predicted: list[str], labels: Sequence[str]) -> LabelReport:
    """The report of decisions between `labels`; those that occur on neither side are left out."""
    from sklearn.metrics import classification_report

    found = {*true, *predicted}
    there = [label for label in labels if label in found]
    text = classification_report(true, predicted, labels=there, digits=4, zero_division=0)
    numbers = {label: number for number, label in enumerate(there)}
    ours = np.array([numbers[label] for label in predicted])
    theirs = np.array([numbers[label] for label in true])
    return LabelReport(text, metrics_by_label(ours, theirs, there), true, predicted)


def report_of_sets(
    true: list[list[str]], predicted: list[list[str]], labels: Sequence[str]
) -> LabelReport:
    """The report of rows with any number of `labels` each."""
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
    """The report of whole entities by their types; None where there is no entity."""
    from seqeval import scheme as schemes
    from seqeval.metrics import classification_report

    scores = metrics_by_entity(predicted, true, scheme)
    if not scores:
        return None
    options: dict[str, Any] = {}
    if scheme in STRICT_SCHEMES:
        options = {"mode": "strict", "scheme": getattr(schemes, scheme)}
    text = classification_report(true, predicted, digits=4, zero_division=0, **options)
    return LabelReport(text, scores)


def confused_pairs(report: LabelReport) -> list[str]:
    """The labels that are confused most often, a line for each pair."""
    pairs = zip(report.true, report.predicted, strict=True)
    counts = Counter((true, predicted) for true, predicted in pairs if true != predicted)
    return [
        f"{count:6,}  {true} -> {predicted}"
        for (true, predicted), count in counts.most_common(MAX_CONFUSED_PAIRS)
    ]


def worst(outcomes: Sequence[Outcome], number: int) -> list[Outcome]:
    """The answers that are most wrong, worst first."""
    wrong = [outcome for outcome in outcomes if outcome.mistake > 0]
    return sorted(wrong, key=lambda outcome: -outcome.mistake)[:number]


def example_text(outcome: Outcome) -> str:
    """A mistake as lines of text."""
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
