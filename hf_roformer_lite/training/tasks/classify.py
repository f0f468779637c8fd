"""The task classify: a text, or a pair of texts, gets a label, several labels, or a number."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from transformers import (
    AutoModelForSequenceClassification,
    DataCollatorWithPadding,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from ...errors import InputError
from ..data_files import Row, text_of, value_of
from ..metrics import (
    ByLabel,
    Metrics,
    classification_metrics,
    figures_by_label,
    multi_label_metrics,
    regression_metrics,
)
from ..task_arguments import ClassifyDataArguments
from .base import SavedModel, encode_lines, quoted
from .labels import LabelTask

if TYPE_CHECKING:
    from datasets import Dataset
    from transformers import EvalPrediction

SINGLE, MULTI, REGRESSION = "single_label_classification", "multi_label_classification", "regression"


class ClassifyTask(LabelTask):
    """A text, or a pair, gets a label, several, or a number."""

    name, summary = ClassifyDataArguments.task, ClassifyDataArguments.summary
    architecture = "ForSequenceClassification"
    auto_model = AutoModelForSequenceClassification
    pipeline_tag = "text-classification"
    label_word = "label"
    metric_names = ("accuracy", "macro_f1", "micro_f1", "pearson", "spearman", "mse")
    arguments = ClassifyDataArguments

    def __init__(self, args: ClassifyDataArguments):
        super().__init__(args)
        self.problem_type = args.problem_type or (MULTI if args.label_separator else None)

    def select_columns(self, row: Row) -> Row:
        raw = {"text": text_of(row, self.args.text_column), "origin": row["origin"]}
        if self.args.text_pair_column:
            raw["text_pair"] = text_of(row, self.args.text_pair_column)
        label = value_of(row, self.args.label_column)
        if self.problem_type is None:
            self.problem_type = MULTI if isinstance(label, list) else SINGLE
        if self.problem_type == REGRESSION:
            return {**raw, "number": self._number(label, row)}
        if isinstance(label, str) and self.args.label_separator and self.problem_type == MULTI:
            label = [part.strip() for part in label.split(self.args.label_separator) if part.strip()]
        names = label if isinstance(label, list) else [label]
        self.require(
            all(isinstance(name, (str, int)) for name in names),
            row,
            f"column {self.args.label_column!r} must be a label, not {label!r}",
        )
        names = [str(name).strip() for name in names]
        self.require(all(names), row, f"column {self.args.label_column!r} is empty")
        self.require(self.problem_type == MULTI or len(names) == 1, row, f"one label is needed, not {label!r}")
        return {**raw, "labels": names}

    def _number(self, label: Any, row: Row) -> float:
        try:
            number = float(label)
        except (TypeError, ValueError, OverflowError):
            number = math.nan
        self.require(
            abs(number) <= torch.finfo(torch.float32).max,  # false for NaN
            row,
            f"column {self.args.label_column!r} must be a number for regression, not {label!r}",
        )
        return number

    def is_empty(self, row: Row) -> bool:
        return not row["text"] or row.get("text_pair") == ""

    def inspect_training_data(self, rows: Dataset) -> None:
        if self.problem_type != REGRESSION:
            names = set(chain.from_iterable(rows["labels"]))
            self.set_labels(sorted(names, key=_numbers_first))

    def texts(self, rows: Iterable[Row]) -> Iterator[str]:
        for row in rows:
            yield row["text"]
            if "text_pair" in row:
                yield row["text_pair"]

    def config_labels(self) -> list[str]:
        return ["value"] if self.problem_type == REGRESSION else super().config_labels()

    def config_fields(self) -> dict[str, Any]:
        return {"problem_type": self.problem_type, **super().config_fields()}

    def prediction_settings(self) -> dict[str, Any]:
        return {"pairs": self.args.text_pair_column is not None, "label_separator": self.args.label_separator or ","}

    def encode(self, rows: Dataset, tokenizer: PreTrainedTokenizerBase, training: bool) -> Dataset:
        def target(names: list[str], origin: str) -> int | list[float]:
            numbers = [self.label_number(name, origin) for name in names]
            if self.problem_type == SINGLE:
                return numbers[0]
            return [float(number in numbers) for number in range(len(self.labels))]

        def tokenize(batch: dict[str, list]) -> dict[str, list]:
            inputs = tokenizer(batch["text"], batch.get("text_pair"), truncation=True, max_length=self.args.max_length)
            if self.problem_type == REGRESSION:
                return {**inputs, "labels": batch["number"]}
            return {**inputs, "labels": [target(*pair) for pair in zip(batch["labels"], batch["origin"], strict=True)]}

        return rows.map(tokenize, batched=True, remove_columns=rows.column_names, desc="Encoding")

    def collator(self, tokenizer: PreTrainedTokenizerBase, model: PreTrainedModel) -> DataCollatorWithPadding:
        return DataCollatorWithPadding(tokenizer)

    def metrics(self, prediction: EvalPrediction, rows: Dataset, tokenizer: PreTrainedTokenizerBase) -> Metrics:
        measure = {
            SINGLE: classification_metrics,
            MULTI: multi_label_metrics,
            REGRESSION: regression_metrics,
        }[self.problem_type]
        return measure(*self._predicted_and_true(prediction, rows))

    def figures_by_label(self, prediction: EvalPrediction, rows: Dataset) -> ByLabel:
        if self.problem_type == REGRESSION:
            return {}
        return figures_by_label(*self._predicted_and_true(prediction, rows), list(self.labels))

    def _predicted_and_true(self, prediction: EvalPrediction, rows: Dataset) -> tuple[np.ndarray, np.ndarray]:
        logits, labels = prediction.predictions[: len(rows)], prediction.label_ids[: len(rows)]
        if self.problem_type == REGRESSION:
            return logits.squeeze(-1), labels
        if self.problem_type == MULTI:
            return (logits > 0).astype(int), labels.astype(int)
        return logits.argmax(-1), labels

    def metric_notes(self, model: PreTrainedModel) -> list[str]:
        if self.problem_type == REGRESSION:
            return ["Pearson and Spearman are correlations from -1 to 1; loss and mse are mean squared errors."]
        return [
            "Accuracy and F1 are fractions from 0 to 1; macro F1 is the mean over the labels, be they frequent or "
            "rare. The loss is the cross-entropy in nats."
        ]

    def neutral_example(self) -> Row:
        pair = {"text_pair": "the second text of a pair"} if self.args.text_pair_column else {}
        return {"text": "a text to classify", **pair}

    def example_line(self, row: Row) -> str:
        return "\t".join([row["text"], *([row["text_pair"]] if "text_pair" in row else [])])

    def snippet(self, model_id: str, row: Row) -> str:
        texts = ", ".join(quoted(text) for text in self.example_line(row).split("\t"))
        answer = {
            SINGLE: "model.config.id2label[logits.argmax().item()]",
            MULTI: "[name for i, name in model.config.id2label.items() if logits[0, i] > 0]",
            REGRESSION: "logits.item()",
        }[self.problem_type]
        return self.loading_code(model_id) + (
            f"logits = model(**tokenizer({texts}, return_tensors='pt')).logits\nprint({answer})"
        )

    @classmethod
    def predict(cls, saved: SavedModel, lines: list[str], generation: dict[str, Any]) -> list[str]:
        """`label TAB probability`; with several labels, those whose probability is above one half; for regression the
        number."""
        pairs = [line.split("\t") for line in lines] if saved.settings.get("pairs") else [[line] for line in lines]
        for pair in pairs:
            if saved.settings.get("pairs") and len(pair) != 2:
                raise InputError(f"this model takes pairs of texts, separated by a tab, not {pair[0]!r}")
        columns = [list(column) for column in zip(*pairs, strict=True)]
        inputs = encode_lines(saved.tokenizer, *columns).to(saved.model.device)
        logits = saved.model(**inputs).logits.float()  # (B, labels)
        names = saved.model.config.id2label
        if saved.model.config.problem_type == REGRESSION:
            return [f"{value:.4f}" for value in logits.squeeze(-1).tolist()]
        if saved.model.config.problem_type == MULTI:
            separator = saved.settings.get("label_separator", ",")
            return [separator.join(names[i] for i in row.nonzero().flatten().tolist()) for row in logits > 0]
        best = logits.softmax(-1).max(-1)
        return [f"{names[i]}\t{p:.4f}" for i, p in zip(best.indices.tolist(), best.values.tolist(), strict=True)]


def _numbers_first(label: str) -> tuple[bool, int, str]:
    """Sorts numbers by their value, and before all other labels."""
    return not label.isdecimal(), int(label) if label.isdecimal() else 0, label
