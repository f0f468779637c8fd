"""The base class of tasks. A recipe contains everything specific to one task, in the order of a
run: reading the data, the tokenizer, encoding, the model, choosing a checkpoint, predicting,
evaluating, baselines, and the task's part of the card.

An instance belongs to one run. It holds the options and the information found in the data or in a
saved model.

What all tasks share is elsewhere: `train/train.py` trains a run, and `train/trainer.py` resumes a
killed one. `answers.py` opens a saved model, forms batches and calls `Recipe.answer`. The text of
the card is in `train/model_card_template.md.jinja`.
"""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase
from transformers.configuration_utils import PreTrainedConfig

from hf_roformer_lite.model.configuration_roformer_lite import RoFormerLiteConfig

from ..data.data_files import Row, read_table, text_of
from ..errors import InputError
from ..evaluate.baselines import Baselines, BaselinesRight
from ..evaluate.metrics import Metrics
from ..evaluate.report import LabelReport, Outcome
from ..options.tasks import TaskArguments
from ..saved_model import load_complete_model, model_class_of

if TYPE_CHECKING:
    from pathlib import Path

    from datasets import Dataset, DatasetDict
    from transformers import EvalPrediction, Trainer, TrainingArguments

    from ..answers import SavedModel
    from ..run import Run

# An input is a text, a pair of texts, or the words of a sentence.
Input = str | list[str]
# The prediction of a model for one input, before `predict` formats it according to its options.
Answer = dict[str, Any]
# The metrics of a model on some rows, and its prediction for each of them.
Measured = tuple[Metrics, list[Outcome]]
# The metrics of each baseline, and whether each of its predictions is right.
MeasuredBaselines = tuple[Baselines, BaselinesRight]
OWN_IMPORT = "import hf_roformer_lite  # makes the architecture known to transformers\n"


@dataclass
class Shown:
    """A prediction in the form that `predict` writes.

    Args:
        line: The output for a line of text.
        columns: The columns to add to a row of a table.
    """

    line: str
    columns: dict[str, Any]


class Recipe(ABC):
    """A task with the options of one run.

    A row of the data has the columns of the task (`source` and `target`, `text` and `label`, …) and
    `origin`, its file and line.

    Attributes:
        name: The name of the task.
        summary: Its description in the help.
        options_class: The class of its options.
        pipeline_tag: The Hub's name of the task.
        library: The Hub's name of the library that opens the finished model.
        package: The argument of `pip install` in a checkout that makes the model usable.
        architecture: The endings of the names of its model classes.
        auto_model: The auto class of transformers.
        config_class: The class of the configurations of new models.
        new_model: Fields of a new configuration if `--size` is not given.
        uses_bfloat16: Whether training may multiply matrices in bfloat16 by default.
        rows_are_independent: Whether rows may be shuffled.
        has_labels: Whether labels are learned, rather than the text itself.
        engines: The engines that can run its models.
        answer_options: The options of `predict` that its models accept.
        takes_pairs: Whether the model reads two texts together.
        truncates: Whether the model reads only the beginning of a text that is too long.
        stops_after_fitting: Whether the training ends once a new head is fitted, without a step.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    options_class: ClassVar[type[TaskArguments]]
    pipeline_tag: ClassVar[str]
    library: ClassVar[str] = "transformers"
    package: ClassVar[str] = "."
    architecture: ClassVar[str | tuple[str, ...]]
    auto_model: ClassVar[type]
    config_class: ClassVar[type[PreTrainedConfig]] = RoFormerLiteConfig
    new_model: ClassVar[dict[str, Any]] = {}
    uses_bfloat16: ClassVar[bool] = True
    rows_are_independent: ClassVar[bool] = True
    has_labels: ClassVar[bool] = False
    engines: ClassVar[tuple[str, ...]] = ("torch", "onnx")
    answer_options: ClassVar[tuple[str, ...]] = ()
    takes_pairs: bool = False
    truncates: ClassVar[bool] = False
    stops_after_fitting: bool = False

    def __init_subclass__(cls) -> None:
        if "options_class" in vars(cls):
            cls.name = cls.options_class.task
            cls.summary = cls.options_class.summary

    def __init__(self, options: TaskArguments):
        self.options = options
        self.tokenizer: PreTrainedTokenizerBase | None = None
        # Whether a small data set is used for training as a whole, without holding rows out. This
        # is set by `train`.
        self.learns_from_few = False
        # Whether a pretrained model gets a new head, and whether the model is of this package. Both
        # are set when the model is made.
        self.has_new_head = False
        self.has_own_class = True

    # Reading the data.

    def read_rows(self, files: Sequence[str]) -> Iterator[Row]:
        """Read and check the rows of the user's files."""
        for path in files:
            for row in read_table(path, self.options.column_names):
                yield self.select_columns(row)

    @abstractmethod
    def select_columns(self, row: Row) -> Row:
        """The columns of the task in a row of a table or of a Hub dataset.

        Raises:
            InputError: if a column is missing.
        """

    def is_empty(self, row: Row) -> bool:
        """Whether a row contains nothing to learn from. Such rows are left out and counted."""
        return False

    @abstractmethod
    def texts(self, rows: Iterable[Row]) -> Iterator[str]:
        """The text of the rows, for training a tokenizer."""

    def needed_for_training(self, train: Dataset, held_out: Dataset) -> list[int]:
        """The indices of rows that must not be held out, such as the only ones with a label."""
        return []

    def inspect(self, rows: DatasetDict) -> None:
        """Find the properties that depend on all of the training data, such as the set of labels.

        Raises:
            InputError: if nothing can be learned from the data.
        """
        return None

    def inspect_model(self, config: PreTrainedConfig, settings: dict[str, Any]) -> None:
        """Read from a saved model the properties that `inspect` finds in the data.

        Raises:
            InputError: if the options of the task do not fit the model.
        """
        return None

    def check_data_options(self) -> None:
        """Refuse options about labelled data that do not fit a saved model.

        Raises:
            InputError: with the option.
        """
        return None

    def settings(self) -> dict[str, Any]:
        """The settings needed for predicting and evaluating that the configuration of the model
        does not contain."""
        return {name: getattr(self.options, name) for name in self.options.measuring_options}

    @property
    def min_rows_to_split(self) -> int:
        """Training data with fewer rows are not split by default. The number is known once the rows
        are read."""
        return 100

    def require(self, condition: bool, row: Row, message: str) -> None:
        """Raise `InputError` about `row` unless `condition` is true."""
        if not condition:
            raise InputError(f"{row['origin']}: {message}")

    # The tokenizer, and encoding.

    @property
    def max_length(self) -> int:
        """The longest input in tokens."""
        return self.options.max_length

    @property
    def new_tokenizer(self) -> dict[str, Any]:
        """Arguments of `RoFormerLiteTokenizer.train` that differ from its defaults."""
        return {}

    def adapt_tokenizer(self) -> None:
        """Adapt the tokenizer to the task before it encodes training data."""
        return None

    @abstractmethod
    def encode(self, rows: Dataset, training: bool) -> Dataset:
        """Model inputs with labels, for training, or for the evaluation of checkpoints by the
        Trainer."""

    def lengths(self, encoded: Dataset) -> list[int]:
        """The number of tokens of each example, for batches with a token budget and for the
        defaults of tasks with labels."""
        return [len(ids) for ids in encoded["input_ids"]]

    def collator(self, model: PreTrainedModel) -> Any:
        """One of transformers' data collators, or None if the trainer has its own."""
        return None

    # The model, and its training.

    def config_fields(self) -> dict[str, Any]:
        """Fields of the configuration that the task determines."""
        return {}

    def why_new_head(self, config: PreTrainedConfig) -> str:
        """The reason why the head of a pretrained model does not fit the training data. If it fits,
        the reason is empty and the labels get the order of the pretrained model."""
        return ""

    def why_no_head(self, config: PreTrainedConfig) -> str:
        """A sentence saying that the class of a model is for another task; empty if it is not."""
        name = next(iter(config.architectures or ()), "the model")
        if name.endswith(self.architecture):
            return ""
        return f"{name} has no head for {self.name}"

    def prepare_generation(
        self, model: PreTrainedModel, args: TrainingArguments
    ) -> GenerationConfig | None:
        """Set the task's defaults of `generate`. Returns a copy to save, because the Trainer adds
        further values."""
        if not model.can_generate():
            return None
        return GenerationConfig.from_dict(model.generation_config.to_dict())

    def trainer_parts(
        self,
        run: Run,
        args: TrainingArguments,
        model: PreTrainedModel,
        rows: DatasetDict,
        encoded: DatasetDict,
    ) -> dict[str, Any]:
        """Arguments of the trainer's class: the model, the data, the collator and the metrics."""
        compute_metrics = None
        if "validation" in encoded and self.metrics_in_training(args) != ["loss"]:
            compute_metrics = partial(self.choose, rows=rows["validation"])
        return {
            "model": model,
            "train_dataset": encoded["train"],
            "eval_dataset": encoded.get("validation"),
            "data_collator": self.collator(model),
            "compute_metrics": compute_metrics,
            "preprocess_logits_for_metrics": self.reduce_logits,
        }

    def prepare_head(self, trainer: Trainer, train: Dataset) -> bool:
        """Fit the new head of a pretrained model before the training. Returns whether this was
        done."""
        return False

    def complete(
        self, run: Run, trainer: Trainer, rows: DatasetDict, encoded: DatasetDict
    ) -> Baselines:
        """Add the parts that are not learned by gradients to the trained model. Returns the metrics
        of the parts on their own."""
        return {}

    def learn_validation_rows(self, trainer: Trainer, encoded: DatasetDict) -> bool:
        """Refit parts of the model to training and validation rows once the validation metrics are
        known. Returns whether there is such a part."""
        return False

    def save_further_files(self, folder: Path) -> None:
        """Save further files of the finished model. Its weights and tokenizer are already in
        `folder`."""
        return None

    # Choosing a checkpoint. The final metrics come from `evaluate`, below.

    @property
    @abstractmethod
    def metric_names(self) -> Sequence[str]:
        """The metrics apart from the loss. They may depend on the data."""

    @property
    @abstractmethod
    def main_metric(self) -> str:
        """The metric for comparing the model with baselines."""

    @property
    def metric_for_best_model(self) -> str:
        """The validation metric that chooses the best checkpoint by default."""
        return "loss"

    def metrics_in_training(self, args: TrainingArguments) -> list[str]:
        """The metrics on the validation data during training."""
        return ["loss", *self.metric_names]

    def check_metric(self, args: TrainingArguments, best: str | None) -> None:
        """Refuse a metric that is not available for the data.

        Args:
            args: The training arguments.
            best: The `metric_for_best_model`, if one was requested.

        Raises:
            InputError: with the option, its value and the available metrics.
        """
        known = self.metrics_in_training(args)
        if best is not None and best.removeprefix("eval_") not in known:
            raise InputError(
                f"--training_arguments metric_for_best_model={best} is not a metric of {self.name} "
                f"on these data; choose one of {', '.join(known)}"
            )

    def reduce_logits(self, logits: Any, labels: torch.Tensor) -> torch.Tensor:
        """The part of the logits that `choose` needs (`preprocess_logits_for_metrics` of the
        Trainer)."""
        return logits

    def choose(self, prediction: EvalPrediction, rows: Dataset) -> Metrics:
        """Metrics of a checkpoint from predictions on the encoded `rows`. With several processes
        there may be more predictions than rows, because each process gets the same number. The
        surplus is ignored."""
        return {}

    def choose_threshold(self, scores: np.ndarray | None, right: np.ndarray) -> None:
        """Choose the threshold of the scores for `predict`, if the options request one.

        Args:
            scores: The probabilities of the predictions on the validation data, `(rows,)`, or None
                for models without them.
            right: Whether the predictions are right, `(rows,)`.
        """
        return None

    def notes_on_threshold(self, scores: np.ndarray, right: np.ndarray, split: str) -> list[str]:
        """Sentences on the effect of the threshold on a split. The arguments are as in
        `choose_threshold`."""
        return []

    # Answering.

    def open(self, directory: str, config: PreTrainedConfig, device: torch.device) -> Any:
        """Load the saved model.

        Raises:
            InputError: if one of its files is missing or wrong.
        """
        model_class = model_class_of(config, directory)
        return load_complete_model(directory, config, model_class).to(device)

    def check_options(self, config: PreTrainedConfig, given: dict[str, Any]) -> None:
        """Refuse options of `predict` that a saved model does not use, before its weights are read.

        Raises:
            InputError: with the option and the options that are used.
        """
        refused = [name for name in given if name not in self.answer_options]
        if refused:
            theirs = ", ".join(f"--{name}" for name in self.answer_options)
            raise InputError(
                f"--{refused[0]} is not for {self.name} models, which take "
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

    @abstractmethod
    def input_of_row(self, row: Row) -> Input:
        """The input in a row of labelled data."""

    @abstractmethod
    def answer(self, saved: SavedModel, inputs: list[Input], options: dict[str, Any]) -> list[Any]:
        """The predictions of a saved model for a batch of inputs, none of which is empty.
        `SavedModel.answers` makes the batches.

        Args:
            saved: The model with its pipeline.
            inputs: The inputs, as returned by `input_of_line`.
            options: The `answer_options` that were given.
        """

    def answer_columns(self, options: dict[str, Any]) -> list[str]:
        """The names of the columns of a prediction in a table."""
        return ["prediction"]

    def show(self, answer: Any, options: dict[str, Any]) -> Shown:
        """A prediction in the form that `predict` writes: by default, a text. Its line breaks are
        replaced because they would end the line."""
        text = answer["prediction"]
        return Shown(line=re.sub(r"\r\n|\r|\n", " ", text), columns={"prediction": text})

    # Measuring.

    def rows_to_measure(self, rows: Dataset, encoded: Dataset) -> Dataset:
        """The rows of a split for `evaluate` after a training, possibly with information that only
        the training has."""
        return rows

    @abstractmethod
    def evaluate(self, saved: SavedModel, rows: Dataset, batch_size: int, seed: int) -> Measured:
        """The metrics of a saved model on labelled data, and its prediction for each row.

        Args:
            saved: The model.
            rows: The data.
            batch_size: The number of rows in a batch.
            seed: The seed of random choices, such as the masks of masked language models.
        """

    def measurements(self, rows: Dataset) -> int:
        """The number of measurements whose mean is the main metric of a split."""
        return len(rows)

    def report(self, outcomes: Sequence[Outcome]) -> LabelReport | None:
        """The metrics of each label; None for tasks without labels."""
        return None

    def baselines(self, rows: DatasetDict) -> MeasuredBaselines:
        """Metrics on the other splits of baselines that learn from the training rows, and whether
        each of their predictions is right, for tasks in which this is defined.

        Args:
            rows: The results of `rows_to_measure`.
        """
        return {}, {}

    # What the card shows.

    def notes(self) -> list[str]:
        """Notes that define the metrics for the reader."""
        return []

    def notes_on_parts(self) -> list[str]:
        """Notes on the parts of the finished model, if some of them are not used."""
        return []

    @abstractmethod
    def neutral_example(self) -> Row:
        """A made-up row, for a card that does not show any data."""

    def example_line(self, row: Row) -> str:
        """A line of input for `predict`, made from a row."""
        given = self.input_of_row(row)
        return given if isinstance(given, str) else "\t".join(given)

    @abstractmethod
    def snippet(self, row: Row) -> str:
        """Python code that uses `model` and `tokenizer` on a row."""

    def loading_code(self, model_id: str) -> str:
        """The lines of Python that make `model` and `tokenizer`."""
        own = OWN_IMPORT if self.has_own_class else ""
        auto = self.auto_model.__name__
        return (
            f"{own}from transformers import {auto}, AutoTokenizer\n\n"
            f"tokenizer = AutoTokenizer.from_pretrained({quoted(model_id)})\n"
            f"model = {auto}.from_pretrained({quoted(model_id)})\n"
        )


class AnsweringRecipe(Recipe):
    """A task whose models are evaluated by their predictions for labelled rows."""

    def encode(self, rows: Dataset, training: bool) -> Dataset:
        return rows.map(
            partial(self.encode_batch, training=training),
            batched=True,
            remove_columns=rows.column_names,
            desc="Encoding",
        )

    @abstractmethod
    def encode_batch(self, batch: dict[str, list], training: bool) -> dict[str, Any]:
        """Model inputs and labels of some rows, as in `encode`."""

    def evaluate(self, saved: SavedModel, rows: Dataset, batch_size: int, seed: int) -> Measured:
        inputs = [self.input_of_row(row) for row in rows]
        answers = saved.answers(inputs, batch_size=batch_size)
        outcomes = [self.outcome(row, answer) for row, answer in zip(rows, answers, strict=True)]
        return self.measure(answers, rows), outcomes

    @abstractmethod
    def measure(self, answers: list[Any], rows: Dataset) -> Metrics:
        """The metrics of the predictions for the rows."""

    @abstractmethod
    def outcome(self, row: Row, answer: Any) -> Outcome:
        """A row with its prediction, for reports and tables."""


def padding_right(tokenizer: PreTrainedTokenizerBase) -> PreTrainedTokenizerBase:
    """A copy of a tokenizer that pads on the right, for tasks with a label for each token."""
    tokenizer = copy(tokenizer)
    tokenizer.padding_side = "right"
    return tokenizer


def significant(number: float) -> float:
    """A number rounded to six significant digits."""
    return float(f"{number:.6g}")


def quoted(value: str | list[str]) -> str:
    """Text as a Python literal in double quotes, with characters beyond ASCII kept readable."""
    return json.dumps(value, ensure_ascii=False)
