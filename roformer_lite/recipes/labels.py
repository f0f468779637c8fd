"""The common base of tasks with a fixed set of labels."""

from __future__ import annotations

import sys
from abc import abstractmethod
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from transformers.configuration_utils import PreTrainedConfig

from hf_roformer_lite.model.heads_roformer_lite import RoFormerLiteClassificationModel

from ..errors import InputError
from ..evaluate.baselines import Baselines
from ..head import fit_head
from ..options.tasks import LabelArguments
from ..text_scores.token_bytes import find_misread, token_bytes
from ..text_scores.weights import Split, add_fitted_scores
from .base import AnsweringRecipe, Measured, quoted

if TYPE_CHECKING:
    from datasets import Dataset, DatasetDict
    from transformers import PreTrainedModel, Trainer, TrainingArguments

    from hf_roformer_lite.model.ngram_scores import RoFormerLiteTextScores

    from ..answers import SavedModel
    from ..run import Run

MAX_SHOWN_LABELS = 20
MAX_SHOWN_CHARACTERS = 40


class LabelRecipe(AnsweringRecipe):
    """A task whose model has a head for the labels of the training data, and scores of the text if
    these help. The configuration of the model stores the order of the labels.

    Attributes:
        label_word: The word for a label in messages.
        labelled: The word for the items that have a label.
        names_column: The column of the rows that contains a list of labels.
        outside: The label of items outside all entities, such as `O`, if the task has one.
        text_part: The name of the scores of the text in messages.
    """

    options: LabelArguments
    has_labels = True
    new_model = {"num_hidden_layers": 2, "hidden_dropout": 0.3}
    label_word: ClassVar[str]
    labelled: ClassVar[str] = "rows"
    names_column: ClassVar[str] = "labels"
    outside: ClassVar[str | None] = None
    text_part: ClassVar[str]

    def __init__(self, options: LabelArguments):
        super().__init__(options)
        # The labels and their numbers.
        self.labels: dict[str, int] = {}
        # The labels of each evaluated item that has an unseen label.
        self.unseen_items: list[Sequence[str]] = []
        # The weights of the encoder and of the scores of the text, if these were added.
        self.text_weights: tuple[float, ...] = ()
        # Whether the scores of the text were also fitted to the validation rows.
        self.has_learned_validation_rows = False
        # The text of each token, if the words of the texts can be read from it.
        self.token_bytes: torch.Tensor | None = None

    # Reading the data.

    def set_labels(self, labels: Iterable[str]) -> None:
        """Set the labels of the training data, in the order of their numbers.

        Raises:
            InputError: if there are fewer than two.
        """
        self.labels = {label: number for number, label in enumerate(labels)}
        if len(self.labels) < 2:
            only = ", ".join(self.labels)
            raise InputError(
                f"the training data have a single {self.label_word}, {only}: there is nothing to "
                f"learn; choose another column with --{self.label_word}_column"
            )

    def check_labels(self, labels: Iterable[str], separator: str | None) -> None:
        """Refuse labels that would be ambiguous in the output of `predict`.

        Args:
            labels: The labels of the training data.
            separator: The text between several labels of a row, if a row may have several.

        Raises:
            InputError: with the label and the reason.
        """
        for label in labels:
            if "\t" in label or label.splitlines() != [label]:
                raise InputError(
                    f"the {self.label_word} {label!r} contains a tab or a line break, which end a "
                    "label in the output of `predict`; rename it"
                )
            if separator is not None and separator in label:
                remedy = "rename it"
                if hasattr(self.options, "label_separator"):
                    remedy = "choose another separator with --label_separator"
                raise InputError(
                    f"the {self.label_word} {label!r} contains {separator!r}, which separates "
                    f"{self.label_word}s in the output of `predict`; {remedy}"
                )

    def inspect_model(self, config: PreTrainedConfig, settings: dict[str, Any]) -> None:
        self.set_labels(labels_of(config))

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

    @abstractmethod
    def labels_of_items(self, rows: Dataset) -> Iterable[Sequence[str]]:
        """The labels of each labelled item: of each row, or of each token."""

    def find_unseen_items(self, rows: Dataset) -> list[Sequence[str]]:
        """The labels of each item that has an unseen label: one that the training data lack, so
        that the model cannot predict it.

        Raises:
            InputError: if all labels are unseen, for example because the wrong column was given.
        """
        items = list(self.labels_of_items(rows))
        found = set(chain.from_iterable(items))
        unseen = found.difference(self.labels)
        if unseen and not found - unseen - {self.outside}:
            raise InputError(
                f"the {self.label_word}s {shown(sorted(unseen))} are all unknown to the model, which "
                f"has: {shown(self.labels)}; choose their column with "
                f"--{self.label_word}_column"
            )
        return [labels for labels in items if not unseen.isdisjoint(labels)]

    def unseen_items_sentence(self, items: Sequence[Sequence[str]]) -> str:
        """A sentence on the result of `find_unseen_items`."""
        unseen = sorted(set(chain.from_iterable(items)).difference(self.labels))
        return (
            f"{len(items):,} of the {self.labelled} to measure have {len(unseen):,} "
            f"{self.label_word}s that the training data lack ({shown(unseen)}): they count as "
            "missed."
        )

    def with_unseen_labels(self, rows: Iterable[Iterable[str]]) -> list[str]:
        """The labels in the order of their numbers, followed by the labels that only these rows
        have."""
        return [*self.labels, *sorted(set(chain.from_iterable(rows)) - set(self.labels))]

    # Encoding.

    def encode(self, rows: Dataset, training: bool) -> Dataset:
        """Besides encoding the rows, count and report the unseen labels."""
        if not training:
            unseen = self.find_unseen_items(rows)
            self.unseen_items += unseen
            if unseen:
                print(self.unseen_items_sentence(unseen), file=sys.stderr)
        return super().encode(rows, training)

    # The model, and its training.

    def config_labels(self) -> list[str]:
        """The labels in the configuration of the model, in the order of their numbers."""
        return list(self.labels)

    def config_fields(self) -> dict[str, Any]:
        id2label = dict(enumerate(self.config_labels()))
        label2id = {label: number for number, label in id2label.items()}
        return {"id2label": id2label, "label2id": label2id}

    def why_new_head(self, config: PreTrainedConfig) -> str:
        theirs = labels_of(config)
        ours = self.config_labels()
        why = self.why_no_head(config)
        if not why and set(theirs) != set(ours):
            why = (
                f"its {self.label_word}s are {shown(theirs)}, but those of the training data are "
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
        """The text of each token. If the words of the training data cannot be read from it, this is
        reported, and the result is None.

        Raises:
            InputError: if scores of the text were requested, but the words cannot be read.
        """
        tokens = token_bytes(self.tokenizer)
        why = "it does not show the text of its tokens"
        if tokens is not None:
            tokens = self.adapt_token_bytes(tokens)
            misread = find_misread(self.tokenizer, tokens, self.texts(rows))
            if misread is None:
                return tokens
            why = f"its tokens do not spell texts such as {quoted(misread[:MAX_SHOWN_CHARACTERS])}"
        if self.options.linear_model:
            raise InputError(
                f"--linear_model: the tokenizer does not fit the {self.text_part}: {why}; leave the "
                "option out"
            )
        if should_report:
            print(
                f"The tokenizer does not fit the {self.text_part}, so only the encoder is used "
                f"(--linear_model false): {why}",
                file=sys.stderr,
            )
        return None

    def adapt_token_bytes(self, tokens: torch.Tensor) -> torch.Tensor:
        """Adapt the `token_bytes` of the tokenizer to the texts of the task."""
        return tokens

    def prepare_head(self, trainer: Trainer, train: Dataset) -> bool:
        if not (self.has_new_head and self.options.fit_head):
            return False
        if trainer.is_fsdp_enabled:
            if trainer.is_world_process_zero():
                print("with FSDP the new head keeps its random weights", file=sys.stderr)
            return False
        return fit_head(trainer, train)

    def wants_text_scores(self, run: Run) -> bool:
        """Whether to fit scores of the text, which is the default for new models."""
        if self.options.linear_model is None:
            return run.model.model_name_or_path is None
        return self.options.linear_model

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
        """A sentence on the consequence of having no validation data for weighting encoder and
        scores."""
        used = "only the encoder is used"
        if is_new:
            used = "only the linear model or CRF on the text is used"
        return (
            f"There are no validation data for weighting the encoder: {used} "
            "(--validation_fraction holds rows out; --linear_model false uses only the encoder)"
        )

    @abstractmethod
    def fit_text_scores(
        self, train: Dataset, config: PreTrainedConfig, calibrates: bool
    ) -> RoFormerLiteTextScores:
        """Fit scores of the text to the encoded training data. If `calibrates` is true, they will
        be used without the encoder, so their softmax must be a calibrated probability."""

    @abstractmethod
    def split_of(
        self, trainer: Trainer, scores: RoFormerLiteTextScores, rows: Dataset, encoded: Dataset
    ) -> Split:
        """The logits of the trained encoder and the scores of the text for a split."""

    # Choosing a checkpoint.

    @property
    def metric_for_best_model(self) -> str:
        return self.main_metric

    # Measuring.

    def evaluate(self, saved: SavedModel, rows: Dataset, batch_size: int, seed: int) -> Measured:
        # Labels of a wrong column are refused before anything is predicted.
        self.unseen_items = self.find_unseen_items(rows)
        return super().evaluate(saved, rows, batch_size, seed)

    # What the card shows.

    def notes(self) -> list[str]:
        notes = super().notes()
        if self.unseen_items:
            notes.append(self.unseen_items_sentence(self.unseen_items))
        if self.has_learned_validation_rows:
            notes.append(
                f"After the validation metrics were measured, the {self.text_part} was fitted "
                "again, to the training and the validation rows together."
            )
        return notes

    def notes_on_parts(self) -> list[str]:
        if self.text_weights and self.text_weights[0] == 0:
            return [f"Only the {self.text_part} is used: the encoder does not affect predictions."]
        return []


def labels_of(config: PreTrainedConfig) -> list[str]:
    """The labels of a model, in the order of their numbers."""
    return [str(label) for _, label in sorted(config.id2label.items())]


def shown(labels: Iterable[str]) -> str:
    labels = list(labels)
    more = " …" if len(labels) > MAX_SHOWN_LABELS else ""
    return ", ".join(labels[:MAX_SHOWN_LABELS]) + more
