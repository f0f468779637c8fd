"""What a task is. A recipe has all that is particular to one task, in the order of a run: reading
the data, the tokenizer, encoding, the model, choosing a checkpoint, answering, measuring, baselines,
and what the card shows.

An instance serves one run: it holds the options and what was found in the data, or in a saved model.
"""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
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
from ..saved_model import load_complete_model, model_class_of
from ..task_options import TaskArguments

if TYPE_CHECKING:
    from pathlib import Path

    from datasets import Dataset, DatasetDict
    from transformers import EvalPrediction, Trainer, TrainingArguments

    from ..answers import SavedModel
    from ..run import Run

# A text; or a pair of texts, or the words of a sentence.
Input = str | list[str]
# What a model says to one input, before any option of `predict` about how to write it.
Answer = dict[str, Any]
OWN_IMPORT = "import hf_roformer_lite  # makes the architecture known to transformers\n"


@dataclass
class Shown:
    """An answer as `predict` writes it.

    Args:
        line: For a line of text.
        columns: After the columns of a table.
    """

    line: str
    columns: dict[str, Any]


class Recipe(ABC):
    """One kind of training, for the options of one run.

    A row of the data has the task's own columns (`source` and `target`, `text` and `label`, …) and
    `origin`, its file and line.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    options_class: ClassVar[type[TaskArguments]]
    # The Hub's names of the task and of the library that opens the finished model, and what pip
    # installs in a checkout to use it.
    pipeline_tag: ClassVar[str]
    library: ClassVar[str] = "transformers"
    package: ClassVar[str] = "."
    # How the name of the model's class ends, and the classes of transformers.
    architecture: ClassVar[str | tuple[str, ...]]
    auto_model: ClassVar[type]
    config_class: ClassVar[type[PreTrainedConfig]] = RoFormerLiteConfig
    # Fields of a new configuration, where --size is not given.
    new_model: ClassVar[dict[str, Any]] = {}
    # Whether matrices may be multiplied in bfloat16 in training unless an option says so.
    uses_bfloat16: ClassVar[bool] = True
    # Whether rows may be shuffled, and whether labels are learned, and not the text itself.
    rows_are_independent: ClassVar[bool] = True
    has_labels: ClassVar[bool] = False
    # The engines, and the options of `predict`, with which its models answer.
    engines: ClassVar[tuple[str, ...]] = ("torch", "onnx")
    answer_options: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls) -> None:
        if "options_class" in vars(cls):
            cls.name = cls.options_class.task
            cls.summary = cls.options_class.summary

    def __init__(self, options: TaskArguments):
        self.options = options
        self.tokenizer: PreTrainedTokenizerBase | None = None
        # Whether the training learns from rows without any held out; set by the training.
        self.learns_from_few = False
        # Whether the head is new on weights that were trained before, and whether the model is of
        # this package; set when the model is made.
        self.has_new_head = False
        self.has_own_class = True

    # Reading the data.

    def read_rows(self, files: Sequence[str]) -> Iterator[Row]:
        """The rows of the user's files, every one checked."""
        for path in files:
            for row in read_table(path, self.options.column_names):
                yield self.select_columns(row)

    @abstractmethod
    def select_columns(self, row: Row) -> Row:
        """The task's own columns of a row of a table or of a Hub dataset; `InputError` where one is
        missing."""

    def is_empty(self, row: Row) -> bool:
        """Whether there is nothing to learn from a row. Such rows are left out and counted."""
        return False

    @abstractmethod
    def texts(self, rows: Iterable[Row]) -> Iterator[str]:
        """The text of the rows, to train a tokenizer on."""

    def needed_for_training(self, train: Dataset, held_out: Dataset) -> list[int]:
        """The numbers of rows that can't be held out, such as the only ones with a label."""
        return []

    def inspect(self, rows: DatasetDict) -> None:
        """Find what depends on all of the training data, such as the set of labels.

        Raises:
            InputError: when nothing can be learned from them.
        """
        return None

    def inspect_model(self, config: PreTrainedConfig, settings: dict[str, Any]) -> None:
        """Find the same in a saved model.

        Raises:
            InputError: when the options of the task do not fit the model.
        """
        return None

    def check_data_options(self) -> None:
        """Refuse options about labelled data that do not fit a saved model.

        Raises:
            InputError: naming the option.
        """
        return None

    def settings(self) -> dict[str, Any]:
        """What answering and measuring must know later and the configuration of the model does not
        hold."""
        return {name: getattr(self.options, name) for name in self.options.measuring_options}

    @property
    def min_rows_to_split(self) -> int:
        """Of fewer training rows none are held out unless options ask for it. Known once the rows
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
        """Arguments of `RoFormerLiteTokenizer.train` in place of its own defaults."""
        return {}

    def adapt_tokenizer(self) -> None:
        """Change in the tokenizer what the task needs otherwise, before it encodes training
        data."""
        return None

    @abstractmethod
    def encode(self, rows: Dataset, training: bool) -> Dataset:
        """Model inputs with labels. Without `training` they are those by which the Trainer measures
        a checkpoint."""

    def lengths(self, encoded: Dataset) -> list[int]:
        """The number of tokens of each example."""
        return [len(ids) for ids in encoded["input_ids"]]

    def collator(self, model: PreTrainedModel) -> Any:
        """One of transformers' data collators. Default: none, where the trainer has its own."""
        return None

    # The model, and its training.

    def config_fields(self) -> dict[str, Any]:
        """Fields of the configuration that the task determines."""
        return {}

    def why_new_head(self, config: PreTrainedConfig) -> str:
        """Why the head of a given model does not fit the training data; empty if it does. The
        labels then get the order that the given model has them in."""
        return ""

    def has_no_head(self, config: PreTrainedConfig) -> str:
        """That as a sentence, where the class of a model is of another kind; else empty."""
        name = next(iter(config.architectures or ()), "the model")
        if name.endswith(self.architecture):
            return ""
        return f"{name} has no head for {self.name}"

    def prepare_generation(
        self, model: PreTrainedModel, args: TrainingArguments
    ) -> GenerationConfig | None:
        """Set the task's defaults of `generate`. Returns a copy to save, because the Trainer fills
        in others."""
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
        """Arguments of the trainer's class: the model, the data, how to collate them and how to
        measure a checkpoint."""
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
        """Give a new head on weights that were trained before a better start than random numbers,
        and return whether it has got one."""
        return False

    def complete(
        self, run: Run, trainer: Trainer, rows: DatasetDict, encoded: DatasetDict
    ) -> Baselines:
        """Add to the trained model what is not learned by gradients. Returns the metrics of its
        parts alone."""
        return {}

    def learn_validation_rows(self, trainer: Trainer, encoded: DatasetDict) -> bool:
        """Fit again, once the validation metrics are known, what also learns from the validation
        rows, and return whether there is such a part."""
        return False

    def save_beside(self, folder: Path) -> None:
        """Save what the finished model needs besides its weights and its tokenizer, which are in
        `folder`."""
        return None

    # Choosing a checkpoint. The final metrics are those of `evaluate`, below.

    @property
    @abstractmethod
    def metric_names(self) -> Sequence[str]:
        """The metrics besides the loss. They may depend on the data."""

    @property
    @abstractmethod
    def main_metric(self) -> str:
        """The metric by which the model is compared with baselines."""

    @property
    def metric_for_best_model(self) -> str:
        """The metric on the validation data by which the best checkpoint is chosen, where options
        ask for none."""
        return "loss"

    def metrics_in_training(self, args: TrainingArguments) -> list[str]:
        """The metrics of the validation data during the training."""
        return ["loss", *self.metric_names]

    def check_metric(self, args: TrainingArguments, best: str | None = None) -> None:
        """Refuse options by which nothing could be measured, once the data are known.

        Args:
            args: Of the training.
            best: The `metric_for_best_model`, where one is asked for.

        Raises:
            InputError: naming the option, its value and what would be right.
        """
        known = self.metrics_in_training(args)
        if best is not None and best.removeprefix("eval_") not in known:
            raise InputError(
                f"--training_arguments metric_for_best_model={best} is not measured by {self.name} "
                f"on these data; choose one of {', '.join(known)}"
            )

    def reduce_logits(self, logits: Any, labels: torch.Tensor) -> torch.Tensor:
        """The part of the logits that `choose` needs (`preprocess_logits_for_metrics` of the
        Trainer)."""
        return logits

    def choose(self, prediction: EvalPrediction, rows: Dataset) -> Metrics:
        """Metrics of a checkpoint from predictions on the encoded `rows`. With several processes
        there may be more predictions than rows, because each process gets equally many; those
        beyond the last row are ignored."""
        return {}

    def choose_threshold(self, scores: np.ndarray | None, right: np.ndarray) -> None:
        """Choose the least score of an answer that `predict` gives, where options ask for it.

        Args:
            scores: The probabilities that the model gives its answers to the validation data,
                `(rows,)`; None where it gives none.
            right: Whether they are right, `(rows,)`.
        """
        return None

    def notes_on_threshold(self, scores: np.ndarray, right: np.ndarray, split: str) -> list[str]:
        """What that threshold means on a split; the arguments are as for `choose_threshold`."""
        return []

    # Answering.

    # Whether the model reads two texts together, and whether it reads only the beginning of a text
    # that is too long.
    takes_pairs: bool = False
    truncates: ClassVar[bool] = False

    def open(self, directory: str, config: PreTrainedConfig, device: torch.device) -> Any:
        """The saved model; `InputError` when a file of it is missing or wrong."""
        model_class = model_class_of(config, directory)
        return load_complete_model(directory, config, model_class).to(device)

    def check_options(self, config: PreTrainedConfig, given: dict[str, Any]) -> None:
        """Refuse options of `predict` that a saved model does not use, before its weights are read.

        Raises:
            InputError: naming the option and those that it uses.
        """
        refused = [name for name in given if name not in self.answer_options]
        if refused:
            theirs = ", ".join(f"--{name}" for name in self.answer_options)
            raise InputError(
                f"--{refused[0]} is not for {self.name} models, which take "
                f"{theirs or 'none of these options'}"
            )

    def text_columns(self) -> list[str]:
        """The columns that `predict` answers in a table, where it has them: those that the model
        was trained on."""
        return [self.options.text_column]

    def input_of_line(self, line: str) -> Input:
        """The input in a line of text, without white space around it, as tables are read;
        `InputError` when it is none."""
        if not self.takes_pairs:
            return line.strip()
        return self.checked_pair([text.strip() for text in line.split("\t")])

    def input_of_columns(self, row: Row, columns: Sequence[str]) -> Input:
        """The input in the columns of a row of a table; `InputError` when the row lacks one, or it
        holds no text."""
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
        """What a saved model answers to inputs, none of them empty, as one batch.

        Args:
            saved: The model with its pipeline.
            inputs: As `input_of_line` and its siblings give them.
            options: Those of `answer_options` that were given, by their names.
        """

    def answer_columns(self, options: dict[str, Any]) -> list[str]:
        """The names of an answer's columns in a table."""
        return ["prediction"]

    @abstractmethod
    def show(self, answer: Any, options: dict[str, Any]) -> Shown:
        """An answer as `predict` writes it."""

    # Measuring.

    def rows_to_measure(self, rows: Dataset, encoded: Dataset) -> Dataset:
        """The rows of a split as `evaluate` takes them after a training, with what only the
        training knows about them."""
        return rows

    @abstractmethod
    def evaluate(
        self, saved: SavedModel, rows: Dataset, batch_size: int, seed: int
    ) -> tuple[Metrics, list[Outcome]]:
        """The metrics of a saved model on labelled data, and what it answered to each row.

        Args:
            saved: The model.
            rows: The data.
            batch_size: Rows that are answered at once.
            seed: Of what is drawn at random, such as the masks of masked language models.
        """

    def measurements(self, rows: Dataset) -> int:
        """How many measurements the main metric of a split is the mean of."""
        return len(rows)

    def report(self, outcomes: Sequence[Outcome]) -> LabelReport | None:
        """How well each label is found; None for tasks without labels."""
        return None

    @abstractmethod
    def baselines(
        self, rows: DatasetDict, encoded: DatasetDict
    ) -> tuple[Baselines, BaselinesRight]:
        """Metrics of baselines that learn from the training rows, on the other splits; and for each
        of their answers whether it is right, where that can be said."""

    # What the card shows.

    def notes(self) -> list[str]:
        """What a reader of the metrics must know about how they were measured."""
        return []

    def notes_on_parts(self) -> list[str]:
        """Which parts of the finished model answer, where not all of them do."""
        return []

    @abstractmethod
    def neutral_example(self) -> Row:
        """A row that is nobody's data, for a card that anybody may read."""

    def example_line(self, row: Row) -> str:
        """A line of input for `predict`, made of a row."""
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
    """A kind of training whose models are measured by the answers that they give to labelled
    rows."""

    def evaluate(
        self, saved: SavedModel, rows: Dataset, batch_size: int, seed: int
    ) -> tuple[Metrics, list[Outcome]]:
        inputs = [self.input_of_row(row) for row in rows]
        answers = saved.answers(inputs, batch_size=batch_size)
        outcomes = [self.outcome(row, answer) for row, answer in zip(rows, answers, strict=True)]
        return self.measure(answers, rows), outcomes

    @abstractmethod
    def measure(self, answers: list[Any], rows: Dataset) -> Metrics:
        """The metrics of answers to the rows."""

    @abstractmethod
    def outcome(self, row: Row, answer: Any) -> Outcome:
        """A row with its answer, for reports and tables."""


def shown_text(answer: Answer) -> Shown:
    """An answer that is text. A line break would end the line."""
    text = answer["prediction"]
    return Shown(line=re.sub(r"\r\n|\r|\n", " ", text), columns={"prediction": text})


def significant(number: float) -> float:
    """A number with the six significant digits that are written of it, whatever its size."""
    return float(f"{number:.6g}")


def quoted(value: str | list[str]) -> str:
    """Text as a Python literal in double quotes, with characters beyond ASCII kept readable."""
    return json.dumps(value, ensure_ascii=False)
