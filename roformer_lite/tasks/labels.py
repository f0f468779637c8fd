"""What tasks with a fixed set of labels have in common."""

from __future__ import annotations

import sys
from abc import abstractmethod
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from transformers.configuration_utils import PreTrainedConfig

from ..errors import InputError
from ..evaluate.metrics import ByLabel
from .base import TaskData, TaskMetrics, TaskModel
from .task_arguments import TaskArguments

if TYPE_CHECKING:
    from datasets import Dataset, DatasetDict
    from transformers import EvalPrediction, Trainer

    from hf_roformer_lite.model.text_features import RoFormerLiteTextScores

    from ..evaluate.baselines import Baselines
    from ..text_scores.weights import Split
    from ..train.run import Run

_SHOWN = 20  # labels in a message


class LabelData(TaskData):
    """Data whose labels are those of the training data, in an order that the model's configuration
    keeps."""

    has_labels = True
    label_word: ClassVar[str]  # what messages call a label
    labelled: ClassVar[str] = "rows"  # what has one
    names_column: ClassVar[str] = "labels"  # of the rows, a list of labels in each
    outside: ClassVar[str | None] = None  # the label of what is nothing to be found

    def __init__(self, args: TaskArguments):
        super().__init__(args)
        self.labels: dict[str, int] = {}  # and their numbers
        # those that are only in rows to measure, and how many have them
        self.foreign: Counter[str] = Counter()

    def set_labels(self, labels: Iterable[str]) -> None:
        """Take the labels of the training data, in the order of their numbers.

        Raises:
            InputError: when there are fewer than two.
        """
        self.labels = {label: number for number, label in enumerate(labels)}
        if len(self.labels) < 2:
            only = ", ".join(self.labels)
            raise InputError(
                f"the training data have a single {self.label_word}, {only}: there is nothing to learn"
            )

    def needed_for_training(self, train: Dataset, held_out: Dataset) -> list[int]:
        if self.names_column not in train.column_names:  # numbers
            return []
        known, needed = set(chain.from_iterable(train[self.names_column])), []
        for number, names in enumerate(held_out[self.names_column]):
            if not known.issuperset(names):
                known.update(names)
                needed.append(number)
        return needed

    def note_foreign(self, rows: Iterable[Sequence[str]]) -> None:
        """Count what has labels that the training data lack, and report it in a line: these labels
        are missed. `rows` are the labels of each.

        Raises:
            InputError: when there is no label that can be found, as where the wrong column was
                given.
        """
        counts = Counter(chain.from_iterable(rows))
        new = Counter({label: count for label, count in counts.items() if label not in self.labels})
        if new and not counts.keys() - new.keys() - {self.outside}:
            raise InputError(
                f"the {self.label_word}s {_shown(sorted(new))} are all unknown to the model, which has: "
                f"{_shown(self.labels)}; --{self.label_word}_column names their column"
            )
        if new:
            self.foreign.update(new)
            print(self.foreign_sentence(new), file=sys.stderr)

    def foreign_sentence(self, counts: Counter[str]) -> str:
        """That labels, with their counts, are only in rows to measure."""
        what = f"{len(counts):,} {self.label_word}s that the training data lack ({_shown(counts)})"
        return f"{counts.total():,} of the {self.labelled} to measure have {what}: they count as missed."

    def with_foreign(self, rows: Iterable[Iterable[str]]) -> list[str]:
        """The labels in the order of their numbers, and after them those that only these rows
        have."""
        return [*self.labels, *sorted(set(chain.from_iterable(rows)) - set(self.labels))]

    def inspect_model(self, config: PreTrainedConfig, settings: dict[str, Any]) -> None:
        self.set_labels(labels_of(config))

    def config_labels(self) -> list[str]:
        """The labels that the configuration of the model names, in the order of their numbers."""
        return list(self.labels)


class LabelModel(TaskModel):
    """A model with a head for labels and, where that helps, scores of the text beside the
    encoder."""

    new_model = {"num_hidden_layers": 2, "hidden_dropout": 0.3}
    data: LabelData
    # of the encoder and of the scores of the text, where these were added
    text_weights: tuple[float, ...] = ()

    def config_fields(self) -> dict[str, Any]:
        id2label = dict(enumerate(self.data.config_labels()))
        return {
            "id2label": id2label,
            "label2id": {label: number for number, label in id2label.items()},
        }

    def why_new_head(self, config: PreTrainedConfig) -> str:
        theirs, ours = labels_of(config), self.data.config_labels()
        why = self.has_no_head(config)
        if not why and set(theirs) != set(ours):
            why = f"its {self.data.label_word}s are {_shown(theirs)}, those of the training data {_shown(ours)}"
        if not why and self.data.labels:
            self.data.set_labels(theirs)
        return why

    def prepare_head(self, trainer: Trainer, train: Dataset) -> bool:
        if not (self.has_new_head and self.data.args.fit_head):
            return False
        if trainer.is_fsdp_enabled:
            if trainer.is_world_process_zero():
                print("with FSDP the new head begins with random numbers", file=sys.stderr)
            return False
        from ..head import fit_head

        return fit_head(trainer, train)

    def complete(
        self,
        run: Run,
        trainer: Trainer,
        rows: DatasetDict,
        encoded: DatasetDict,
        metrics: LabelMetrics,
    ) -> Baselines:
        from ..text_scores.token_bytes import token_bytes
        from ..text_scores.weights import add_fitted_scores

        wanted, is_new = self.data.args.text_scores, run.model.model_name_or_path is None
        if wanted is None:
            wanted = is_new
        tokens, can_weigh = token_bytes(self.data.tokenizer), "validation" in encoded
        if tokens is None or not wanted or trainer.is_fsdp_enabled:
            return {}
        if not can_weigh and trainer.is_world_process_zero():
            alone = (
                "the linear model or CRF on the text answers alone"
                if is_new
                else "the encoder answers alone"
            )
            print(
                f"There are no validation data to weigh the encoder by: {alone} (--validation_fraction holds rows "
                "out; --text_scores false takes the encoder alone)",
                file=sys.stderr,
            )
        if not (can_weigh or is_new):
            return {}
        scores = self.fit_text_scores(tokens, encoded["train"], trainer.model.config)
        measured = [split for split in ("validation", "test") if split in encoded]
        splits = {
            split: metrics.split_of(trainer, scores, rows[split], encoded[split])
            for split in measured
        }
        parts, self.text_weights = add_fitted_scores(trainer.model, scores, splits, metrics.main)
        return parts

    @abstractmethod
    def fit_text_scores(
        self, tokens: torch.Tensor, train: Dataset, config: PreTrainedConfig
    ) -> RoFormerLiteTextScores:
        """Scores of the text, fitted to the encoded training data; `tokens` are the tokenizer's
        `token_bytes`."""


class LabelMetrics(TaskMetrics):
    """Metrics of answers that are labels."""

    data: LabelData

    @property
    def for_best_model(self) -> str:
        return self.main

    def by_label(self, prediction: EvalPrediction, rows: Dataset) -> ByLabel:
        report = self.report(self.outcomes(prediction, rows, rows))
        return {} if report is None else report.scores

    @abstractmethod
    def split_of(
        self, trainer: Trainer, scores: RoFormerLiteTextScores, rows: Dataset, encoded: Dataset
    ) -> Split:
        """What the trained encoder and the scores of the text say about a split."""


def labels_of(config: PreTrainedConfig) -> list[str]:
    """The labels of a model, in the order of their numbers."""
    return [str(config.id2label[number]) for number in sorted(config.id2label)]


def _shown(labels: Iterable[str]) -> str:
    labels = list(labels)
    return ", ".join(labels[:_SHOWN]) + (" …" if len(labels) > _SHOWN else "")
