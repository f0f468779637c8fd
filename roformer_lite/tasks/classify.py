"""The task classify: a text, or a pair of texts, gets a label, several labels, or a number."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from transformers import (
    AutoModelForSequenceClassification,
    DataCollatorWithPadding,
    PreTrainedModel,
)
from transformers.configuration_utils import PreTrainedConfig

from ..data.data_files import Row, number_of, text_of, value_of
from ..errors import InputError
from ..evaluate.metrics import (
    CLASSIFICATION_METRICS,
    ByLabel,
    Metrics,
    metrics_by_label,
)
from .answers import Answer, Input, Outcome, SavedModel, encode_lines
from .base import quoted
from .labels import LabelTask
from .task_arguments import ClassifyDataArguments

if TYPE_CHECKING:
    from datasets import Dataset, DatasetDict
    from transformers import EvalPrediction, Trainer

    from hf_roformer_lite.model.text_features import RoFormerLiteDocumentScores, RoFormerLiteTextScores

    from ..evaluate.baselines import Baselines
    from ..train.text_scores_weights import Split

SINGLE, MULTI, REGRESSION = "single_label_classification", "multi_label_classification", "regression"
_RANKING = ("top_k", "threshold", "none_label")  # options of `predict` about labels
_NONE = "-"  # stands for a label below the threshold


class ClassifyTask(LabelTask):
    """A text, or a pair, gets a label, several, or a number."""

    architecture = "ForSequenceClassification"
    auto_model = AutoModelForSequenceClassification
    pipeline_tag = "text-classification"
    label_word = "label"
    prediction_options = (*_RANKING, "text_pair_column")
    metric_names = ("accuracy", "macro_f1", "micro_f1", "pearson", "spearman", "mse")
    arguments = ClassifyDataArguments

    def __init__(self, args: ClassifyDataArguments):
        super().__init__(args)
        self.problem_type = args.problem_type or (MULTI if args.label_separator else None)

    def select_columns(self, row: Row) -> Row:
        raw = {"text": text_of(row, self.args.text_column, "text_column"), "origin": row["origin"]}
        if self.args.text_pair_column:
            raw["text_pair"] = text_of(row, self.args.text_pair_column, "text_pair_column")
        label = value_of(row, self.args.label_column, "label_column")
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
        number, column = number_of(label), self.args.label_column
        self.require(number is not None, row, f"column {column!r} must be a number for regression, not {label!r}")
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
        return {
            "pairs": self.args.text_pair_column is not None,
            **super().prediction_settings(),
            "label_separator": self.args.label_separator or ",",
        }

    def encode(self, rows: Dataset, training: bool) -> Dataset:
        def target(names: list[str], origin: str) -> int | list[float]:
            numbers = [self.label_number(name, origin) for name in names]
            if self.problem_type == SINGLE:
                return numbers[0]
            return [float(number in numbers) for number in range(len(self.labels))]

        def tokenize(batch: dict[str, list]) -> dict[str, list]:
            inputs = self.tokenizer(
                batch["text"], batch.get("text_pair"), truncation=True, max_length=self.args.max_length
            )
            if self.problem_type == REGRESSION:
                return {**inputs, "labels": batch["number"]}
            return {**inputs, "labels": [target(*pair) for pair in zip(batch["labels"], batch["origin"], strict=True)]}

        return rows.map(tokenize, batched=True, remove_columns=rows.column_names, desc="Encoding")

    def collator(self, model: PreTrainedModel) -> DataCollatorWithPadding:
        return DataCollatorWithPadding(self.tokenizer)

    def metrics(self, prediction: EvalPrediction, rows: Dataset) -> Metrics:
        return self._measure(*self._logits_and_labels(prediction, rows))

    def _logits_and_labels(self, prediction: EvalPrediction, rows: Dataset) -> tuple[np.ndarray, np.ndarray]:
        return prediction.predictions[: len(rows)], prediction.label_ids[: len(rows)]

    def _measure(self, logits: np.ndarray, labels: np.ndarray) -> Metrics:
        return CLASSIFICATION_METRICS[self.problem_type](*self._predicted_and_true(logits, labels))

    def metrics_by_label(self, prediction: EvalPrediction, rows: Dataset) -> ByLabel:
        if self.problem_type == REGRESSION:
            return {}
        pair = self._predicted_and_true(*self._logits_and_labels(prediction, rows))
        return metrics_by_label(*pair, list(self.labels))

    def _predicted_and_true(self, logits: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
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

    @property
    def main_metric(self) -> str:
        return {SINGLE: "accuracy", MULTI: "micro_f1", REGRESSION: "pearson"}[self.problem_type]

    def baselines(self, rows: DatasetDict, encoded: DatasetDict) -> Baselines:
        from ..evaluate.baselines import classification_baselines

        examples = {
            split: ([self.example_line(row) for row in rows[split]], np.array(encoded[split]["labels"]))
            for split in rows
        }
        return classification_baselines(self.problem_type, examples.pop("train"), examples)

    def fit_text_scores(
        self, tokens: torch.Tensor, train: Dataset, config: PreTrainedConfig
    ) -> RoFormerLiteDocumentScores:
        from ..train.text_scores_fit import fit_document_scores

        return fit_document_scores(tokens, train["input_ids"][:], np.array(train["labels"]), config)

    def split_of(self, trainer: Trainer, scores: RoFormerLiteTextScores, encoded: Dataset) -> Split:
        from ..train.text_scores_weights import make_split

        true = np.array(encoded["labels"])
        logits = trainer.predict(encoded).predictions[: len(true)]
        return make_split(scores, encoded["input_ids"][:], logits, true, partial(self._measure, labels=true))

    def inspect_model(self, config: PreTrainedConfig, settings: dict[str, Any]) -> None:
        self.problem_type = problem_type_of(config)
        if self.problem_type != REGRESSION:
            super().inspect_model(config, settings)
        if "pairs" in settings and settings["pairs"] != (self.args.text_pair_column is not None):
            raise InputError(
                "this model takes pairs of texts; give --text_pair_column, the column of the second"
                if settings["pairs"]
                else f"--text_pair_column {self.args.text_pair_column}: this model takes one text, and no pairs"
            )

    def outcomes(self, prediction: EvalPrediction, rows: Dataset, encoded: Dataset) -> list[Outcome]:
        logits = torch.from_numpy(prediction.predictions[: len(rows)]).float()  # (rows, labels)
        return [self._outcome(row, scores) for row, scores in zip(rows, logits, strict=True)]

    def _outcome(self, row: Row, logits: torch.Tensor) -> Outcome:
        texts = {name: row[name] for name in ("text", "text_pair") if name in row}
        if self.problem_type == REGRESSION:
            true, value = row["number"], logits.item()
            return Outcome(row["origin"], {**texts, "label": true, "prediction": round(value, 4)}, abs(true - value))
        names, true = list(self.labels), row["labels"]
        if self.problem_type == SINGLE:
            score, best = logits.softmax(-1).max(-1)
            predicted, mistake = [names[best]], score.item() * (names[best] != true[0])
            answer = {"prediction": predicted[0], "score": round(score.item(), 4)}
            return Outcome(row["origin"], {**texts, "label": true[0], **answer}, mistake, true, predicted)
        predicted = [names[number] for number in (logits > 0).nonzero().flatten().tolist()]
        separator = self.args.label_separator or ","
        shown = {"label": separator.join(true), "prediction": separator.join(predicted)}
        return Outcome(row["origin"], {**texts, **shown}, len(set(true) ^ set(predicted)), true, predicted)

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
    def check_prediction_options(
        cls, config: PreTrainedConfig, settings: dict[str, Any], options: dict[str, Any]
    ) -> None:
        super().check_prediction_options(config, settings, options)
        ranking = [name for name in _RANKING if name in options]
        if ranking and problem_type_of(config) == REGRESSION:
            raise InputError(f"--{ranking[0]} is for labels; this model gives a number")
        if options.get("top_k", 1) > config.num_labels:
            raise InputError(f"--top_k {options['top_k']}: this model has {config.num_labels} labels")
        if "text_pair_column" in options and settings.get("pairs") is False:
            raise InputError(
                f"--text_pair_column {options['text_pair_column']}: this model takes one text, and no pairs"
            )

    @classmethod
    def input_of(cls, row: Row, text_column: str, text_pair_column: str | None) -> Input:
        text = text_of(row, text_column, "text_column")
        return text if text_pair_column is None else [text, text_of(row, text_pair_column, "text_pair_column")]

    @classmethod
    def answer_columns(cls, saved: SavedModel, options: dict[str, Any]) -> list[str]:
        if problem_type_of(saved.model.config) == REGRESSION:
            return ["value"]
        places = [f"_{place}" for place in range(1, options["top_k"] + 1)] if "top_k" in options else [""]
        return [name + place for place in places for name in ("label", "score")]

    @classmethod
    def predict(cls, saved: SavedModel, inputs: list[Input], options: dict[str, Any]) -> list[Answer]:
        """`label TAB probability`, with `top_k` several of them; with several labels for a text, those whose
        probability is above one half, or reaches the `threshold`; for regression the number."""
        problem_type = problem_type_of(saved.model.config)
        logits = cls._logits(saved, inputs)  # (B, labels)
        if problem_type == REGRESSION:
            return [Answer(f"{value:.4f}", {"value": round(value, 4)}) for value in logits.squeeze(-1).tolist()]
        scores = logits.softmax(-1) if problem_type == SINGLE else logits.sigmoid()
        if problem_type == MULTI and "top_k" not in options:
            chosen = logits > 0 if "threshold" not in options else scores >= options["threshold"]
            return [cls._all_of(saved, *row, options) for row in zip(chosen, scores, strict=True)]
        ranked = scores.sort(dim=-1, descending=True, stable=True)
        return [
            cls._first_of(saved, *row, options)
            for row in zip(ranked.indices.tolist(), ranked.values.tolist(), strict=True)
        ]

    @classmethod
    def _logits(cls, saved: SavedModel, inputs: list[Input]) -> torch.Tensor:
        takes_pairs = saved.settings.get("pairs")
        rows = [text if isinstance(text, list) else text.split("\t") if takes_pairs else [text] for text in inputs]
        for row in rows:
            if takes_pairs and len(row) != 2:
                raise InputError(
                    f"this model takes pairs of texts, separated by a tab or in two columns of a table "
                    f"(--text_column, --text_pair_column), not {row[0]!r}"
                )
        columns = [list(column) for column in zip(*rows, strict=True)]
        return saved.model(**encode_lines(saved.tokenizer, *columns).to(saved.model.device)).logits.float()

    @classmethod
    def _first_of(cls, saved: SavedModel, labels: list[int], scores: list[float], options: dict[str, Any]) -> Answer:
        """The most probable labels; below the threshold, none."""
        names, none = saved.model.config.id2label, options.get("none_label", _NONE)
        found: list[str | float] = []
        for label, score in list(zip(labels, scores, strict=True))[: options.get("top_k", 1)]:
            found += [none if score < options.get("threshold", 0) else names[label], round(score, 4)]
        line = "\t".join(value if isinstance(value, str) else f"{value:.4f}" for value in found)
        return Answer(line, dict(zip(cls.answer_columns(saved, options), found, strict=True)))

    @classmethod
    def _all_of(cls, saved: SavedModel, chosen: torch.Tensor, scores: torch.Tensor, options: dict[str, Any]) -> Answer:
        """Every label that was chosen."""
        separator = saved.settings.get("label_separator") or ","
        numbers = chosen.nonzero().flatten().tolist()
        label = separator.join(saved.model.config.id2label[number] for number in numbers)
        if not numbers and "threshold" in options:
            label = options.get("none_label", _NONE)
        return Answer(label, {"label": label, "score": separator.join(f"{scores[i]:.4f}" for i in numbers)})


def problem_type_of(config: PreTrainedConfig) -> str:
    """What the head of a saved model gives; with a checkpoint that does not say it, the number of labels does."""
    return config.problem_type or (REGRESSION if config.num_labels == 1 else SINGLE)


def _numbers_first(label: str) -> tuple[bool, int, str]:
    """Sorts numbers by their value, and before all other labels."""
    return not label.isdecimal(), int(label) if label.isdecimal() else 0, label
