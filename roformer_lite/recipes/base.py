"""The base class of tasks. A recipe contains everything specific to one task, in the order of a
run: the tokenizer, encoding, the model, choosing a checkpoint, predicting, evaluating, baselines,
and the task's part of the card.

A recipe is frozen. It is made when the data of a run are read (`inspect`) or when a saved model is
opened (`of_model`), with everything that was found there. Steps that determine more, such as the
start of the training, return another recipe. Before, a `Reader` reads the data.

What all tasks share is elsewhere: `training/train.py` trains a run, and `training/fit.py` resumes a
killed one. `answers.py` opens a saved model. The text of the card is in
`training/model_card_template.md.jinja`, and its code in `training/model_card_code.md.jinja`.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.configuration_utils import PreTrainedConfig

from hf_roformer_lite.model.configuration_roformer_lite import RoFormerLiteConfig

from ..baseline.files import BaselineModel
from ..data.data_files import Row, text_of
from ..data.duplicates import SEEN
from ..data.reader import Reader
from ..errors import InputError
from ..measuring.baselines import Predictions
from ..measuring.metrics import Metrics
from ..measuring.report import Outcome
from ..measuring.significance import Measured, RowMetric
from ..options.run import Run
from ..options.tasks import LENGTH_OPTIONS, TaskArguments
from ..saved.saved_model import load_complete_model, model_class_of
from .loaded_model import Input, LoadedModel, is_empty, line_of

if TYPE_CHECKING:
    from datasets import Dataset, DatasetDict
    from transformers import EvalPrediction, TrainingArguments

# The prediction of a model for one input, before `predict` formats it according to its options.
Answer = dict[str, Any]


# The baseline that may join the answer, by the split that it is measured on. That of the test data
# is final, and may also have learned from the validation rows.
FittedBaseline = dict[str, Any]


@dataclass(frozen=True)
class Shown:
    """A prediction in the form that `predict` writes.

    Args:
        line: The output for a line of text.
        columns: The columns to add to a row of a table.
    """

    line: str
    columns: dict[str, Any]


@dataclass(frozen=True)
class Start:
    """What the start of a training has decided.

    Args:
        run: The run with its defaults filled in.
        args: The arguments of the Trainer.
        rows, encoded: The data as rows and as model inputs.
        recipe: The task with the labels in the order of the model, and with lengths for which the
            model has positions.
        model: The transformers model to train.
        tokenizer: Its tokenizer.
        has_new_head: Whether a pretrained model gets a new head.
        has_own_class: Whether it is a RoFormerLite model.
        trained: The module to train: the model, or the model of sentence-transformers around it.
    """

    run: Run
    args: TrainingArguments
    rows: DatasetDict
    encoded: DatasetDict
    recipe: Recipe
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    has_new_head: bool
    has_own_class: bool
    trained: Any


@dataclass(frozen=True)
class Recipe(ABC):
    """A task with the options of one run, and what was found in its data or in a saved model.

    Attributes:
        name: The name of the task.
        options_class: The class of its options.
        reader_class: The class that reads its rows.
        pipeline_tag: The Hub's name of the task.
        library: The Hub's name of the library that opens the finished model.
        package: The argument of `pip install` in a checkout that makes the model usable.
        architecture: The endings of the names of its model classes.
        auto_model: The Auto class of transformers.
        config_class: The class of the configurations of new models.
        new_model: Fields of a new configuration if `--size` is not given.
        has_labels: Whether labels are learned, rather than the text itself.
        baseline_class: The class of the baseline that may join the answer, if there is one.
        takes_graphs: Whether an exported ONNX graph can replace the model.
        answer_column: The name of the column of a prediction in a table.
        compares_checkpoint: Whether the checkpoint before training is a baseline.

    Args:
        options: The options of the task, an object of `options_class`.
    """

    name: ClassVar[str]
    options_class: ClassVar[type[TaskArguments]]
    reader_class: ClassVar[type[Reader]]
    pipeline_tag: ClassVar[str]
    library: ClassVar[str] = "transformers"
    package: ClassVar[str] = "."
    architecture: ClassVar[str | tuple[str, ...]]
    auto_model: ClassVar[Any]
    config_class: ClassVar[Any] = RoFormerLiteConfig
    new_model: ClassVar[dict[str, Any]] = {}
    has_labels: ClassVar[bool] = False
    baseline_class: ClassVar[type[BaselineModel] | None] = None
    takes_graphs: ClassVar[bool] = True
    answer_column: ClassVar[str] = "prediction"
    compares_checkpoint: ClassVar[bool] = False

    options: Any

    def __init_subclass__(cls) -> None:
        if "options_class" in vars(cls):
            cls.name = cls.options_class.task

    # What is found in the data or in a saved model.

    @classmethod
    def inspect(cls, options: Any, rows: DatasetDict) -> Self:
        """The task with the properties that depend on all rows of the data, such as the set of
        labels.

        Raises:
            InputError: if nothing can be learned from the data.
        """
        return cls(options)

    @classmethod
    def of_model(cls, options: Any, config: PreTrainedConfig, settings: dict[str, Any]) -> Self:
        """The task with the properties of a saved model that `inspect` finds in the data.

        Raises:
            InputError: if the options of the task do not fit the model.
        """
        return cls(options)

    def settings(self) -> dict[str, Any]:
        """The settings needed for predicting and evaluating that the configuration of the model
        does not contain."""
        return {name: getattr(self.options, name) for name in self.options.measuring_options}

    @property
    def reader(self) -> Reader:
        """What reads the rows of the task."""
        return self.reader_class(self.options)

    def texts(self, rows: Iterable[Row]) -> Iterator[str]:
        """The text of the rows, for training a tokenizer."""
        return self.reader.texts(rows)

    @property
    def smooths_labels(self) -> bool:
        """Whether the loss compares the scores of all labels with one true label."""
        return True

    @property
    def takes_pairs(self) -> bool:
        """Whether the model reads two texts together."""
        return False

    # The tokenizer, and encoding.

    @property
    def max_length(self) -> int:
        """The longest input in tokens."""
        return self.options.max_length

    @property
    def new_tokenizer(self) -> dict[str, Any]:
        """Arguments of `RoFormerLiteTokenizer.train` that differ from its defaults."""
        return {}

    def adapted_to(self, tokenizer: PreTrainedTokenizerBase) -> Self:
        """Adapt a tokenizer to the task before it encodes training data.

        Returns:
            The task, with what it has to know about the tokenizer.
        """
        return self

    def limited_to(self, positions: int, given: Collection[str]) -> Self:
        """The task with lengths for which a model has positions.

        Args:
            positions: The number of positions that the model has learned.
            given: The names of the options that the user passed.

        Raises:
            InputError: for a greater length that was given.
        """
        options = self.options
        for name in LENGTH_OPTIONS:
            length = getattr(options, name, None) or 0
            if length <= positions:
                continue
            if name in given:
                raise InputError(
                    f"--{name} {length} is more than the model has positions for; pass --{name} "
                    f"{positions} or less"
                )
            options = replace(options, **{name: positions})
        return replace(self, options=options)

    @abstractmethod
    def encode(self, rows: Any, tokenizer: PreTrainedTokenizerBase, training: bool) -> Any:
        """Model inputs with labels, for training, or for the evaluation of checkpoints by the
        Trainer.

        Args:
            rows: The rows of a split.
            tokenizer: The tokenizer.
            training: Whether the model is trained on the rows.
        """

    def lengths(self, encoded: Dataset) -> list[int]:
        """The number of tokens of each example, for batches with a token budget and for the
        defaults of tasks with labels."""
        return [len(ids) for ids in encoded["input_ids"]]

    def collator(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> Any:
        """One of transformers' data collators, or None if the trainer has its own."""
        return None

    # The model, and its training.

    def config_fields(self) -> dict[str, Any]:
        """Fields of the configuration that the task determines."""
        return {}

    def in_order_of(self, config: PreTrainedConfig) -> Self:
        """The task with its labels in the order of a pretrained model, if that has the same."""
        return self

    def why_new_head(self, config: PreTrainedConfig) -> str:
        """The reason why the head of a pretrained model does not fit the training data; empty if it
        fits."""
        return ""

    def why_no_head(self, config: PreTrainedConfig) -> str:
        """A sentence saying that the class of a model is for another task; empty if it is not."""
        name = next(iter(config.architectures or ()), "the model")
        if name.endswith(self.architecture):
            return ""
        return f"{name} has no head for {self.name}"

    def prepared(self, start: Start) -> Start:
        """The start of a training, with the model prepared for the task: with its defaults of
        `generate`, or with the module to train around it.

        Raises:
            InputError: if the model or the module does not fit the task or the options.
        """
        return start

    def trainer_parts(self, start: Start) -> dict[str, Any]:
        """Arguments of the trainer's class: the data, the collator and the metrics."""
        compute_metrics = None
        if "validation" in start.rows and self.metrics_in_training(start.args) != ["loss"]:
            compute_metrics = partial(
                self.choose, rows=start.rows["validation"], tokenizer=start.tokenizer
            )
        return {
            "train_dataset": start.encoded["train"],
            "eval_dataset": start.encoded.get("validation"),
            "data_collator": self.collator(start.model, start.tokenizer),
            "compute_metrics": compute_metrics,
            "preprocess_logits_for_metrics": self.reduce_logits,
        }

    # Choosing a checkpoint. The final metrics come from `evaluate`, below.

    @property
    @abstractmethod
    def metric_names(self) -> Sequence[str]:
        """The metrics apart from the loss, with the main one first. They may depend on the data."""

    @property
    def main_metric(self) -> str:
        """The metric for comparing the model with baselines."""
        return self.metric_names[0]

    @property
    def metric_for_best_model(self) -> str:
        """The validation metric that chooses the best checkpoint by default."""
        return "loss"

    def metrics_in_training(self, args: TrainingArguments) -> list[str]:
        """The metrics on the validation data during training."""
        return ["loss", *self.metric_names]

    def check_arguments(self, args: TrainingArguments, best: Any) -> None:
        """Reject arguments that do not suit the data.

        Args:
            args: The training arguments.
            best: The `metric_for_best_model`, if one was requested.

        Raises:
            InputError: for a metric that is not available, and for label smoothing if there is
                not exactly one true label.
        """
        if args.label_smoothing_factor and not self.smooths_labels:
            raise InputError(
                "--training_arguments label_smoothing_factor needs exactly one label for each text "
                "or token; leave it out"
            )
        known = self.metrics_in_training(args)
        if best is not None and str(best).removeprefix("eval_") not in known:
            raise InputError(
                f"--training_arguments metric_for_best_model={best} is not a metric of {self.name} "
                f"on these data; choose one of {', '.join(known)}"
            )

    def reduce_logits(self, logits: Any, labels: torch.Tensor) -> torch.Tensor:
        """The part of the logits that `choose` needs (`preprocess_logits_for_metrics` of the
        Trainer)."""
        return logits

    def choose(
        self, prediction: EvalPrediction, rows: Dataset, tokenizer: PreTrainedTokenizerBase
    ) -> Metrics:
        """Metrics of a checkpoint from predictions on the encoded `rows`. With several processes
        there may be more predictions than rows, because each process gets the same number. The
        surplus is ignored."""
        return {}

    # Answering.

    def open(self, directory: str, config: PreTrainedConfig, device: torch.device) -> Any:
        """Load the saved model.

        Raises:
            InputError: if one of its files is missing or wrong.
        """
        model_class = model_class_of(config, directory)
        model: Any = load_complete_model(directory, config, model_class)
        return model.to(device)

    @property
    def answer_options(self) -> Sequence[str]:
        """The options of `predict` that the model accepts."""
        return ()

    def check_options(self, config: PreTrainedConfig, given: dict[str, Any]) -> None:
        """Reject options of `predict` that a saved model does not use, before its weights are read.

        Raises:
            InputError: with the option and the options that are used.
        """
        self.refuse_others(given, self.answer_options)

    @classmethod
    def refuse_others(cls, given: Iterable[str], known: Sequence[str]) -> None:
        """Reject the options `given` that are not among the `known` ones of the task.

        Raises:
            InputError: with the option and the known options.
        """
        refused = [name for name in given if name not in known]
        if refused:
            theirs = ", ".join(f"--{name}" for name in known)
            raise InputError(
                f"--{refused[0]} is not for this {cls.name} model, which takes "
                f"{theirs or 'none of these options'}"
            )

    def text_columns(self) -> list[str]:
        """The default columns of the inputs of `predict` in a table, which are the same as in the
        training data."""
        return [self.options.text_column]

    def input_of_line(self, line: str) -> Input:
        """The input in a line of text, without surrounding white space.

        Raises:
            InputError: if the line is not a valid input.
        """
        if not self.takes_pairs:
            return line.strip()
        return self.checked_pair([text.strip() for text in line.split("\t")])

    def input_of_columns(self, row: Row, columns: Sequence[str]) -> Input:
        """The input in the columns of a row of a table.

        Raises:
            InputError: if a column is missing or is not text.
        """
        options = ("text_column", "text_pair_column")
        texts = [text_of(row, *pair) for pair in zip(columns, options, strict=False)]
        return self.checked_pair(texts) if self.takes_pairs else texts[0]

    def checked_pair(self, texts: list[str]) -> list[str]:
        if len(texts) != 2:
            raise InputError(
                "this model takes pairs of texts, separated by a tab or in two columns of a table "
                f"(--text_column, --text_pair_column); got {texts[0]!r} with {len(texts) - 1} tabs"
            )
        return texts

    def input_of_row(self, row: Row) -> Input:
        """The input in a row of labelled data."""
        texts = [row[name] for name in self.reader_class.input_columns if name in row]
        return texts if self.takes_pairs else texts[0]

    def answers(
        self,
        saved: LoadedModel,
        inputs: Sequence[Input],
        batch_size: int,
        options: dict[str, Any],
    ) -> list[Any]:
        """The predictions of a saved model for any number of inputs; see `SavedModel.answers`."""
        if self.truncates(saved.positions, saved.tokenizer):
            saved.warn_of_truncation([given for given in inputs if not is_empty(given)])
        answer = partial(self.answer, saved, options=options)
        return saved.in_batches(inputs, batch_size, answer)

    def truncates(self, positions: int | None, tokenizer: PreTrainedTokenizerBase) -> bool:
        """Whether a model reads only the beginning of a text that is too long. Others read it in
        overlapping windows, or reject it.

        Args:
            positions: The number of positions in the table of the model; None without a table.
            tokenizer: Its tokenizer.
        """
        return False

    @abstractmethod
    def answer(self, saved: LoadedModel, inputs: list[Input], options: dict[str, Any]) -> list[Any]:
        """The predictions of a saved model for a batch of inputs, none of which is empty.
        `answers` makes the batches.

        Args:
            saved: The model with its pipeline.
            inputs: The inputs, as returned by `input_of_line`.
            options: The `answer_options` that were given.
        """

    def answer_columns(self, options: dict[str, Any]) -> list[str]:
        """The names of the columns of a prediction in a table."""
        return [self.answer_column]

    def show(self, answer: Any, options: dict[str, Any]) -> Shown:
        """A prediction in the form that `predict` writes: by default, a text. Its line breaks are
        replaced because they would end the line."""
        text = answer["prediction"]
        return Shown(line=re.sub(r"\r\n|\r|\n", " ", text), columns={"prediction": text})

    # Measuring.

    def for_rows(self, saved: LoadedModel, rows: Dataset) -> Self:
        """The task for measuring a saved model on labelled data.

        Raises:
            InputError: if the model cannot be measured on them.
        """
        return self

    def with_threshold(self, saved: LoadedModel, rows: Dataset | None, batch_size: int) -> Self:
        """The task with the threshold that a saved model needs in `predict`, for tasks with one.

        Args:
            saved: The model.
            rows: The validation data; None if there are none.
            batch_size: The number of rows in a batch.
        """
        return self

    @abstractmethod
    def evaluate(self, saved: LoadedModel, rows: Dataset, batch_size: int, seed: int) -> Measured:
        """The metrics of a saved model on labelled data, and its prediction for each row.

        Args:
            saved: The model.
            rows: The data.
            batch_size: The number of rows in a batch.
            seed: The seed of random choices, such as the masks of masked language models.
        """

    def are_seen(self, saved: LoadedModel, rows: Dataset) -> np.ndarray:
        """Whether the input of what is measured also occurs in the data used for training, for each
        row of `Measured.by_row`.

        Args:
            saved: The model.
            rows: Labelled data with the column `seen`.
        """
        return np.array(rows[SEEN])

    def of_unseen(self, measured: Measured, is_seen: np.ndarray, rows: Dataset) -> RowMetric:
        """The main metric without what also occurs in the data used for training.

        Args:
            measured: How well a system does on all rows.
            is_seen: The result of `are_seen`.
            rows: The data.
        """
        return measured.by_row.of_rows(~is_seen)

    @abstractmethod
    def measured(self, predicted: Any, rows: Dataset) -> Measured:
        """The metrics of the predictions of a model or a baseline.

        Args:
            predicted: The predictions, in the form of the task.
            rows: The data.
        """

    def report(self, outcomes: Sequence[Outcome]) -> dict[str, Metrics]:
        """The metrics of each label; empty for tasks without labels."""
        return {}

    def fit_baseline(self, rows: DatasetDict) -> FittedBaseline | None:
        """Fit the baseline that may join the answer; None for tasks without one.

        Args:
            rows: The training data, and possibly validation data.
        """
        return None

    def baselines(self, rows: DatasetDict, fitted: FittedBaseline | None) -> Predictions:
        """The predictions for the other splits of baselines that learn from the training rows, in
        the form that `measured` takes.

        Args:
            rows: The splits.
            fitted: The result of `fit_baseline`.
        """
        return {}

    # What the card shows.

    def notes(self) -> list[str]:
        """Notes that define the metrics for the reader."""
        return []

    def notes_on(self, split: str, rows: Dataset, outcomes: Sequence[Outcome] = ()) -> list[str]:
        """Notes on the predictions for a split."""
        return []

    @property
    @abstractmethod
    def neutral_example(self) -> Row:
        """A made-up row, for a card that does not show any data."""

    def example_line(self, tokenizer: PreTrainedTokenizerBase) -> str:
        """A line of input for `predict`, made from the `neutral_example`."""
        return line_of(self.input_of_row(self.neutral_example))


class AnsweringRecipe(Recipe):
    """A task whose models are evaluated by their predictions for labelled rows."""

    def encode(self, rows: Any, tokenizer: PreTrainedTokenizerBase, training: bool) -> Any:
        return rows.map(
            partial(self.encode_batch, tokenizer=tokenizer, training=training),
            batched=True,
            remove_columns=rows.column_names,
        )

    @abstractmethod
    def encode_batch(
        self, batch: dict[str, list], tokenizer: PreTrainedTokenizerBase, training: bool
    ) -> dict[str, Any]:
        """Model inputs and labels of some rows, as in `encode`."""

    def answers_for(self, saved: LoadedModel, rows: Dataset, batch_size: int) -> list[Any]:
        """The predictions of a saved model for labelled data."""
        inputs = [self.input_of_row(row) for row in rows]
        return self.answers(saved, inputs, batch_size, options={})

    def evaluate(self, saved: LoadedModel, rows: Dataset, batch_size: int, seed: int) -> Measured:
        return self.measured_answers(self.answers_for(saved, rows, batch_size), rows)

    def measured_answers(self, answers: list[Any], rows: Dataset) -> Measured:
        """The metrics of predictions, with the prediction for each row.

        Args:
            answers: The predictions of a model.
            rows: The data.
        """
        outcomes = [self.outcome(row, answer) for row, answer in zip(rows, answers, strict=True)]
        measured = self.measured(self.predicted(answers), rows)
        return replace(measured, outcomes=outcomes)

    @abstractmethod
    def predicted(self, answers: list[Any]) -> Any:
        """The predictions in the form that `measured` takes."""

    @abstractmethod
    def outcome(self, row: Row, answer: Any) -> Outcome:
        """A row with its prediction, for reports and tables."""


def significant(number: float) -> float:
    """A number rounded to six significant digits."""
    return float(f"{number:.6g}")
