"""The task classify: a text, or a pair of texts, gets a label, several labels, or a number."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable, Iterator, Sequence
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

from hf_roformer_lite.model.losses import IGNORE_INDEX

from ..data.data_files import Row, number_of, text_of, value_of
from ..errors import InputError
from ..evaluate.baselines import BaselinesRight, classification_baselines
from ..evaluate.metrics import (
    Metrics,
    classification_metrics,
    regression_metrics,
    threshold_for,
)
from ..evaluate.report import LabelReport, Outcome, report_of_classes, report_of_sets
from ..head import MAX_CONTRASTIVE_ROWS, may_stop_after_fitting, train_contrastively
from ..task_options import ClassifyDataArguments
from ..teacher import open_teacher, take_over_tokens
from ..text_scores.fit import fit_document_scores
from ..text_scores.token_bytes import token_bytes
from ..text_scores.weights import Split, add_fitted_scores, make_split, weighted
from .base import Answer, Input, MeasuredBaselines, Shown, quoted, significant
from .labels import LabelRecipe

if TYPE_CHECKING:
    from datasets import Dataset, DatasetDict
    from transformers import EvalPrediction, Trainer, TrainingArguments
    from transformers.modeling_outputs import SequenceClassifierOutput

    from hf_roformer_lite.model.ngram_scores import (
        RoFormerLiteDocumentScores,
        RoFormerLiteTextScores,
    )

    from ..answers import SavedModel
    from ..run import Run

logger = logging.getLogger(__name__)

SINGLE = "single_label_classification"
MULTI = "multi_label_classification"
REGRESSION = "regression"
METRIC_NAMES = {
    SINGLE: ("accuracy", "macro_f1"),
    MULTI: ("accuracy", "macro_f1", "micro_f1"),
    REGRESSION: ("pearson", "spearman", "mse"),
}
MAIN_METRICS = {SINGLE: "accuracy", MULTI: "micro_f1", REGRESSION: "pearson"}
# The pipeline's names for the functions that turn logits into probabilities.
ACTIVATIONS = {SINGLE: "softmax", MULTI: "sigmoid", REGRESSION: "none"}
LABEL_OPTIONS = ("top_k", "threshold", "none_label")
# `predict` writes this instead of a label below the threshold.
NO_LABEL = "-"
# No score reaches this threshold.
UNREACHABLE = 2.0


class Classify(LabelRecipe):
    """A text or a pair of texts gets a label, several labels, or a number.

    A row has a `text`, optionally a `text_pair`, and `labels` or a `number`. The model is an
    encoder with a head for labels, combined with a linear model on n-grams.
    """

    options_class = ClassifyDataArguments
    options: ClassifyDataArguments
    pipeline_tag = "text-classification"
    architecture = "ForSequenceClassification"
    auto_model = AutoModelForSequenceClassification
    label_word = "label"
    text_part = "linear model on n-grams"
    answer_options = (*LABEL_OPTIONS, "text_pair_column")
    truncates = True

    def __init__(self, options: ClassifyDataArguments):
        super().__init__(options)
        self.problem_type: str | None = options.problem_type
        if self.problem_type is None and options.label_separator:
            self.problem_type = MULTI
        self.takes_pairs = options.text_pair_column is not None
        self.label_separator = options.label_separator or ","
        # `predict` leaves out labels with a lower score.
        self.threshold: float | None = None

    # Reading the data.

    def select_columns(self, row: Row) -> Row:
        selected = {
            "text": text_of(row, self.options.text_column, "text_column"),
            "origin": row["origin"],
        }
        if self.options.text_pair_column:
            selected["text_pair"] = text_of(row, self.options.text_pair_column, "text_pair_column")
        column = self.options.label_column
        label = value_of(row, column, "label_column")
        if self.problem_type is None:
            self.problem_type = MULTI if isinstance(label, list) else SINGLE
        if self.problem_type == REGRESSION:
            number = number_of(label)
            message = f"column {column!r} must be a number for regression, not {label!r}"
            self.require(number is not None, row, message)
            return {**selected, "number": number}
        return {**selected, "labels": self.names_in(label, row)}

    def names_in(self, label: Any, row: Row) -> list[str]:
        """The names of the labels of a row."""
        column = self.options.label_column
        separator = self.options.label_separator
        names = label if isinstance(label, list) else [label]
        if isinstance(label, str) and separator and self.problem_type == MULTI:
            names = [part for part in label.split(separator) if part.strip()]
        # A column of whole numbers in which some are missing has the type float in many libraries.
        names = [int(name) if is_whole_number(name) else name for name in names]
        are_names = all(isinstance(name, (str, int)) for name in names)
        message = (
            f"column {column!r} must be a label, not {label!r}; --problem_type regression is for "
            "numbers"
        )
        self.require(are_names, row, message)
        names = [str(name).strip() for name in names]
        self.require(all(names), row, f"column {column!r} is empty")
        fits = self.problem_type == MULTI or len(names) == 1
        self.require(fits, row, f"one label is needed, not {label!r}")
        return names

    def labels_of_items(self, rows: Dataset) -> Iterable[Sequence[str]]:
        if self.problem_type == REGRESSION:
            return []
        return rows["labels"]

    def is_empty(self, row: Row) -> bool:
        return not row["text"] or row.get("text_pair") == ""

    def texts(self, rows: Iterable[Row]) -> Iterator[str]:
        return (row[name] for row in rows for name in ("text", "text_pair") if name in row)

    @property
    def min_rows_to_split(self) -> int:
        """With little data, training a sentence encoder on pairs of all rows helps more than
        holding out a tenth of them for choosing a checkpoint."""
        if self.learns_from_few and self.problem_type == SINGLE:
            return MAX_CONTRASTIVE_ROWS
        return super().min_rows_to_split

    def inspect(self, rows: DatasetDict) -> None:
        if self.problem_type != REGRESSION:
            names = sorted(set(chain.from_iterable(rows["train"]["labels"])), key=numbers_first)
            self.check_labels(names, self.label_separator if self.problem_type == MULTI else None)
            warn_of_equal_numbers(names)
            self.set_labels(names)
        if self.options.min_precision is not None and "validation" not in rows:
            raise InputError(
                f"--min_precision {self.options.min_precision}: there are no validation data for "
                "choosing the threshold; give --validation_file or a --validation_fraction"
            )
        for name in ("class_weights", "min_precision"):
            value = getattr(self.options, name)
            if value is not None and self.problem_type != SINGLE:
                raise InputError(
                    f"--{name} {value} is for rows with one label, not for {self.problem_type}; "
                    "leave it out"
                )

    def inspect_model(self, config: PreTrainedConfig, settings: dict[str, Any]) -> None:
        self.problem_type = problem_type_of(config)
        if self.problem_type != REGRESSION:
            super().inspect_model(config, settings)
        self.takes_pairs = settings.get("pairs", self.takes_pairs)
        if not isinstance(self.takes_pairs, bool):
            raise InputError(f"pairs must be true or false, not {self.takes_pairs!r}")
        given = self.options.label_separator
        self.label_separator = given or settings.get("label_separator") or ","
        if not isinstance(self.label_separator, str):
            raise InputError(f"label_separator must be text, not {self.label_separator!r}")
        self.threshold = settings.get("threshold")

    def check_data_options(self) -> None:
        given = self.options.text_pair_column
        if self.takes_pairs and given is None:
            raise InputError(
                "this model takes pairs of texts; give --text_pair_column, the column of the second"
            )
        self.check_pair_column(given)

    def check_pair_column(self, given: str | None) -> None:
        if given is not None and not self.takes_pairs:
            raise InputError(
                f"--text_pair_column {given}: this model takes single texts, not pairs"
            )

    def config_labels(self) -> list[str]:
        if self.problem_type == REGRESSION:
            return ["value"]
        return super().config_labels()

    def settings(self) -> dict[str, Any]:
        found = {
            "pairs": self.takes_pairs,
            **super().settings(),
            "label_separator": self.label_separator,
        }
        if self.options.min_precision is not None:
            found["threshold"] = UNREACHABLE if self.threshold is None else self.threshold
        return found

    # Encoding.

    def encode_batch(self, batch: dict[str, list], training: bool) -> dict[str, Any]:
        inputs = self.tokenizer(batch["text"], batch.get("text_pair"), truncation=True)
        if self.problem_type == REGRESSION:
            labels = batch["number"]
        elif self.problem_type == SINGLE:
            labels = [self.labels.get(names[0], IGNORE_INDEX) for names in batch["labels"]]
        else:
            labels = [[float(label in names) for label in self.labels] for names in batch["labels"]]
        return {**inputs, "labels": labels}

    def collator(self, model: PreTrainedModel) -> DataCollatorWithPadding:
        return DataCollatorWithPadding(self.tokenizer)

    # The model, and its training.

    def config_fields(self) -> dict[str, Any]:
        return {"problem_type": self.problem_type, **super().config_fields()}

    def why_new_head(self, config: PreTrainedConfig) -> str:
        is_number = config.num_labels == 1 and problem_type_of(config) == REGRESSION
        if is_number and self.problem_type == REGRESSION:
            # Other programs give the number another name.
            return self.why_no_head(config)
        return super().why_new_head(config)

    def trainer_parts(
        self,
        run: Run,
        args: TrainingArguments,
        model: PreTrainedModel,
        rows: DatasetDict,
        encoded: DatasetDict,
    ) -> dict[str, Any]:
        parts = super().trainer_parts(run, args, model, rows, encoded)
        if self.options.class_weights:
            from sklearn.utils.class_weight import compute_class_weight

            weights = compute_class_weight(
                self.options.class_weights,
                classes=np.arange(len(self.labels)),
                y=np.array(encoded["train"]["labels"]),
            )
            parts["compute_loss_func"] = partial(
                weighted_loss, torch.from_numpy(weights).float(), args.label_smoothing_factor
            )
        has_validation = "validation" in encoded
        is_pairs_only = not has_validation and self.learns_from_pairs(args, encoded["train"])
        self.stops_after_fitting = is_pairs_only and may_stop_after_fitting(run, args)
        return parts

    def learns_from_pairs(self, args: TrainingArguments, train: Dataset) -> bool:
        """Whether there are so few rows that the encoder first learns the labels from pairs of
        them."""
        is_fitted = self.has_new_head and self.has_own_class and self.options.fit_head
        is_small = self.problem_type == SINGLE and len(train) < MAX_CONTRASTIVE_ROWS
        return is_fitted and is_small and args.world_size == 1

    def prepare_head(self, trainer: Trainer, train: Dataset) -> bool:
        if self.learns_from_pairs(trainer.args, train):
            print(
                "There are few rows, so the encoder first learns the labels from pairs of them",
                file=sys.stderr,
            )
            train_contrastively(trainer, train)
        is_fitted = super().prepare_head(trainer, train)
        self.stops_after_fitting = self.stops_after_fitting and is_fitted
        if self.stops_after_fitting:
            print(
                "The fitted head is final, because there are no validation data to decide whether "
                "further training helps",
                file=sys.stderr,
            )
        if self.options.teacher is not None:
            model: Any = trainer.model
            take_over_tokens(model.get_input_embeddings(), open_teacher(self.options.teacher))
        return is_fitted

    def fit_text_scores(
        self, train: Dataset, config: PreTrainedConfig, calibrates: bool
    ) -> RoFormerLiteDocumentScores:
        from sklearn.utils.class_weight import compute_sample_weight

        labels = np.array(train["labels"])
        importance = None
        if self.options.class_weights:
            importance = compute_sample_weight(self.options.class_weights, labels)
        return fit_document_scores(
            tokens=self.token_bytes,
            examples=train["input_ids"][:],
            answers=labels,
            config=config,
            importance=importance,
            calibrates=calibrates,
        )

    def split_of(
        self, trainer: Trainer, scores: RoFormerLiteTextScores, rows: Dataset, encoded: Dataset
    ) -> Split:
        return split_of(trainer, scores, encoded, self.problem_type, self.truth(rows))

    def learn_validation_rows(self, trainer: Trainer, encoded: DatasetDict) -> bool:
        from datasets import concatenate_datasets

        if not self.text_weights or "validation" not in encoded:
            return False
        known = [
            row
            for row, label in enumerate(encoded["validation"]["labels"])
            if label != IGNORE_INDEX
        ]
        rows = concatenate_datasets([encoded["train"], encoded["validation"].select(known)])
        model: Any = trainer.model
        scores = self.fit_text_scores(rows, model.config, calibrates=False)
        model.add_text_scores(weighted(scores, self.text_weights))
        self.has_learned_validation_rows = True
        return True

    # Choosing a checkpoint.

    @property
    def metric_names(self) -> Sequence[str]:
        return METRIC_NAMES[self.problem_type]

    @property
    def main_metric(self) -> str:
        if self.options.class_weights:
            return "macro_f1"
        return MAIN_METRICS[self.problem_type]

    def choose(self, prediction: EvalPrediction, rows: Dataset) -> Metrics:
        logits = prediction.predictions[: len(rows)]
        return measure_logits(self.problem_type, logits, self.truth(rows))

    def choose_threshold(self, scores: np.ndarray | None, right: np.ndarray) -> None:
        wanted = self.options.min_precision
        if wanted is None or scores is None:
            return
        self.threshold = threshold_for(scores, right, wanted)
        if self.threshold is None:
            print(
                f"{self.sentence_on_no_threshold()} `predict --threshold` chooses another one",
                file=sys.stderr,
            )

    def sentence_on_no_threshold(self) -> str:
        return (
            f"No threshold reaches a precision of {self.options.min_precision:g} on the validation "
            "data: `predict` gives no label."
        )

    def notes_on_threshold(self, scores: np.ndarray, right: np.ndarray, split: str) -> list[str]:
        if self.options.min_precision is None:
            return []
        if self.threshold is None:
            return [self.sentence_on_no_threshold()]
        is_sure = scores >= self.threshold
        precision = ""
        if is_sure.any():
            precision = f", of which {right[is_sure].mean():.3f} are right"
        return [
            f"Below a score of {self.threshold:.4f}, chosen on the validation data for a precision "
            f"of {self.options.min_precision:g}, `predict` gives no label. On the {split} data it "
            f"labels {is_sure.mean():.3f} of the rows{precision}."
        ]

    # Answering.

    def check_options(self, config: PreTrainedConfig, given: dict[str, Any]) -> None:
        super().check_options(config, given)
        ranking = [name for name in LABEL_OPTIONS if name in given]
        if ranking and self.problem_type == REGRESSION:
            raise InputError(f"--{ranking[0]} is for labels, but this model predicts a number")
        if "none_label" in given and "threshold" not in given and self.threshold is None:
            raise InputError(
                f"--none_label {given['none_label']} has no effect without a threshold; give "
                "--threshold"
            )
        if given.get("top_k", 1) > config.num_labels:
            raise InputError(f"--top_k {given['top_k']}: this model has {config.num_labels} labels")
        self.check_pair_column(given.get("text_pair_column"))

    def text_columns(self) -> list[str]:
        columns = [self.options.text_column]
        if self.takes_pairs:
            columns.append(self.options.text_pair_column or "text_pair")
        return columns

    def input_of_row(self, row: Row) -> Input:
        if self.takes_pairs:
            return [row["text"], row["text_pair"]]
        return row["text"]

    def answer(
        self, saved: SavedModel, inputs: list[Input], options: dict[str, Any]
    ) -> list[Answer]:
        """The score of each label with the highest first, or the number as `value`."""
        given: list[Any] = list(inputs)
        if self.takes_pairs:
            given = [{"text": pair[0], "text_pair": pair[1]} for pair in inputs]
        found = saved.pipe(
            given,
            top_k=None,
            function_to_apply=ACTIVATIONS[self.problem_type],
            truncation=True,
            batch_size=len(given),
        )
        if self.problem_type == REGRESSION:
            return [{"value": scores[0]["score"]} for scores in found]
        return [{entry["label"]: entry["score"] for entry in scores} for scores in found]

    def answer_columns(self, options: dict[str, Any]) -> list[str]:
        if self.problem_type == REGRESSION:
            return ["value"]
        if "top_k" not in options:
            return ["label", "score"]
        places = range(1, options["top_k"] + 1)
        return [f"{name}_{place}" for place in places for name in ("label", "score")]

    def show(self, answer: Answer, options: dict[str, Any]) -> Shown:
        """`label TAB score`, or several of them with `top_k`. If a text can have several labels,
        these are the ones with a score above one half or the `threshold`. A regression shows its
        number.

        Without `top_k`, the default of `threshold` is the one that `--min_precision` chose during
        training.
        """
        if self.problem_type == REGRESSION:
            value = significant(answer["value"])
            return Shown(line=str(value), columns={"value": value})
        if "top_k" not in options and self.threshold is not None:
            options = {"threshold": self.threshold, **options}
        if self.problem_type == MULTI and "top_k" not in options:
            return self.show_all(answer, options)
        found: list[str | float] = []
        for label, score in list(answer.items())[: options.get("top_k", 1)]:
            is_sure = score >= options.get("threshold", 0)
            found.append(label if is_sure else options.get("none_label", NO_LABEL))
            found.append(round(score, 4))
        texts = [label_text(value) if isinstance(value, str) else f"{value:.4f}" for value in found]
        columns = dict(zip(self.answer_columns(options), found, strict=True))
        return Shown(line="\t".join(texts), columns=columns)

    def show_all(self, answer: Answer, options: dict[str, Any]) -> Shown:
        """The labels of a text that can have several."""
        chosen = self.labels_in(answer, options.get("threshold"))
        label = self.label_separator.join(chosen)
        if not chosen and "threshold" in options:
            label = options.get("none_label", NO_LABEL)
        scores = self.label_separator.join(f"{answer[name]:.4f}" for name in chosen)
        return Shown(line=label_text(label), columns={"label": label, "score": scores})

    def labels_in(self, answer: Answer, threshold: float | None = None) -> list[str]:
        """The labels in an answer, in the order of their numbers."""
        if self.problem_type == SINGLE:
            return [next(iter(answer))]
        if threshold is not None:
            return [label for label in self.labels if answer[label] >= threshold]
        return [label for label in self.labels if answer[label] > 0.5]

    # Measuring.

    def truth(self, rows: Dataset) -> np.ndarray:
        """The true numbers or classes `(rows,)`, or zeros and ones `(rows, labels)`. Labels that do
        not occur in the training data have numbers above the others."""
        if self.problem_type == REGRESSION:
            return np.array(rows["number"])
        return self.numbers_of(rows["labels"], self.with_unseen_labels(rows["labels"]))

    def numbers_of(self, labels: Iterable[Sequence[str]], known: Sequence[str]) -> np.ndarray:
        """The labels of each row as classes, or as zeros and ones for all `known` labels."""
        from sklearn.preprocessing import MultiLabelBinarizer

        if self.problem_type == MULTI:
            return MultiLabelBinarizer(classes=known).fit_transform(labels)
        numbers = {label: number for number, label in enumerate(known)}
        return np.array([numbers[names[0]] for names in labels])

    def measure(self, answers: list[Answer], rows: Dataset) -> Metrics:
        true = self.truth(rows)
        if self.problem_type == REGRESSION:
            metrics = regression_metrics(np.array([answer["value"] for answer in answers]), true)
            return {"loss": metrics["mse"], **metrics}
        found = [self.labels_in(answer) for answer in answers]
        predicted = self.numbers_of(found, list(self.labels))
        metrics = classification_metrics(predicted, true)
        return {"loss": self.loss_of(answers, true), **metrics}

    def loss_of(self, answers: list[Answer], true: np.ndarray) -> float:
        """The mean cross-entropy of the scores, in nats. Labels that the model does not have are
        ignored. `true` is the result of `truth`."""
        scores = np.array([[answer[label] for label in self.labels] for answer in answers])
        if self.problem_type == MULTI:
            right = np.where(true[:, : len(self.labels)], scores, 1 - scores)
        else:
            is_known = true < len(self.labels)
            right = scores[is_known, true[is_known]]
        return float(-np.log(right.clip(min=np.finfo(np.float32).tiny)).mean())

    def outcome(self, row: Row, answer: Answer) -> Outcome:
        texts: dict[str, Any] = {name: row[name] for name in ("text", "text_pair") if name in row}
        if self.problem_type == REGRESSION:
            value = answer["value"]
            columns = {**texts, "label": row["number"], "prediction": significant(value)}
            return Outcome(row["origin"], columns, severity=abs(row["number"] - value))
        true = row["labels"]
        predicted = self.labels_in(answer)
        columns = {
            **texts,
            "label": self.label_separator.join(true),
            "prediction": self.label_separator.join(predicted),
        }
        if self.problem_type == MULTI:
            severity = len(set(true) ^ set(predicted))
            return Outcome(row["origin"], columns, severity, true, predicted)
        score = answer[predicted[0]]
        columns["score"] = round(score, 4)
        severity = score * (predicted != true)
        return Outcome(row["origin"], columns, severity, true, predicted, score=score)

    def report(self, outcomes: Sequence[Outcome]) -> LabelReport | None:
        if self.problem_type == REGRESSION:
            return None
        true = [outcome.true for outcome in outcomes]
        predicted = [outcome.predicted for outcome in outcomes]
        if self.problem_type == MULTI:
            return report_of_sets(true, predicted, self.with_unseen_labels(true))
        return report_of_classes(
            [*chain(*true)], [*chain(*predicted)], self.with_unseen_labels(true)
        )

    def baselines(self, rows: DatasetDict) -> MeasuredBaselines:
        examples = {
            split: (["\t".join(self.texts([row])) for row in rows[split]], self.truth(rows[split]))
            for split in rows
        }
        train = examples.pop("train")
        metrics, predicted = classification_baselines(self.problem_type, train, examples)
        right: BaselinesRight = {}
        if self.problem_type == SINGLE:
            for name, by_split in predicted.items():
                right[name] = {split: own == examples[split][1] for split, own in by_split.items()}
        return metrics, right

    # What the card shows.

    def notes(self) -> list[str]:
        about_metrics = (
            "Accuracy and F1 are fractions from 0 to 1; macro F1 is the unweighted mean over the "
            "labels. The loss is the cross-entropy in nats."
        )
        if self.problem_type == REGRESSION:
            about_metrics = (
                "Pearson and Spearman are correlations from -1 to 1; loss and mse are mean squared "
                "errors."
            )
        return [about_metrics, *super().notes()]

    def neutral_example(self) -> Row:
        row = {"text": "a text to classify"}
        if self.takes_pairs:
            row["text_pair"] = "the second text of a pair"
        return row

    def snippet(self, row: Row) -> str:
        texts = ", ".join(map(quoted, self.texts([row])))
        answers = {
            SINGLE: "model.config.id2label[logits.argmax().item()]",
            MULTI: "[name for i, name in model.config.id2label.items() if logits[0, i] > 0]",
            REGRESSION: "logits.item()",
        }
        return (
            f"logits = model(**tokenizer({texts}, return_tensors='pt')).logits\n"
            f"print({answers[self.problem_type]})"
        )


def weighted_loss(
    weights: torch.Tensor,
    smoothing: float,
    outputs: SequenceClassifierOutput,
    labels: torch.Tensor,
    num_items_in_batch: int | torch.Tensor | None = None,
) -> torch.Tensor:
    """A `compute_loss_func` for the Trainer: the cross-entropy, weighted by the label of each row.
    In evaluation all rows have the same weight. `weights` has the shape `(labels,)`."""
    logits = outputs.logits.float()
    options: dict[str, Any] = {}
    if logits.requires_grad:
        options = {"weight": weights.to(logits.device), "label_smoothing": smoothing}
    total = torch.nn.functional.cross_entropy(logits, labels, reduction="sum", **options)
    if num_items_in_batch is None:
        num_items_in_batch = (labels != IGNORE_INDEX).sum()
    return total / num_items_in_batch


def measure_logits(problem_type: str, logits: np.ndarray, true: np.ndarray) -> Metrics:
    """Metrics of logits `(rows, labels)`. `true` contains numbers or classes `(rows,)`, or zeros
    and ones `(rows, labels)`."""
    if problem_type == REGRESSION:
        return regression_metrics(logits.squeeze(-1), true)
    predicted = logits.argmax(-1)
    if problem_type == MULTI:
        predicted = (logits > 0).astype(int)
    return classification_metrics(predicted, true.astype(int))


def split_of(
    trainer: Trainer,
    scores: RoFormerLiteTextScores,
    encoded: Sequence[Row],
    problem_type: str,
    true: np.ndarray,
) -> Split:
    """The logits of the encoder and the scores of the text. The metrics are computed from `true`,
    which may contain unseen labels, and the weights are fitted to the labels in `encoded`."""
    ids = [row["input_ids"] for row in encoded]
    labels = np.array([row["labels"] for row in encoded])
    logits = trainer.predict(encoded).predictions[: len(labels)]
    measure = partial(measure_logits, problem_type, true=true)
    return make_split(scores, ids, logits, labels, measure)


def add_linear_model(trainer: Trainer) -> dict[str, Metrics]:
    """Add a linear model on n-grams to a classifier of this package, as `roformer-lite train
    classify` does.

    It is fitted to `trainer.train_dataset`. `trainer.eval_dataset` determines the weights of the
    linear model and the encoder, or whether just one of the two is used.

    Args:
        trainer: Any `Trainer` of transformers after its training, with `input_ids` and `labels` in
            the rows of both datasets and the tokenizer as `processing_class`.

    Returns:
        The metrics of the encoder and of the linear model on their own on `eval_dataset`. If only
        the encoder is used, the result is empty.

    Raises:
        InputError: if the model or its tokenizer does not support a linear model.
    """
    model: Any = trainer.model
    # Any kind of dataset may be given.
    train: Any = trainer.train_dataset
    validation: Any = trainer.eval_dataset
    problem_type = problem_type_of(model.config)
    tokens = token_bytes(trainer.processing_class)
    if tokens is None or not hasattr(model, "add_text_scores"):
        raise InputError(
            f"{type(model).__name__} with this tokenizer does not support a linear model"
        )
    ids = [row["input_ids"] for row in train]
    labels = np.array([row["labels"] for row in train])
    model.add_text_scores(None)
    scores = fit_document_scores(tokens, ids, labels, model.config)
    true = np.array([row["labels"] for row in validation])
    split = split_of(trainer, scores, validation, problem_type, true)
    parts, _ = add_fitted_scores(model, scores, {"validation": split}, MAIN_METRICS[problem_type])
    return {name: by_split["validation"] for name, by_split in parts.items()}


def problem_type_of(config: PreTrainedConfig) -> str:
    """The problem type of a saved model. If its configuration does not contain one, it follows from
    the number of labels."""
    if config.problem_type:
        return config.problem_type
    return REGRESSION if config.num_labels == 1 else SINGLE


def label_text(label: str) -> str:
    """A label in a line of output, whose columns are separated by tabs."""
    return " ".join(label.splitlines()).replace("\t", " ")


def warn_of_equal_numbers(labels: Iterable[str]) -> None:
    """Warn about labels that are the same number in two spellings."""
    known: dict[float, str] = {}
    for label in labels:
        number = number_of(label)
        if number is None:
            continue
        other = known.setdefault(number, label)
        if other != label:
            logger.warning("%s and %s are the same number, but two labels", other, label)


def is_whole_number(value: Any) -> bool:
    """Whether a value is a float without a fraction, such as 1.0."""
    return isinstance(value, float) and value.is_integer()


def numbers_first(label: str) -> tuple[bool, int, str]:
    """A sort key that puts numbers first, in the order of their values."""
    if label.isdecimal():
        return False, int(label), label
    return True, 0, label
