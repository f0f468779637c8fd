"""The task classify: a text, or a pair of texts, gets a label, several labels, or a number."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Literal

from datasets import Dataset
from transformers import (
    AutoModelForSequenceClassification,
    DataCollatorWithPadding,
    EvalPrediction,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from ...errors import InputError
from ..arguments import DataArguments
from ..data_files import Row, text_of, value_of
from ..metrics import Metrics, classification_metrics, multi_label_metrics, regression_metrics
from .base import Task, encode_lines, quoted

SINGLE, MULTI, REGRESSION = "single_label_classification", "multi_label_classification", "regression"


@dataclass
class ClassifyDataArguments(DataArguments):
    """Columns and labels of classification."""

    text_column: str = field(default="text", metadata={"help": "Column of the text."})
    text_pair_column: str | None = field(default=None, metadata={"help": "Column of a second text, for pairs."})
    label_column: str = field(default="label", metadata={"help": "Column of the label, any text or number."})
    max_length: int = field(default=256, metadata={"help": "Cut texts (a pair together) to so many tokens."})
    problem_type: Literal["single_label_classification", "multi_label_classification", "regression"] | None = field(
        default=None,
        metadata={"help": "Default: multi_label with lists of labels or --label_separator, else single_label."},
    )
    label_separator: str | None = field(
        default=None, metadata={"help": "What stands between several labels of one text. None: a text has one label."}
    )


class ClassifyTask(Task):
    """A text, or a pair, gets a label, several, or a number."""

    name = "classify"
    summary = "text classification: one label, several, or a number"
    architecture = "ForSequenceClassification"
    auto_model = AutoModelForSequenceClassification
    pipeline_tag = "text-classification"
    arguments = ClassifyDataArguments

    def __init__(self, args: ClassifyDataArguments):
        super().__init__(args)
        self.labels: list[str] = []
        self.problem_type = args.problem_type or (MULTI if args.label_separator else None)

    def raw_row(self, row: Row) -> Row:
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
        self.check(
            all(isinstance(name, (str, int)) for name in names),
            row,
            f"column {self.args.label_column!r} must be a label, not {label!r}",
        )
        names = [str(name).strip() for name in names]
        self.check(all(names), row, f"column {self.args.label_column!r} is empty")
        self.check(self.problem_type == MULTI or len(names) == 1, row, f"one label is needed, not {label!r}")
        return {**raw, "labels": names}

    def _number(self, label: Any, row: Row) -> float:
        try:
            return float(label)
        except (TypeError, ValueError):
            raise InputError(
                f"{row['origin']}: column {self.args.label_column!r} must be a number for regression, not {label!r}"
            ) from None

    def is_empty(self, row: Row) -> bool:
        return not row["text"] or row.get("text_pair") == ""

    def learn(self, train: Dataset) -> None:
        if self.problem_type != REGRESSION:
            names = set(chain.from_iterable(train["labels"]))
            self.labels = sorted(
                names, key=lambda name: (not name.isdecimal(), int(name) if name.isdecimal() else 0, name)
            )
            if len(self.labels) < 2:
                raise InputError(
                    f"the training data have a single label, {', '.join(self.labels)}: nothing to tell apart"
                )

    def texts(self, rows: Iterable[Row]) -> Iterator[str]:
        for row in rows:
            yield row["text"]
            if "text_pair" in row:
                yield row["text_pair"]

    @property
    def max_length(self) -> int:
        return self.args.max_length

    def config_fields(self) -> dict[str, Any]:
        names = ["value"] if self.problem_type == REGRESSION else self.labels
        return {
            "problem_type": self.problem_type,
            "id2label": dict(enumerate(names)),
            "label2id": {name: index for index, name in enumerate(names)},
        }

    def settings(self) -> dict[str, Any]:
        return {"pairs": self.args.text_pair_column is not None, "label_separator": self.args.label_separator or ","}

    def encode(self, raw: Dataset, tokenizer: PreTrainedTokenizerBase, training: bool) -> Dataset:
        index = {name: number for number, name in enumerate(self.labels)}

        def target(names: list[str], origin: str) -> int | list[float]:
            for name in names:
                if name not in index:
                    known = ", ".join(self.labels[:20]) + (" …" if len(self.labels) > 20 else "")
                    raise InputError(f"{origin}: label {name!r} is not in the training data, which have: {known}")
            if self.problem_type == SINGLE:
                return index[names[0]]
            return [float(label in names) for label in self.labels]

        def tokenize(batch: dict[str, list]) -> dict[str, list]:
            inputs = tokenizer(batch["text"], batch.get("text_pair"), truncation=True, max_length=self.args.max_length)
            if self.problem_type == REGRESSION:
                return {**inputs, "labels": batch["number"]}
            return {**inputs, "labels": [target(*pair) for pair in zip(batch["labels"], batch["origin"], strict=True)]}

        return raw.map(tokenize, batched=True, remove_columns=raw.column_names, desc="Encoding")

    def collator(self, tokenizer: PreTrainedTokenizerBase, model: PreTrainedModel) -> DataCollatorWithPadding:
        return DataCollatorWithPadding(tokenizer)

    def metrics(self, prediction: EvalPrediction, raw: Dataset, tokenizer: PreTrainedTokenizerBase) -> Metrics:
        logits, labels = prediction.predictions[: len(raw)], prediction.label_ids[: len(raw)]
        if self.problem_type == REGRESSION:
            return regression_metrics(logits.squeeze(-1), labels)
        if self.problem_type == MULTI:
            return multi_label_metrics((logits > 0).astype(int), labels.astype(int))
        return classification_metrics(logits.argmax(-1), labels)

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
    def predict(
        cls,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        lines: list[str],
        settings: dict[str, Any],
        generation: dict[str, Any],
    ) -> list[str]:
        """`label TAB probability`; for several labels those above one half, or nothing; for a number the number."""
        pairs = [line.split("\t") for line in lines] if settings.get("pairs") else [[line] for line in lines]
        for pair in pairs:
            if settings.get("pairs") and len(pair) != 2:
                raise InputError(f"this model takes pairs, two texts with a tab between them, not {pair[0]!r}")
        columns = [list(column) for column in zip(*pairs, strict=True)]
        inputs = encode_lines(tokenizer, *columns).to(model.device)
        logits = model(**inputs).logits.float()  # (B, labels)
        names = model.config.id2label
        if model.config.problem_type == REGRESSION:
            return [f"{value:.4f}" for value in logits.squeeze(-1).tolist()]
        if model.config.problem_type == MULTI:
            separator = settings.get("label_separator", ",")
            return [separator.join(names[i] for i in row.nonzero().flatten().tolist()) for row in logits > 0]
        best = logits.softmax(-1).max(-1)
        return [f"{names[i]}\t{p:.4f}" for i, p in zip(best.indices.tolist(), best.values.tolist(), strict=True)]
