"""The common base of tasks with a fixed set of labels."""

from __future__ import annotations

import sys
from abc import abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import TYPE_CHECKING, Any, ClassVar, Self

from transformers.configuration_utils import PreTrainedConfig

from ..baseline.join import Join
from ..data.reader import Reader
from ..errors import InputError
from ..measuring.metrics import Metrics
from ..measuring.report import Outcome, report_of_labels
from ..options.tasks import LabelArguments
from .base import AnsweringRecipe
from .loaded_model import LoadedModel

if TYPE_CHECKING:
    from datasets import Dataset, DatasetDict

MAX_SHOWN_LABELS = 20


class LabelReader(Reader):
    """Reads rows with labels.

    Attributes:
        names_column: The column of the rows that contains a list of labels.
    """

    names_column: ClassVar[str] = "labels"

    def needed_for_training(self, train: Dataset, held_out: Dataset) -> list[int]:
        if self.names_column not in train.column_names:
            # The rows have numbers instead of labels.
            return []
        known = set(chain.from_iterable(train[self.names_column]))
        needed = []
        for number, names in enumerate(held_out[self.names_column]):
            if not known.issuperset(names):
                known.update(names)
                needed.append(number)
        return needed


@dataclass(frozen=True)
class LabelRecipe(AnsweringRecipe):
    """A task whose model has a head for the labels of the training data. A baseline may join its
    answer. The configuration of the model stores the order of the labels.

    Attributes:
        label_word: The word for a label in messages.
        labelled: The word for the items that have a label.
        outside: The label of items outside all entities, such as `O`, if the task has one.

    Args:
        labels: The labels and their numbers.
    """

    has_labels = True
    new_model = {"num_hidden_layers": 2, "hidden_dropout": 0.3}
    label_word: ClassVar[str]
    labelled: ClassVar[str] = "rows"
    outside: ClassVar[str | None] = None

    options: LabelArguments
    labels: dict[str, int] = field(default_factory=dict)

    # The labels of the data.

    @classmethod
    def numbered(cls, labels: Iterable[str]) -> dict[str, int]:
        """The labels of the training data with their numbers.

        Raises:
            InputError: if there are fewer than two.
        """
        numbers = {label: number for number, label in enumerate(labels)}
        if len(numbers) < 2:
            only = ", ".join(numbers)
            raise InputError(
                f"the training data have a single {cls.label_word}, {only}: there is nothing to "
                f"learn; choose another column with --{cls.label_word}_column"
            )
        return numbers

    @classmethod
    def check_labels(cls, labels: Iterable[str], separator: str | None) -> None:
        """Reject labels that would be ambiguous in the output of `predict`.

        Args:
            labels: The labels of the training data.
            separator: The text between several labels of a row, if a row may have several.

        Raises:
            InputError: with the label and the reason.
        """
        for label in labels:
            if "\t" in label or label.splitlines() != [label]:
                raise InputError(
                    f"the {cls.label_word} {label!r} contains a tab or a line break, which ends a "
                    "label in the output of `predict`; rename it"
                )
            if separator is not None and separator in label:
                remedy = "rename it"
                if hasattr(cls.options_class, "label_separator"):
                    remedy = "choose another separator with --label_separator"
                raise InputError(
                    f"the {cls.label_word} {label!r} contains {separator!r}, which separates "
                    f"{cls.label_word}s in the output of `predict`; {remedy}"
                )

    def report_unseen_labels(self, rows: DatasetDict) -> Self:
        """Print a sentence on the unseen labels of each split.

        Returns:
            This task.
        """
        for split, own_rows in rows.items():
            if split != "train":
                for note in self.notes_on(split, own_rows):
                    print(note, file=sys.stderr)
        return self

    @abstractmethod
    def labels_of_items(self, rows: Dataset) -> Iterable[Sequence[str]]:
        """The labels of each labelled item: of each row, or of each token."""

    def notes_on(self, split: str, rows: Dataset, outcomes: Sequence[Outcome] = ()) -> list[str]:
        """A sentence on the items of a split that have an unseen label: one that the training data
        lack, so that the model cannot predict it.

        Raises:
            InputError: if all labels are unseen, for example because the wrong column was given.
        """
        items = list(self.labels_of_items(rows))
        found = set(chain.from_iterable(items))
        unseen = sorted(found.difference(self.labels))
        if not unseen:
            return []
        if not found.difference(unseen, {self.outside}):
            raise InputError(
                f"the {self.label_word}s {shown(unseen)} are all unknown to the model, which has: "
                f"{shown(self.labels)}; choose their column with --{self.label_word}_column"
            )
        num_items = sum(not self.labels.keys() >= set(labels) for labels in items)
        plural = "" if len(unseen) == 1 else "s"
        return [
            f"{num_items:,} of the {self.labelled} of the {split} data have {len(unseen):,} "
            f"{self.label_word}{plural} that the training data lack ({shown(unseen)}): they count "
            "as missed."
        ]

    def with_unseen_labels(self, rows: Iterable[Iterable[str]]) -> list[str]:
        """The labels in the order of their numbers, followed by the labels that only these rows
        have."""
        return [*self.labels, *sorted(set(chain.from_iterable(rows)) - set(self.labels))]

    # The model, and its training.

    def config_labels(self) -> list[str]:
        """The labels in the configuration of the model, in the order of their numbers."""
        return list(self.labels)

    def config_fields(self) -> dict[str, Any]:
        id2label = dict(enumerate(self.config_labels()))
        label2id = {label: number for number, label in id2label.items()}
        return {"id2label": id2label, "label2id": label2id}

    def in_order_of(self, config: PreTrainedConfig) -> Self:
        theirs = labels_of(config)
        if set(theirs) == set(self.labels):
            return replace(self, labels=self.numbered(theirs))
        return self

    def why_new_head(self, config: PreTrainedConfig) -> str:
        theirs = labels_of(config)
        ours = self.config_labels()
        why = self.why_no_head(config)
        if not why and set(theirs) != set(ours):
            why = (
                f"its {self.label_word}s are {shown(theirs)}, but those of the training data are "
                f"{shown(ours)}"
            )
        return why

    # Choosing a checkpoint.

    @property
    def metric_for_best_model(self) -> str:
        return self.main_metric

    # Answering.

    @abstractmethod
    def choose_join(
        self,
        saved: LoadedModel,
        baseline: Any,
        rows: Dataset | None,
        batch_size: int,
    ) -> Join:
        """Choose the weight of a saved encoder and a baseline.

        Args:
            saved: The model, whose answer is that of its encoder alone.
            baseline: The baseline. It has not learned from the rows.
            rows: The validation data; None if there are none.
            batch_size: The number of rows in a batch.
        """

    # Measuring.

    def for_rows(self, saved: LoadedModel, rows: Dataset) -> Self:
        # Labels of a wrong column are reported before anything is predicted.
        self.notes_on("test", rows)
        return self

    def report(self, outcomes: Sequence[Outcome]) -> dict[str, Metrics]:
        true = list(chain.from_iterable(outcome.true for outcome in outcomes))
        predicted = list(chain.from_iterable(outcome.predicted for outcome in outcomes))
        found = {*true, *predicted}
        labels = [label for label in self.with_unseen_labels([true]) if label in found]
        return report_of_labels(true, predicted, labels)


def labels_of(config: PreTrainedConfig) -> list[str]:
    """The labels of a model, in the order of their numbers."""
    return [str(label) for _, label in sorted((config.id2label or {}).items())]


def shown(labels: Iterable[str]) -> str:
    labels = list(labels)
    more = " …" if len(labels) > MAX_SHOWN_LABELS else ""
    return ", ".join(labels[:MAX_SHOWN_LABELS]) + more
