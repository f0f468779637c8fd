"""The task classify: a text, or a pair of texts, gets a label, several labels, or a number."""

from __future__ import annotations

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
    SchedulerType,
)
from transformers.configuration_utils import PreTrainedConfig

from hf_roformer_lite.model.heads_roformer_lite import IGNORE_INDEX, sequence_loss

from ..data.data_files import Row, number_of, text_of, value_of
from ..errors import InputError
from ..evaluate.metrics import (
    Metrics,
    calibration_error,
    classification_metrics,
    mcnemar,
    regression_metrics,
    threshold_for,
)
from ..evaluate.report import LabelReport, Outcome, report_of_classes, report_of_sets
from .base import Task
from .labels import LabelData, LabelMetrics, LabelModel
from .task_arguments import ClassifyDataArguments

if TYPE_CHECKING:
    from pathlib import Path

    from datasets import Dataset, DatasetDict
    from transformers import EvalPrediction, Trainer, TrainingArguments
    from transformers.modeling_outputs import SequenceClassifierOutput

    from hf_roformer_lite.model.text_features import (
        RoFormerLiteDocumentScores,
        RoFormerLiteTextScores,
    )

    from ..evaluate.baselines import Baselines
    from ..train.run import Run
    from ..train.text_scores_weights import Split

SINGLE, MULTI, REGRESSION = (
    "single_label_classification",
    "multi_label_classification",
    "regression",
)
_NAMES = {
    SINGLE: ("accuracy", "macro_f1"),
    MULTI: ("accuracy", "macro_f1", "micro_f1"),
    REGRESSION: ("pearson", "spearman", "mse"),
}
_MAIN = {SINGLE: "accuracy", MULTI: "micro_f1", REGRESSION: "pearson"}
_RELIABILITY_FILE = "reliability.png"
_NEVER = 2.0  # a threshold that no score reaches
_ABOUT_NUMBERS = (
    "Pearson and Spearman are correlations from -1 to 1; loss and mse are mean squared errors."
)
_ABOUT_LABELS = (
    "Accuracy and F1 are fractions from 0 to 1; macro F1 is the mean over the labels, be they frequent or rare. The "
    "loss is the cross-entropy in nats."
)


class ClassifyData(LabelData):
    """Rows of a `text`, perhaps a `text_pair`, and `labels`, or a `number`."""

    label_word = "label"
    args: ClassifyDataArguments

    def __init__(self, args: ClassifyDataArguments):
        super().__init__(args)
        self.problem_type = args.problem_type or (MULTI if args.label_separator else None)
        self.threshold: float | None = None  # of scores, below which `predict` gives no label

    def select_columns(self, row: Row) -> Row:
        raw = {"text": text_of(row, self.args.text_column, "text_column"), "origin": row["origin"]}
        if self.args.text_pair_column:
            raw["text_pair"] = text_of(row, self.args.text_pair_column, "text_pair_column")
        column = self.args.label_column
        label = value_of(row, column, "label_column")
        if self.problem_type is None:
            self.problem_type = MULTI if isinstance(label, list) else SINGLE
        if self.problem_type == REGRESSION:
            number = number_of(label)
            self.require(
                number is not None,
                row,
                f"column {column!r} must be a number for regression, not {label!r}",
            )
            return {**raw, "number": number}
        if isinstance(label, str) and self.args.label_separator and self.problem_type == MULTI:
            label = [
                part.strip() for part in label.split(self.args.label_separator) if part.strip()
            ]
        names = label if isinstance(label, list) else [label]
        are_names = all(isinstance(name, (str, int)) for name in names)
        self.require(are_names, row, f"column {column!r} must be a label, not {label!r}")
        names = [str(name).strip() for name in names]
        self.require(all(names), row, f"column {column!r} is empty")
        self.require(
            self.problem_type == MULTI or len(names) == 1,
            row,
            f"one label is needed, not {label!r}",
        )
        return {**raw, "labels": names}

    @property
    def fewest_rows(self) -> int:
        """Pairs of all of few rows teach a sentence encoder more than a tenth of them tells about
        its checkpoints."""
        from ..train.linear_probe import CONTRASTED_ROWS

        return (
            CONTRASTED_ROWS
            if self.learns_from_few and self.problem_type == SINGLE
            else super().fewest_rows
        )

    def is_empty(self, row: Row) -> bool:
        return not row["text"] or row.get("text_pair") == ""

    def texts(self, rows: Iterable[Row]) -> Iterator[str]:
        return (row[name] for row in rows for name in ("text", "text_pair") if name in row)

    def inspect(self, rows: DatasetDict) -> None:
        if self.problem_type != REGRESSION:
            names = set(chain.from_iterable(rows["train"]["labels"]))
            self.set_labels(sorted(names, key=_numbers_first))
        if self.args.min_precision is not None and "validation" not in rows:
            raise InputError(
                f"--min_precision {self.args.min_precision}: there are no validation data to find the threshold on; "
                "give --validation_file or a --validation_fraction"
            )
        for name in ("class_weights", "min_precision"):
            value = getattr(self.args, name)
            if value is not None and self.problem_type != SINGLE:
                raise InputError(
                    f"--{name} {value} is for rows with one label, not for {self.problem_type}; leave it out"
                )

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

    def config_labels(self) -> list[str]:
        return ["value"] if self.problem_type == REGRESSION else super().config_labels()

    def settings(self) -> dict[str, Any]:
        pairs, separator = self.args.text_pair_column is not None, self.args.label_separator or ","
        found = {"pairs": pairs, **super().settings(), "label_separator": separator}
        if self.args.min_precision is None:
            return found
        return {**found, "threshold": _NEVER if self.threshold is None else self.threshold}

    def answers(self, rows: Dataset) -> np.ndarray:
        """What is right for each row: a number, a class `(rows,)`, or 0 and 1 for each label
        `(rows, labels)`. Labels that the training data lack have numbers beyond the others."""
        if self.problem_type == REGRESSION:
            return np.array(rows["number"])
        numbers = {label: number for number, label in enumerate(self.with_foreign(rows["labels"]))}
        if self.problem_type == SINGLE:
            return np.array([numbers[names[0]] for names in rows["labels"]])
        answers = np.zeros((len(rows), len(numbers)), dtype=int)
        for row, names in zip(answers, rows["labels"], strict=True):
            row[[numbers[name] for name in names]] = 1
        return answers

    def encode(self, rows: Dataset, training: bool) -> Dataset:
        if self.problem_type != REGRESSION:
            self.note_foreign(rows["labels"])

        def target(names: list[str]) -> int | list[float]:
            if self.problem_type == SINGLE:
                return self.labels.get(names[0], IGNORE_INDEX)
            return [float(label in names) for label in self.labels]

        def tokenize(batch: dict[str, list]) -> dict[str, list]:
            inputs = self.tokenizer(
                batch["text"],
                batch.get("text_pair"),
                truncation=True,
                max_length=self.args.max_length,
            )
            if self.problem_type == REGRESSION:
                return {**inputs, "labels": batch["number"]}
            return {**inputs, "labels": [target(names) for names in batch["labels"]]}

        return rows.map(tokenize, batched=True, remove_columns=rows.column_names, desc="Encoding")

    def collator(self, model: PreTrainedModel) -> DataCollatorWithPadding:
        return DataCollatorWithPadding(self.tokenizer)


class ClassifyModel(LabelModel):
    """An encoder with a head for labels, and a linear model on n-grams beside it."""

    architecture = "ForSequenceClassification"
    auto_model = AutoModelForSequenceClassification
    data: ClassifyData
    may_end_fitted = False  # whether the training is over once the head is fitted

    def config_fields(self) -> dict[str, Any]:
        return {"problem_type": self.data.problem_type, **super().config_fields()}

    def learns_from_pairs(self, args: TrainingArguments, train: Dataset) -> bool:
        """Whether the encoder learns the labels from pairs of rows first, which are few."""
        from ..train.linear_probe import CONTRASTED_ROWS

        is_new = (
            self.has_new_head
            and self.has_own_class
            and self.data.args.fit_head
            and args.world_size == 1
        )
        return is_new and self.data.problem_type == SINGLE and len(train) < CONTRASTED_ROWS

    def prepare_head(self, trainer: Trainer, train: Dataset) -> bool:
        if self.learns_from_pairs(trainer.args, train):
            from ..train.linear_probe import contrast

            print(
                "The rows are few: the encoder learns the labels from pairs of them first",
                file=sys.stderr,
            )
            contrast(trainer, train)
        is_fitted = super().prepare_head(trainer, train)
        if self.may_end_fitted and is_fitted:
            print(
                "The fitted head stays as it is, as there are no validation data to tell whether training on helps",
                file=sys.stderr,
            )
            trainer.args.max_steps = trainer.args.warmup_steps = 1  # with a learning rate of 0
            trainer.args.lr_scheduler_type = SchedulerType.LINEAR
        if self.data.args.teacher is not None:
            from ..train.teacher import open_teacher, take_over_tokens

            take_over_tokens(
                trainer.model.get_input_embeddings(), open_teacher(self.data.args.teacher)
            )
        return is_fitted

    def fit_text_scores(
        self, tokens: torch.Tensor, train: Dataset, config: PreTrainedConfig
    ) -> RoFormerLiteDocumentScores:
        from sklearn.utils.class_weight import compute_sample_weight

        from ..train.text_scores_fit import fit_document_scores

        answers, kind = np.array(train["labels"]), self.data.args.class_weights
        importance = compute_sample_weight(kind, answers) if kind else None
        return fit_document_scores(tokens, train["input_ids"][:], answers, config, importance)

    def learn_validation_rows(self, trainer: Trainer, encoded: DatasetDict) -> None:
        from datasets import concatenate_datasets

        from ..train.text_scores_weights import weighted
        from ..train.token_bytes import token_bytes

        if self.text_weights:
            known = [
                i
                for i, label in enumerate(encoded["validation"]["labels"])
                if label != IGNORE_INDEX
            ]
            rows = concatenate_datasets([encoded["train"], encoded["validation"].select(known)])
            scores = self.fit_text_scores(
                token_bytes(self.data.tokenizer), rows, trainer.model.config
            )
            trainer.model.add_text_scores(weighted(scores, self.text_weights))


class ClassifyMetrics(LabelMetrics):
    """Accuracy and F1 of scikit-learn, or correlations."""

    data: ClassifyData
    model: ClassifyModel

    def __init__(self, data: ClassifyData, model: ClassifyModel):
        super().__init__(data, model)
        # By split, of models with one label for each row: the score of each answer and whether it
        # is right; and whether those of each baseline are.
        self.scored: dict[str, tuple[np.ndarray, np.ndarray]] = {}
        self.baselines_right: dict[str, dict[str, np.ndarray]] = {}

    @property
    def names(self) -> Sequence[str]:
        return _NAMES[self.data.problem_type]

    @property
    def main(self) -> str:
        return "macro_f1" if self.data.args.class_weights else _MAIN[self.data.problem_type]

    def compute(self, prediction: EvalPrediction, rows: Dataset) -> Metrics:
        logits, labels = (
            side[: len(rows)] for side in (prediction.predictions, prediction.label_ids)
        )
        found = measure_logits(self.data.problem_type, logits, self.data.answers(rows))
        if self.data.problem_type == SINGLE and (labels == IGNORE_INDEX).any():
            # That of the rows whose label the model has; the Trainer's is not a number where a
            # batch has none.
            found["loss"] = sequence_loss(
                torch.from_numpy(logits), torch.from_numpy(labels), SINGLE
            ).item()
        return found

    def measure(
        self, trainer: Trainer, split: str, rows: Dataset, encoded: Dataset
    ) -> tuple[Metrics, EvalPrediction]:
        found, prediction = super().measure(trainer, split, rows, encoded)
        if self.data.problem_type == SINGLE:
            scores, best = (
                torch.from_numpy(prediction.predictions[: len(rows)]).float().softmax(-1).max(-1)
            )
            self.scored[split] = scores.numpy(), best.numpy() == self.data.answers(rows)
            if split == "validation" and self.data.args.min_precision:
                self.data.threshold = threshold_for(
                    *self.scored[split], self.data.args.min_precision
                )
                if self.data.threshold is None:
                    print(
                        f"{self._no_threshold()} `predict --threshold` chooses another one",
                        file=sys.stderr,
                    )
        return found, prediction

    def paired_tests(self, split: str) -> dict[str, float]:
        if self.main != "accuracy" or split not in self.scored:
            return {}
        return {
            name: mcnemar(self.scored[split][1], right[split])
            for name, right in self.baselines_right.items()
        }

    def outcomes(
        self, prediction: EvalPrediction, rows: Dataset, encoded: Dataset
    ) -> list[Outcome]:
        logits = torch.from_numpy(prediction.predictions[: len(rows)]).float()  # (rows, labels)
        return [self._outcome(row, scores) for row, scores in zip(rows, logits, strict=True)]

    def _outcome(self, row: Row, logits: torch.Tensor) -> Outcome:
        texts = {name: row[name] for name in ("text", "text_pair") if name in row}
        if self.data.problem_type == REGRESSION:
            true, value = row["number"], logits.item()
            return Outcome(
                row["origin"],
                {**texts, "label": true, "prediction": round(value, 4)},
                abs(true - value),
            )
        names, true = list(self.data.labels), row["labels"]
        if self.data.problem_type == SINGLE:
            score, best = logits.softmax(-1).max(-1)
            predicted, mistake = [names[best]], score.item() * (names[best] != true[0])
            answer = {"prediction": predicted[0], "score": round(score.item(), 4)}
            return Outcome(
                row["origin"], {**texts, "label": true[0], **answer}, mistake, true, predicted
            )
        predicted = [names[number] for number in (logits > 0).nonzero().flatten().tolist()]
        separator = self.data.args.label_separator or ","
        shown = {"label": separator.join(true), "prediction": separator.join(predicted)}
        return Outcome(
            row["origin"], {**texts, **shown}, len(set(true) ^ set(predicted)), true, predicted
        )

    def report(self, outcomes: Sequence[Outcome]) -> LabelReport | None:
        true, predicted = (
            [outcome.true for outcome in outcomes],
            [outcome.predicted for outcome in outcomes],
        )
        if self.data.problem_type == REGRESSION:
            return None
        if self.data.problem_type == MULTI:
            return report_of_sets(true, predicted, self.data.with_foreign(true))
        return report_of_classes(
            [*chain(*true)], [*chain(*predicted)], self.data.with_foreign(true)
        )

    def split_of(
        self, trainer: Trainer, scores: RoFormerLiteTextScores, rows: Dataset, encoded: Dataset
    ) -> Split:
        return _split_of(trainer, scores, encoded, self.data.problem_type, self.data.answers(rows))

    def baselines(self, rows: DatasetDict, encoded: DatasetDict) -> Baselines:
        from ..evaluate.baselines import classification_baselines

        examples = {
            split: (
                ["\t".join(self.data.texts([row])) for row in rows[split]],
                self.data.answers(rows[split]),
            )
            for split in rows
        }
        train = examples.pop("train")
        metrics, answers = classification_baselines(self.data.problem_type, train, examples)
        if self.data.problem_type == SINGLE:
            for name, by_split in answers.items():
                self.baselines_right[name] = {
                    split: own == examples[split][1] for split, own in by_split.items()
                }
        return metrics

    def notes(self, model: PreTrainedModel) -> list[str]:
        found = [_ABOUT_NUMBERS if self.data.problem_type == REGRESSION else _ABOUT_LABELS]
        if self.data.foreign:
            found.append(self.data.foreign_sentence(self.data.foreign))
        if self.model.text_weights:
            found.append(
                "After the validation metrics were measured, the linear model was fitted again, to the training and "
                "the validation rows together."
            )
        return [*found, *self._about_scores()]

    def draw(self, folder: Path) -> None:
        from ..evaluate.confusion_picture import draw_reliability

        if self.scored:
            draw_reliability(*list(self.scored.values())[-1], folder / _RELIABILITY_FILE)

    def _no_threshold(self) -> str:
        return (
            f"No score is so high that {self.data.args.min_precision:g} of the answers to the validation data were "
            "right: `predict` gives no label."
        )

    def _about_scores(self) -> list[str]:
        """What the scores of the answers to the last split are worth."""
        if not self.scored:
            return []
        split, (scores, right) = list(self.scored.items())[-1]
        error, wanted = calibration_error(scores, right), self.data.args.min_precision
        found = [
            f"A score of `predict` is {error:.3f} from the fraction of answers that are right, on average "
            f"(expected calibration error on the {split} data). ![Fraction of right answers]({_RELIABILITY_FILE})"
        ]
        if wanted and self.data.threshold is None:
            found.append(self._no_threshold())
        elif wanted:
            sure = scores >= self.data.threshold
            precision = f", of which {right[sure].mean():.3f} are right" if sure.any() else ""
            found.append(
                f"Below a score of {self.data.threshold:.4f}, chosen on the validation data for a precision of "
                f"{wanted:g}, `predict` gives no label. On the {split} data it answers {sure.mean():.3f} of the rows"
                f"{precision}."
            )
        return found


class ClassifyTask(Task):
    """A text, or a pair, gets a label, several, or a number."""

    arguments = ClassifyDataArguments
    pipeline_tag = "text-classification"
    data_class, model_class, metrics_class = ClassifyData, ClassifyModel, ClassifyMetrics

    def trainer_parts(
        self,
        run: Run,
        args: TrainingArguments,
        model: PreTrainedModel,
        rows: DatasetDict,
        encoded: DatasetDict,
    ) -> dict[str, Any]:
        from ..train.linear_probe import ends_fitted

        parts = super().trainer_parts(run, args, model, rows, encoded)
        if self.args.class_weights:
            from sklearn.utils.class_weight import compute_class_weight

            labels = np.array(encoded["train"]["labels"])
            weights = compute_class_weight(
                self.args.class_weights, classes=np.arange(model.num_labels), y=labels
            )
            smoothing = args.label_smoothing_factor
            parts["compute_loss_func"] = partial(
                weighted_loss, torch.from_numpy(weights).float(), smoothing
            )
        is_pairs_only = "validation" not in encoded and self.model.learns_from_pairs(
            args, encoded["train"]
        )
        self.model.may_end_fitted = is_pairs_only and ends_fitted(run, args)
        return parts


def weighted_loss(
    weights: torch.Tensor,
    smoothing: float,
    outputs: SequenceClassifierOutput,
    labels: torch.Tensor,
    num_items_in_batch: int | torch.Tensor | None = None,
) -> torch.Tensor:
    """A `compute_loss_func` of the Trainer: cross-entropy in which each row counts by the weight of
    its label, `(labels,)`. Where it is only measured, all rows count alike."""
    logits = outputs.logits.float()
    options = (
        {"weight": weights.to(logits.device), "label_smoothing": smoothing}
        if logits.requires_grad
        else {}
    )
    total = torch.nn.functional.cross_entropy(logits, labels, reduction="sum", **options)
    return total / (
        (labels != IGNORE_INDEX).sum() if num_items_in_batch is None else num_items_in_batch
    )


def measure_logits(problem_type: str, logits: np.ndarray, answers: np.ndarray) -> Metrics:
    """Metrics of logits `(rows, labels)`; `answers` are numbers, classes `(rows,)`, or 0 and 1 for
    each label."""
    if problem_type == REGRESSION:
        return regression_metrics(logits.squeeze(-1), answers)
    predicted = (logits > 0).astype(int) if problem_type == MULTI else logits.argmax(-1)
    return classification_metrics(predicted, answers.astype(int))


def _split_of(
    trainer: Trainer,
    scores: RoFormerLiteTextScores,
    encoded: Sequence[Row],
    problem_type: str,
    answers: np.ndarray,
) -> Split:
    """`answers` are measured by, with labels that the model lacks; it is weighed by the labels of
    `encoded`."""
    from ..train.text_scores_weights import make_split

    ids, true = [row["input_ids"] for row in encoded], np.array([row["labels"] for row in encoded])
    logits = trainer.predict(encoded).predictions[: len(true)]
    return make_split(
        scores, ids, logits, true, partial(measure_logits, problem_type, answers=answers)
    )


def add_linear_model(trainer: Trainer) -> dict[str, Metrics]:
    """Add to a classifier of this package what `roformer-lite train classify` adds: a linear model
    on n-grams.

    It is fitted to `trainer.train_dataset`; `trainer.eval_dataset` decides how much it counts
    beside the encoder, or whether one of the two is better alone.

    Args:
        trainer: After its training. Any `Trainer` of transformers, with `input_ids` and `labels` in
            the rows of both datasets and the tokenizer as `processing_class`.

    Returns:
        Metrics on `eval_dataset` of the encoder and of the linear model, each alone; nothing when
        the encoder alone is best, and the model stays as it is.
    """
    from ..train.text_scores_fit import fit_document_scores
    from ..train.text_scores_weights import add_fitted_scores
    from ..train.token_bytes import token_bytes

    model, problem_type, train = (
        trainer.model,
        problem_type_of(trainer.model.config),
        trainer.train_dataset,
    )
    tokens = token_bytes(trainer.processing_class)
    if tokens is None or not hasattr(model, "add_text_scores"):
        raise InputError(
            f"{type(model).__name__} with this tokenizer can't read its text for a linear model"
        )
    ids, answers = [row["input_ids"] for row in train], np.array([row["labels"] for row in train])
    model.add_text_scores(None)
    scores = fit_document_scores(tokens, ids, answers, model.config)
    measured = np.array([row["labels"] for row in trainer.eval_dataset])
    split = _split_of(trainer, scores, trainer.eval_dataset, problem_type, measured)
    parts, _ = add_fitted_scores(model, scores, {"validation": split}, _MAIN[problem_type])
    return {name: by_split["validation"] for name, by_split in parts.items()}


def problem_type_of(config: PreTrainedConfig) -> str:
    """What the head of a saved model gives; with a checkpoint that does not say it, the number of
    labels does."""
    return config.problem_type or (REGRESSION if config.num_labels == 1 else SINGLE)


def _numbers_first(label: str) -> tuple[bool, int, str]:
    """Sorts numbers by their value, and before all other labels."""
    return not label.isdecimal(), int(label) if label.isdecimal() else 0, label
