"""What an evaluation tells besides its metrics: scores by label, what is confused with what, and the worst answers."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from ..tasks.answers import Outcome
from ..tasks.base import Task
from ..tasks.classify import MULTI, SINGLE, ClassifyTask
from ..tasks.tag import TagTask

_PAIRS = 10  # of labels that are confused
_LONGEST = 300  # characters of a value in an example

Scores = dict[str, dict[str, float]]


@dataclass
class LabelReport:
    """How well each label is found.

    Args:
        text: Precision, recall, F1 and number of occurrences of each label, and their means, as a table.
        scores: The same by label, as numbers.
        true, predicted: The labels, one for each decision. Empty where a decision is not between single labels.
    """

    text: str
    scores: Scores
    true: list[str] = field(default_factory=list)
    predicted: list[str] = field(default_factory=list)


def label_report(task: Task, outcomes: Sequence[Outcome]) -> LabelReport | None:
    """The scores by label: of classes, or of types of entities or tags. None for tasks without labels."""
    true, predicted = [outcome.true for outcome in outcomes], [outcome.predicted for outcome in outcomes]
    if isinstance(task, TagTask) and task.has_entities:
        from seqeval.metrics import classification_report

        return _report(classification_report, true, predicted)
    if isinstance(task, TagTask) or (isinstance(task, ClassifyTask) and task.problem_type == SINGLE):
        from sklearn.metrics import classification_report

        flat = [list(chain.from_iterable(labels)) for labels in (true, predicted)]
        there = [label for label in task.labels if label in {*flat[0], *flat[1]}]
        report = _report(classification_report, *flat, labels=there)
        return LabelReport(report.text, report.scores, *flat)
    if isinstance(task, ClassifyTask) and task.problem_type == MULTI:
        from sklearn.metrics import classification_report
        from sklearn.preprocessing import MultiLabelBinarizer

        binary = MultiLabelBinarizer(classes=list(task.labels)).fit(true)
        rows = [binary.transform(labels) for labels in (true, predicted)]
        return _report(classification_report, *rows, target_names=list(task.labels))
    return None


def _report(classification_report: Any, true: Any, predicted: Any, **options: Any) -> LabelReport:
    text = classification_report(true, predicted, digits=4, zero_division=0, **options)
    scores = classification_report(true, predicted, output_dict=True, zero_division=0, **options)
    means = ("accuracy", "micro avg", "macro avg", "weighted avg", "samples avg")
    numbers = {
        label: {name: float(value) for name, value in row.items()}
        for label, row in scores.items()
        if label not in means
    }
    return LabelReport(text, numbers)


def confused_pairs(report: LabelReport) -> list[str]:
    """The labels that are confused most often, a line for each pair."""
    pairs = zip(report.true, report.predicted, strict=True)
    counts = Counter((true, predicted) for true, predicted in pairs if true != predicted)
    return [f"{count:6,}  {true} -> {predicted}" for (true, predicted), count in counts.most_common(_PAIRS)]


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
    text = " ".join((" ".join(value) if isinstance(value, list) else str(value)).split())
    return text if len(text) <= _LONGEST else text[:_LONGEST] + " …"
