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

from hf_roformer_lite.model.heads_roformer_lite import RoFormerLiteClassificationModel

from ..errors import InputError
from ..evaluate.baselines import Baselines
from ..head import fit_head
from ..task_options import LabelArguments
from ..text_scores.token_bytes import find_misread, token_bytes
from ..text_scores.weights import Split, add_fitted_scores
from .base import AnsweringRecipe, quoted

if TYPE_CHECKING:
    from datasets import Dataset, DatasetDict
    from transformers import PreTrainedModel, Trainer, TrainingArguments

    from hf_roformer_lite.model.ngram_scores import RoFormerLiteTextScores

    from ..run import Run

MAX_SHOWN_LABELS = 20
MAX_SHOWN_TEXT = 40  # Characters.


class LabelRecipe(AnsweringRecipe):
    """A model with a head for the labels of the training data, in an order that its configuration
    keeps, and, where that helps, scores of the text."""

    options: LabelArguments
    has_labels = True
    new_model = {"num_hidden_layers": 2, "hidden_dropout": 0.3}
    # What messages call a label and what has one, the column of the rows that has a list of labels,
    # and the label of what is nothing to be found.
    label_word: ClassVar[str]
    labelled: ClassVar[str] = "rows"
    names_column: ClassVar[str] = "labels"
    outside: ClassVar[str | None] = None
    # What the scores of the text are called.
    text_part: ClassVar[str]

    def __init__(self, options: LabelArguments):
        super().__init__(options)
        # The labels and their numbers; and those that are only in rows to measure, with the number
        # of rows that have them.
        self.labels: dict[str, int] = {}
        self.unseen_labels: Counter[str] = Counter()
        # The weights of the encoder and of the scores of the text, where these were added, and
        # whether the latter have learned the validation rows, too.
        self.text_weights: tuple[float, ...] = ()
        self.has_learned_validation_rows = False
        # The text of each token, where a model can read the words of the texts from it.
        self.token_bytes: torch.Tensor | None = None

    def set_labels(self, labels: Iterable[str]) -> None:
        """Take the labels of the training data, in the order of their numbers.

        Raises:
            InputError: when there are fewer than two.
        """
        self.labels = {label: number for number, label in enumerate(labels)}
        if len(self.labels) < 2:
            only = ", ".join(self.labels)
            raise InputError(
                f"the training data have a single {self.label_word}, {only}: there is nothing to "
                f"learn; --{self.label_word}_column names another column"
            )

    def check_labels(self, labels: Iterable[str], separator: str | None) -> None:
        """Refuse labels that could not be told apart in what `predict` writes.

        Args:
            labels: Of the training data.
            separator: What stands between several labels of one text, if it may have several.

        Raises:
            InputError: naming the label and what is wrong with it.
        """
        for label in labels:
            if "\t" in label or label.splitlines() != [label]:
                raise InputError(
                    f"the {self.label_word} {label!r} holds a tab or a line break, which end an "
                    "answer of `predict`; give it another name"
                )
            if separator is not None and separator in label:
                raise InputError(
                    f"the {self.label_word} {label!r} holds {separator!r}, which stands between "
                    "several labels in the answers of `predict`; name another text by "
                    "--label_separator"
                )

    def inspect_model(self, config: PreTrainedConfig, settings: dict[str, Any]) -> None:
        self.set_labels(labels_of(config))

    def needed_for_training(self, train: Dataset, held_out: Dataset) -> list[int]:
        if self.names_column not in train.column_names:  # Numbers have no labels.
            return []
        known = set(chain.from_iterable(train[self.names_column]))
        needed = []
        for number, names in enumerate(held_out[self.names_column]):
            if not known.issuperset(names):
                known.update(names)
                needed.append(number)
        return needed

    def find_unseen_labels(self, rows: Iterable[Sequence[str]]) -> Counter[str]:
        """The labels that the training data lack, with the number of times that they occur in
        `rows`, the labels of each row. They are missed.

        Raises:
            InputError: when there is no label that can be found, as where the wrong column was
                given.
        """
        counts = Counter(chain.from_iterable(rows))
        new = Counter({label: count for label, count in counts.items() if label not in self.labels})
        if new and not counts.keys() - new.keys() - {self.outside}:
            raise InputError(
                f"the {self.label_word}s {shown(sorted(new))} are all unknown to the model, which "
                f"has: {shown(self.labels)}; --{self.label_word}_column names their column"
            )
        return new

    def note_unseen_labels(self, rows: Iterable[Sequence[str]]) -> None:
        """Note and report the labels that the training data lack."""
        new = self.find_unseen_labels(rows)
        self.unseen_labels.update(new)
        if new:
            print(self.unseen_labels_sentence(new), file=sys.stderr)

    def unseen_labels_sentence(self, counts: Counter[str]) -> str:
        """That labels, with their counts, are only in rows to measure."""
        return (
            f"{counts.total():,} of the {self.labelled} to measure have {len(counts):,} "
            f"{self.label_word}s that the training data lack ({shown(counts)}): they count as "
            "missed."
        )

    def with_unseen_labels(self, rows: Iterable[Iterable[str]]) -> list[str]:
        """The labels in the order of their numbers, and after them those that only these rows
        have."""
        return [*self.labels, *sorted(set(chain.from_iterable(rows)) - set(self.labels))]

    def config_labels(self) -> list[str]:
        """The labels that the configuration of the model names, in the order of their numbers."""
        return list(self.labels)

    def config_fields(self) -> dict[str, Any]:
        id2label = dict(enumerate(self.config_labels()))
        label2id = {label: number for number, label in id2label.items()}
        return {"id2label": id2label, "label2id": label2id}

    def why_new_head(self, config: PreTrainedConfig) -> str:
        theirs = labels_of(config)
        ours = self.config_labels()
        why = self.has_no_head(config)
        if not why and set(theirs) != set(ours):
            why = (
                f"its {self.label_word}s are {shown(theirs)}, those of the training data "
                f"{shown(ours)}"
            )
        if not why and self.labels:
            self.set_labels(theirs)
        return why

    def trainer_parts(
        self,
        run: Run,
        args: TrainingArguments,
        model: PreTrainedModel,
        rows: DatasetDict,
        encoded: DatasetDict,
    ) -> dict[str, Any]:
        if isinstance(model, RoFormerLiteClassificationModel):
            should_report = args.should_save and self.wants_text_scores(run)
            self.token_bytes = self.readable_tokens(rows["train"], should_report)
        return super().trainer_parts(run, args, model, rows, encoded)

    def readable_tokens(self, rows: Dataset, should_report: bool) -> torch.Tensor | None:
        """The text of each token; None, with a report, where the words of the training data cannot
        be read from it.

        Raises:
            InputError: in this case, when scores of the text are asked for.
        """
        tokens = token_bytes(self.tokenizer)
        why = "it does not show the text of its tokens"
        if tokens is not None:
            tokens = self.adapt_token_bytes(tokens)
            misread = find_misread(self.tokenizer, tokens, self.texts(rows))
            if misread is None:
                return tokens
            why = f"its tokens do not spell texts such as {quoted(misread[:MAX_SHOWN_TEXT])}"
        if self.options.text_scores:
            raise InputError(
                f"--text_scores: the tokenizer does not fit the {self.text_part}: {why}; leave the "
                "option out"
            )
        if should_report:
            print(
                f"The tokenizer does not fit the {self.text_part}, and the encoder answers alone "
                f"(--text_scores false): {why}",
                file=sys.stderr,
            )
        return None

    def adapt_token_bytes(self, tokens: torch.Tensor) -> torch.Tensor:
        """The `token_bytes` of the tokenizer with what the task knows about its texts."""
        return tokens

    def prepare_head(self, trainer: Trainer, train: Dataset) -> bool:
        if not (self.has_new_head and self.options.fit_head):
            return False
        if trainer.is_fsdp_enabled:
            if trainer.is_world_process_zero():
                print("with FSDP the new head begins with random numbers", file=sys.stderr)
            return False
        return fit_head(trainer, train)

    def wants_text_scores(self, run: Run) -> bool:
        """Whether scores of the text are asked for, which new models have by default."""
        if self.options.text_scores is None:
            return run.model.model_name_or_path is None
        return self.options.text_scores

    def complete(
        self, run: Run, trainer: Trainer, rows: DatasetDict, encoded: DatasetDict
    ) -> Baselines:
        is_new = run.model.model_name_or_path is None
        is_wanted = self.wants_text_scores(run)
        if self.token_bytes is None or not is_wanted or trainer.is_fsdp_enabled:
            return {}
        can_weigh = "validation" in encoded
        if not can_weigh and trainer.is_world_process_zero():
            print(self.sentence_on_weights(is_new), file=sys.stderr)
        if not (can_weigh or is_new):
            return {}
        scores = self.fit_text_scores(
            encoded["train"], trainer.model.config, calibrates=not can_weigh
        )
        splits = {
            split: self.split_of(trainer, scores, rows[split], encoded[split])
            for split in ("validation", "test")
            if split in encoded
        }
        parts, self.text_weights = add_fitted_scores(
            trainer.model, scores, splits, self.main_metric
        )
        return parts

    def sentence_on_weights(self, is_new: bool) -> str:
        """That there are no validation data by which encoder and scores could be weighed."""
        alone = "the encoder answers alone"
        if is_new:
            alone = "the linear model or CRF on the text answers alone"
        return (
            f"There are no validation data to weigh the encoder by: {alone} "
            "(--validation_fraction holds rows out; --text_scores false takes the encoder alone)"
        )

    @abstractmethod
    def fit_text_scores(
        self, train: Dataset, config: PreTrainedConfig, calibrates: bool
    ) -> RoFormerLiteTextScores:
        """Scores of the text, fitted to the encoded training data. `calibrates` is whether they
        answer alone, so that their softmax must be a probability."""

    @abstractmethod
    def split_of(
        self, trainer: Trainer, scores: RoFormerLiteTextScores, rows: Dataset, encoded: Dataset
    ) -> Split:
        """What the trained encoder and the scores of the text say about a split."""

    @property
    def metric_for_best_model(self) -> str:
        return self.main_metric

    def notes(self) -> list[str]:
        notes = super().notes()
        if self.unseen_labels:
            notes.append(self.unseen_labels_sentence(self.unseen_labels))
        if self.has_learned_validation_rows:
            notes.append(
                f"After the validation metrics were measured, the {self.text_part} was fitted "
                "again, to the training and the validation rows together."
            )
        return notes

    def notes_on_parts(self) -> list[str]:
        if self.text_weights and self.text_weights[0] == 0:
            return [f"The {self.text_part} alone answers: the encoder has no part in the answers."]
        return []


def labels_of(config: PreTrainedConfig) -> list[str]:
    """The labels of a model, in the order of their numbers."""
    return [str(config.id2label[number]) for number in sorted(config.id2label)]


def shown(labels: Iterable[str]) -> str:
    labels = list(labels)
    more = " …" if len(labels) > MAX_SHOWN_LABELS else ""
    return ", ".join(labels[:MAX_SHOWN_LABELS]) + more
