"""The task classify: a text, or a pair of texts, gets a label, several labels, or a number."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch
from transformers import (
    AutoModelForSequenceClassification,
    DataCollatorWithPadding,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.configuration_utils import PreTrainedConfig

from hf_roformer_lite.model.losses import IGNORE_INDEX

from ..baseline.join import Join, choose_join
from ..baseline.ngrams import NgramClassifier
from ..data.data_files import Row
from ..data.sampling import sample_rows
from ..errors import InputError, check_number
from ..measuring.baselines import (
    Examples,
    Predictions,
    classification_baselines,
    regression_baselines,
)
from ..measuring.metrics import (
    Metrics,
    classification_metrics,
    regression_metrics,
)
from ..measuring.report import (
    Outcome,
    report_of_labels,
)
from ..measuring.significance import (
    Measured,
    correlation,
    mean,
    micro_f1,
)
from ..options.tasks import ClassifyDataArguments
from .base import (
    Answer,
    FittedBaseline,
    Shown,
    significant,
)
from .classify_rows import (
    MULTI,
    REGRESSION,
    SINGLE,
    ClassifyReader,
    numbers_first,
    problem_type_in,
)
from .classify_scores import (
    DEFAULT_THRESHOLD,
    best_threshold,
    joint_logits,
    losses_of_rows,
)
from .labels import LabelRecipe, labels_of
from .loaded_model import Input, LoadedModel, line_of, window_options

if TYPE_CHECKING:
    from datasets import Dataset, DatasetDict
    from transformers import EvalPrediction

METRIC_NAMES = {
    SINGLE: ("accuracy", "macro_f1"),
    MULTI: ("micro_f1", "accuracy", "macro_f1"),
    REGRESSION: ("pearson", "spearman", "mse"),
}
# `predict` writes this instead of a label below the threshold.
NO_LABEL = "-"
# The factors of the distances of a support vector machine that are tried.
SCALES = tuple(2 ** (number / 2) for number in range(9))
DEFAULT_SCALE = 4.0
# The weight of the encoder is chosen on at most this many rows times labels.
MAX_SCORES = 5_000_000


@dataclass(frozen=True)
class Classify(LabelRecipe):
    """A text or a pair of texts gets a label, several labels, or a number.

    The model is an encoder with a head for labels. A linear support vector machine on n-grams may
    join its answer.

    Args:
        problem_type: The type of the problem, with transformers' name.
        threshold: The lowest score of the labels of a row that may have several. None stands for
            0.5.
    """

    options_class = ClassifyDataArguments
    reader_class = ClassifyReader
    pipeline_tag = "text-classification"
    architecture = "ForSequenceClassification"
    auto_model = AutoModelForSequenceClassification
    label_word = "label"
    baseline_class = NgramClassifier

    options: ClassifyDataArguments
    problem_type: str = SINGLE
    threshold: float | None = None

    # What is found in the data or in a saved model.

    @classmethod
    def inspect(cls, options: ClassifyDataArguments, rows: DatasetDict) -> Self:
        problem_type = problem_type_in(options, rows)
        if options.join_baseline and problem_type == REGRESSION:
            raise InputError(
                "--join_baseline: no baseline can join the answer of a regression; leave it out"
            )
        found = cls(options, problem_type=problem_type)
        if problem_type == REGRESSION:
            return found
        names = sorted(set(chain.from_iterable(rows["train"]["labels"])), key=numbers_first)
        separator = found.label_separator if problem_type == MULTI else None
        cls.check_labels(names, separator)
        return replace(found, labels=cls.numbered(names)).report_unseen_labels(rows)

    @classmethod
    def of_model(cls, options: Any, config: PreTrainedConfig, settings: dict[str, Any]) -> Self:
        problem_type = problem_type_of(config)
        # Checkpoints of other programs do not say whether they take pairs.
        takes_pairs = settings.get("pairs", options.text_pair_column is not None)
        column = options.text_pair_column
        if column is not None and not takes_pairs:
            raise InputError(
                f"--text_pair_column {column}: this model takes single texts, not pairs"
            )
        if takes_pairs and column is None:
            options = replace(options, text_pair_column="text_pair")
        check_number("threshold", settings.get("threshold"), minimum=0, maximum=1)
        separator = options.label_separator or ","
        return cls(
            replace(options, problem_type=problem_type, label_separator=separator),
            labels={} if problem_type == REGRESSION else cls.numbered(labels_of(config)),
            problem_type=problem_type,
            threshold=settings.get("threshold"),
        )

    @property
    def smooths_labels(self) -> bool:
        return self.problem_type == SINGLE

    @property
    def takes_pairs(self) -> bool:
        return self.options.text_pair_column is not None

    @property
    def label_separator(self) -> str:
        """The text between several labels of a row."""
        return self.options.label_separator or ","

    def labels_of_items(self, rows: Dataset) -> Iterable[Sequence[str]]:
        if self.problem_type == REGRESSION:
            return []
        return rows["labels"]

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
        if self.threshold is not None:
            found["threshold"] = self.threshold
        return found

    # Encoding.

    def encode_batch(
        self, batch: dict[str, list], tokenizer: PreTrainedTokenizerBase, training: bool
    ) -> dict[str, Any]:
        inputs = tokenizer(batch["text"], batch.get("text_pair"), truncation=True)
        labels: Any
        if self.problem_type == REGRESSION:
            labels = batch["number"]
        elif self.problem_type == SINGLE:
            labels = [self.labels.get(names[0], IGNORE_INDEX) for names in batch["labels"]]
        else:
            labels = self.numbers_of(batch["labels"], list(self.labels)).astype(np.float32)
        return {**inputs, "labels": labels}

    def collator(
        self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase
    ) -> DataCollatorWithPadding:
        return DataCollatorWithPadding(tokenizer)

    # The model, and its training.

    def config_fields(self) -> dict[str, Any]:
        return {**super().config_fields(), "problem_type": self.problem_type}

    def why_new_head(self, config: PreTrainedConfig) -> str:
        is_number = config.num_labels == 1 and problem_type_of(config) == REGRESSION
        if is_number and self.problem_type == REGRESSION:
            # Other programs give the number another name.
            return self.why_no_head(config)
        return super().why_new_head(config)

    # Choosing a checkpoint.

    @property
    def metric_names(self) -> Sequence[str]:
        return METRIC_NAMES[self.problem_type]

    def choose(
        self, prediction: EvalPrediction, rows: Dataset, tokenizer: PreTrainedTokenizerBase
    ) -> Metrics:
        answers = self.answers_of_logits(np.asarray(prediction.predictions)[: len(rows)])
        recipe = self.tuned(answers, rows)
        return recipe.measured(recipe.predicted(answers), rows).metrics

    def tuned(self, answers: list[Answer], rows: Dataset) -> Self:
        """The task with the best threshold for answers, if a row may have several labels."""
        if self.problem_type != MULTI:
            return self
        scores = np.array([[answer[label] for label in self.labels] for answer in answers])
        return replace(self, threshold=best_threshold(scores, self.truth(rows)))

    def with_threshold(self, saved: LoadedModel, rows: Dataset | None, batch_size: int) -> Self:
        if rows is None or self.problem_type != MULTI:
            return self
        return self.tuned(self.answers_for(saved, rows, batch_size), rows)

    # Answering.

    @property
    def answer_options(self) -> Sequence[str]:
        options = [] if self.problem_type == REGRESSION else ["top_k", "threshold"]
        if self.takes_pairs:
            options.append("text_pair_column")
        return options

    def check_options(self, config: PreTrainedConfig, given: dict[str, Any]) -> None:
        super().check_options(config, given)
        if self.problem_type == REGRESSION and config.num_labels != 1:
            raise InputError(
                f"this model gives {config.num_labels} numbers, but a regression has only one here"
            )
        if given.get("top_k", 1) > config.num_labels:
            raise InputError(f"--top_k {given['top_k']}: this model has {config.num_labels} labels")

    def text_columns(self) -> list[str]:
        columns = (self.options.text_column, self.options.text_pair_column)
        return [column for column in columns if column is not None]

    def truncates(self, positions: int | None, tokenizer: PreTrainedTokenizerBase) -> bool:
        """A table of positions limits what a model can read, so it reads windows. For pairs, and
        with tokenizers written in Python, it reads only the beginning."""
        return positions is None or not tokenizer.is_fast or self.takes_pairs

    def answer(
        self, saved: LoadedModel, inputs: list[Input], options: dict[str, Any]
    ) -> list[Answer]:
        """The score of each label with the highest first, or the number as `value`. If a baseline
        joins the answer, these are the joint scores."""
        logits = np.stack(self.encoder_logits(saved, inputs))
        if saved.joined is not None:
            texts = [line_of(given) for given in inputs]
            distances = saved.joined.model.scores(texts)
            logits = joint_logits(saved.joined.join, logits, distances)
        return self.answers_of_logits(logits)

    def answers_of_logits(self, logits: np.ndarray) -> list[Answer]:
        """The score of each label with the highest first, or the number.

        Args:
            logits: `(rows, labels)`.
        """
        if self.problem_type == REGRESSION:
            return [{"value": value} for value in logits[:, 0].tolist()]
        joint = torch.from_numpy(logits)
        scores = joint.sigmoid() if self.problem_type == MULTI else joint.softmax(dim=-1)
        answers = []
        for own in scores.tolist():
            by_label = dict(zip(self.labels, own, strict=True))
            answers.append(dict(sorted(by_label.items(), key=lambda item: -item[1])))
        return answers

    def encoder_logits(self, saved: LoadedModel, inputs: list[Input]) -> list[np.ndarray]:
        """The logits of the encoder for each input, `(labels,)`. Those of a text that is read in
        windows are the mean over its windows."""
        options = window_options(saved.tokenizer)
        if self.truncates(saved.positions, saved.tokenizer):
            options = {"truncation": True}
        encoded = saved.encoded(inputs, **options)
        numbers = encoded.pop("overflow_to_sample_mapping", range(len(inputs)))
        logits = saved.logits(encoded, batch_size=len(inputs))
        sums = np.zeros((len(inputs), len(logits[0])))
        np.add.at(sums, list(numbers), logits)
        return list(sums / np.bincount(numbers)[:, np.newaxis])

    def choose_join(
        self,
        saved: LoadedModel,
        baseline: NgramClassifier,
        rows: Dataset | None,
        batch_size: int,
    ) -> Join:
        known = None if rows is None else self.with_known_labels(rows)
        if not known:
            return Join(DEFAULT_SCALE)
        num_rows = max(1, MAX_SCORES // len(self.labels))
        chosen = known.select(sample_rows(range(len(known)), num_rows))
        texts, answers = self.examples(chosen)
        found = saved.in_batches(
            [self.input_of_row(row) for row in chosen],
            batch_size,
            answer=partial(self.encoder_logits, saved),
        )
        logits = np.stack(found)
        distances = baseline.scores(texts)
        return choose_join(
            lambda join: losses_of_rows(joint_logits(join, logits, distances), answers),
            SCALES,
            DEFAULT_SCALE,
        )

    def answer_columns(self, options: dict[str, Any]) -> list[str]:
        if self.problem_type == REGRESSION:
            return ["value"]
        if "top_k" not in options:
            return ["label", "score"]
        places = range(1, options["top_k"] + 1)
        return [f"{name}_{place}" for place in places for name in ("label", "score")]

    def show(self, answer: Answer, options: dict[str, Any]) -> Shown:
        """`label TAB score`, or several of them with `top_k`. If a text can have several labels,
        these are the ones with a score of at least the `threshold`. A regression shows its number.

        """
        if self.problem_type == REGRESSION:
            value = significant(answer["value"])
            return Shown(line=str(value), columns={"value": value})
        top_k = options.get("top_k")
        if self.problem_type == MULTI and top_k is None:
            return self.show_all(answer, options)
        # Trainings of earlier versions chose a threshold for rows with one label, too.
        threshold = options.get("threshold", 0 if top_k else self.threshold or 0)
        found: list[str | float] = []
        for label, score in list(answer.items())[: top_k or 1]:
            found += [label if score >= threshold else NO_LABEL, round(score, 4)]
        texts = [label_text(value) if isinstance(value, str) else f"{value:.4f}" for value in found]
        columns = dict(zip(self.answer_columns(options), found, strict=True))
        return Shown(line="\t".join(texts), columns=columns)

    def show_all(self, answer: Answer, options: dict[str, Any]) -> Shown:
        """The labels of a text that can have several."""
        chosen = self.labels_in(answer, options.get("threshold"))
        label = self.label_separator.join(chosen)
        if not chosen and "threshold" in options:
            label = NO_LABEL
        scores = self.label_separator.join(f"{answer[name]:.4f}" for name in chosen)
        return Shown(line=label_text(label), columns={"label": label, "score": scores})

    def labels_in(self, answer: Answer, threshold: float | None = None) -> list[str]:
        """The labels in an answer, in the order of their numbers."""
        if self.problem_type == SINGLE:
            return [next(iter(answer))]
        for default in (self.threshold, DEFAULT_THRESHOLD):
            threshold = default if threshold is None else threshold
        return [label for label in self.labels if answer[label] >= threshold]

    # Measuring.

    def truth(self, rows: Dataset) -> np.ndarray:
        """The true numbers or classes `(rows,)`, or zeros and ones `(rows, labels)`. Labels that do
        not occur in the training data have numbers above the others."""
        if self.problem_type == REGRESSION:
            return np.array(rows["number"])
        return self.numbers_of(rows["labels"], self.with_unseen_labels(rows["labels"]))

    def numbers_of(self, labels: Iterable[Sequence[str]], known: Sequence[str]) -> np.ndarray:
        """The labels of each row as classes, or as zeros and ones for all `known` labels."""
        if self.problem_type == MULTI:
            return np.array([[int(label in names) for label in known] for names in labels])
        numbers = {label: number for number, label in enumerate(known)}
        return np.array([numbers[names[0]] for names in labels])

    def predicted(self, answers: list[Answer]) -> np.ndarray:
        if self.problem_type == REGRESSION:
            return np.array([answer["value"] for answer in answers])
        found = [self.labels_in(answer) for answer in answers]
        return self.numbers_of(found, list(self.labels))

    def measured(self, predicted: np.ndarray, rows: Dataset) -> Measured:
        """The metrics of numbers or classes, `(rows,)`, or of zeros and ones for the labels of the
        model, `(rows, labels)`."""
        true = self.truth(rows)
        if self.problem_type == REGRESSION:
            by_row = correlation(predicted, true, of_ranks=False)
            return Measured(regression_metrics(predicted, true), by_row)
        metrics = classification_metrics(predicted, true)
        if self.problem_type == SINGLE:
            return Measured(metrics, mean(predicted == true))
        # The model cannot predict labels that the training data lack.
        hits = predicted * true[:, : predicted.shape[1]]
        by_row = micro_f1(hits.sum(axis=1), predicted.sum(axis=1), true.sum(axis=1))
        return Measured(metrics, by_row)

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

    def report(self, outcomes: Sequence[Outcome]) -> dict[str, Metrics]:
        if self.problem_type == REGRESSION:
            return {}
        if self.problem_type == SINGLE:
            return super().report(outcomes)
        labels = self.with_unseen_labels(outcome.true for outcome in outcomes)
        true = self.numbers_of([outcome.true for outcome in outcomes], labels)
        predicted = self.numbers_of([outcome.predicted for outcome in outcomes], labels)
        return report_of_labels(true, predicted, labels)

    def examples(self, rows: Dataset) -> Examples:
        """The texts as a baseline reads them, and the answers as in `truth`."""
        return [line_of(self.input_of_row(row)) for row in rows], self.truth(rows)

    def with_known_labels(self, rows: Dataset) -> Dataset:
        """The rows that have only labels of the training data."""
        known = [
            place for place, names in enumerate(rows["labels"]) if self.labels.keys() >= set(names)
        ]
        return rows.select(known)

    def fit_baseline(self, rows: DatasetDict) -> FittedBaseline | None:
        if self.problem_type == REGRESSION:
            return None
        learn = partial(NgramClassifier.fit, num_labels=len(self.labels))
        texts, answers = self.examples(rows["train"])
        machine = learn(texts, answers)
        fitted = {"validation": machine, "test": machine}
        known = self.with_known_labels(rows["validation"]) if "validation" in rows else None
        if known:
            more_texts, more_answers = self.examples(known)
            fitted["test"] = learn([*texts, *more_texts], np.concatenate((answers, more_answers)))
        return fitted

    def baselines(self, rows: DatasetDict, fitted: FittedBaseline | None) -> Predictions:
        examples = {split: self.examples(rows[split]) for split in rows}
        train = examples.pop("train")
        if fitted is None:
            return regression_baselines(train, {name: own[0] for name, own in examples.items()})
        threshold = 0.0
        if self.problem_type == MULTI and "validation" in examples:
            # The threshold of the model is chosen in the same way.
            texts, answers = examples["validation"]
            threshold = best_threshold(fitted["validation"].scores(texts), answers)
        return classification_baselines(train, examples, fitted, threshold)

    # What the card shows.

    def notes_on(self, split: str, rows: Dataset, outcomes: Sequence[Outcome] = ()) -> list[str]:
        notes = super().notes_on(split, rows, outcomes)
        if self.problem_type == MULTI and self.threshold is not None and outcomes:
            notes.append(
                f"`predict` assigns the labels with a score of at least {self.threshold:.4f}, "
                "which has the best micro F1 on the validation data."
            )
        return notes

    @property
    def neutral_example(self) -> Row:
        row = {"text": "a text to classify"}
        if self.takes_pairs:
            row["text_pair"] = "the second text of a pair"
        return row


def problem_type_of(config: PreTrainedConfig) -> str:
    """The problem type of a saved model. If its configuration does not contain one, it follows from
    the number of labels."""
    if config.problem_type:
        return config.problem_type
    return REGRESSION if config.num_labels == 1 else SINGLE


def label_text(label: str) -> str:
    """A label in a line of output, whose columns are separated by tabs."""
    return " ".join(label.splitlines()).replace("\t", " ")
