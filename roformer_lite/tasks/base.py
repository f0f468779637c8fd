"""What a task is: how its rows are read and encoded, which model learns it, how it is measured, what it predicts.

`Task` is the common part, and each module beside this one holds one or two tasks. The libraries that only training
needs, such as datasets, are imported when a training begins, because `predict` starts seconds sooner without them.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase
from transformers.configuration_utils import PreTrainedConfig

from hf_roformer_lite.model.configuration_roformer_lite import RoFormerLiteConfig
from hf_roformer_lite.padding_free import padding_free

from ..data.data_files import Row, read_table, text_of
from ..errors import InputError
from ..evaluate.metrics import ByLabel, Metrics
from ..predict.engines import ENGINES
from ..saved_model import load_complete_model, model_class_of
from .answers import Answer, Input, Outcome, SavedModel
from .task_arguments import TaskArguments

if TYPE_CHECKING:
    from pathlib import Path

    from datasets import Dataset, DatasetDict
    from transformers import EvalPrediction, Trainer, TrainingArguments

    from ..evaluate.baselines import Baselines
    from ..train.run import Run


class Task(ABC):
    """One kind of training. An instance serves one training: it holds the options and what was found in the data.

    A row has the task's own columns (`source` and `target`, `text` and `label`, …) and `origin`, its file and line.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    architecture: ClassVar[str | tuple[str, ...]]  # how the model's class name ends
    auto_model: ClassVar[type]
    pipeline_tag: ClassVar[str]  # the Hub's name of the task
    library: ClassVar[str] = "transformers"  # the Hub's name of what opens the finished model
    package: ClassVar[str] = "."  # what pip installs in a checkout to use it, with the extra
    arguments: ClassVar[type[TaskArguments]]
    config_class: ClassVar[type[PreTrainedConfig]] = RoFormerLiteConfig
    rows_are_independent: ClassVar[bool] = True  # whether rows may be shuffled
    new_model: ClassVar[dict[str, Any]] = {}  # fields of a new configuration, where --size is not given
    tries_bfloat16: ClassVar[bool] = True  # whether a trial decides on the type of numbers
    prediction_options: ClassVar[tuple[str, ...]] = ()  # those of `predict` that it uses
    engines: ClassVar[tuple[str, ...]] = tuple(ENGINES)  # of `predict`
    metric_names: ClassVar[tuple[str, ...]]  # every one that `metrics` may have, besides the loss

    def __init_subclass__(cls) -> None:
        if "arguments" in vars(cls):
            cls.name, cls.summary = getattr(cls.arguments, "task", ""), getattr(cls.arguments, "summary", "")

    def __init__(self, args: TaskArguments):
        self.args = args
        self.tokenizer: PreTrainedTokenizerBase | None = None  # from when it is known
        self.has_new_head = False  # on weights that were trained before
        self.has_own_class = True  # whether the model is of this package, and not of transformers

    def check_options(self, args: TrainingArguments) -> None:
        """Refuse options that would stop the command only after it has trained for some time.

        Raises:
            InputError: naming the option, its value and what would be right.
        """
        return None

    # reading

    def read_rows(self, files: Sequence[str]) -> Iterator[Row]:
        """The rows of the user's files, every one checked."""
        for path in files:
            for row in read_table(path, self.args.column_names):
                yield self.select_columns(row)

    @abstractmethod
    def select_columns(self, row: Row) -> Row:
        """The task's own columns of a row of a table or of a Hub dataset; `InputError` where one is missing."""

    def is_empty(self, row: Row) -> bool:
        """Whether there is nothing to learn from a row; such rows are left out, and counted."""
        return False

    def inspect_training_data(self, rows: Dataset) -> None:
        """Find what depends on all of the training data, such as the set of labels."""
        return None

    @abstractmethod
    def texts(self, rows: Iterable[Row]) -> Iterator[str]:
        """The text of the rows, to train a tokenizer on."""

    # model

    @property
    @abstractmethod
    def max_length(self) -> int:
        """The longest input in tokens."""

    def config_fields(self) -> dict[str, Any]:
        """Fields of the configuration that the task determines."""
        return {}

    def why_new_head(self, config: PreTrainedConfig) -> str:
        """Why the head of a given model does not fit the training data; empty if it does. The order that it has the
        labels in is then that of this training."""
        return ""

    def has_no_head(self, config: PreTrainedConfig) -> str:
        """That as a sentence, where the class of a model is of another kind; else empty."""
        has_head = architecture_of(config).endswith(self.architecture)
        return "" if has_head else f"{architecture_of(config)} has no head for {self.name}"

    def prepare_generation(self, model: PreTrainedModel, args: TrainingArguments) -> GenerationConfig | None:
        """Set the task's defaults of `generate`; returns a copy to save, because the Trainer fills in others."""
        return GenerationConfig.from_dict(model.generation_config.to_dict()) if model.can_generate() else None

    def prediction_settings(self) -> dict[str, Any]:
        """What `predict` and `evaluate` must know later and the configuration of the model does not hold."""
        return {name: getattr(self.args, name) for name in self.arguments.measuring_options}

    # training

    @classmethod
    def training_classes(cls) -> tuple[type[TrainingArguments], type[Trainer]]:
        """The classes of the training arguments and of the trainer."""
        from transformers import TrainingArguments

        from ..train.trainer import RoFormerLiteTrainer

        return TrainingArguments, RoFormerLiteTrainer

    @abstractmethod
    def encode(self, rows: Dataset, training: bool) -> Dataset:
        """Model inputs with labels. Without `training`, there is one example for each row, in the same order, if the
        metrics compare row by row."""

    def lengths(self, encoded: Dataset) -> list[int]:
        """Number of real tokens of each example."""
        return [len(ids) for ids in encoded["input_ids"]]

    @abstractmethod
    def collator(self, model: PreTrainedModel) -> Any:
        """One of transformers' data collators."""

    def trainer_parts(
        self, run: Run, args: TrainingArguments, model: PreTrainedModel, rows: DatasetDict, encoded: DatasetDict
    ) -> dict[str, Any]:
        """Arguments of the trainer's class: the model, the data, how to collate them and how to measure."""
        measures = "validation" in encoded and not self.measures_loss_only(args)
        return {
            "model": model,
            "train_dataset": encoded["train"],
            "eval_dataset": encoded.get("validation"),
            "data_collator": self.collator(model),
            "compute_metrics": partial(self.metrics, rows=rows["validation"]) if measures else None,
            "preprocess_logits_for_metrics": self.reduce_logits,
        }

    @property
    def tokenizer_name(self) -> str | None:
        """Where a new model's tokenizer comes from, unless the options say otherwise. Default: the training data."""
        return None

    def prepare_head(self, trainer: Trainer, train: Dataset) -> None:
        """Give a new head on weights that were trained before a better start than random numbers."""
        return None

    # measuring

    def measure(self, trainer: Trainer, split: str, rows: Dataset, encoded: Dataset) -> tuple[Metrics, EvalPrediction]:
        """The final metrics of a split, and the predictions that they are of."""
        from transformers import EvalPrediction

        output = trainer.predict(encoded, metric_key_prefix=split)
        prediction = EvalPrediction(output.predictions, output.label_ids)
        return {"loss": output.metrics[f"{split}_loss"], **self.metrics(prediction, rows)}, prediction

    def reduce_logits(self, logits: Any, labels: torch.Tensor) -> torch.Tensor:
        """The part of the logits that the metrics need (`preprocess_logits_for_metrics` of the Trainer)."""
        return logits

    def measures_loss_only(self, args: TrainingArguments) -> bool:
        """Whether evaluations during the training compute the loss only."""
        return False

    @abstractmethod
    def metrics(self, prediction: EvalPrediction, rows: Dataset) -> Metrics:
        """Metrics for predictions on the encoded `rows`. With several processes there may be more predictions than
        rows, because each process gets equally many: those beyond the last row must be ignored."""

    @property
    @abstractmethod
    def main_metric(self) -> str:
        """The metric by which the model is compared with baselines."""

    @property
    def metric_for_best_model(self) -> str:
        """The metric on the validation data by which the best checkpoint is chosen, where none is asked for."""
        return "loss"

    @abstractmethod
    def baselines(self, rows: DatasetDict, encoded: DatasetDict) -> Baselines:
        """Metrics of baselines that learn from the training rows, on the other splits."""

    def complete_model(self, run: Run, trainer: Trainer, encoded: DatasetDict) -> Baselines:
        """Add to the trained model what is not learnt by gradients; returns the metrics of its parts alone."""
        return {}

    def inspect_model(self, config: PreTrainedConfig, settings: dict[str, Any]) -> None:
        """Find in a saved model what `inspect_training_data` had found in the data, such as the set of labels.

        Raises:
            InputError: when the options of the task do not fit the model.
        """
        return None

    @abstractmethod
    def outcomes(self, prediction: EvalPrediction, rows: Dataset, encoded: Dataset) -> list[Outcome]:
        """What the model answered to each of the encoded `rows`, or to each block of their text."""

    def metrics_by_label(self, prediction: EvalPrediction, rows: Dataset) -> ByLabel:
        """Precision, recall, F1 and support of each label, where a task has labels. `prediction` is as for
        `metrics`."""
        return {}

    # saving

    def save_beside(self, folder: Path) -> None:
        """Save what the finished model needs besides its weights and its tokenizer, which are in `folder`."""
        return None

    # the card

    @abstractmethod
    def neutral_example(self) -> Row:
        """A row that is nobody's data, for a card that anybody may read."""

    @abstractmethod
    def example_line(self, row: Row) -> str:
        """A line of input for `predict`, made of a row."""

    @abstractmethod
    def snippet(self, model_id: str, row: Row) -> str:
        """Python code that uses the saved model on a row."""

    def metric_notes(self, model: PreTrainedModel) -> list[str]:
        """What a reader of the metrics must know about how they were measured."""
        return []

    # predicting

    @classmethod
    def check_prediction_options(
        cls, config: PreTrainedConfig, settings: dict[str, Any], options: dict[str, Any]
    ) -> None:
        """Refuse options of `predict` that were given and that a saved model does not use.

        Raises:
            InputError: naming the option and those that it uses.
        """
        foreign = [name for name in options if name not in cls.prediction_options]
        if foreign:
            theirs = ", ".join(f"--{name}" for name in cls.prediction_options) or "none of these options"
            raise InputError(f"--{foreign[0]} is not for {cls.name} models, which take {theirs}")

    @classmethod
    def input_of(cls, row: Row, text_column: str, text_pair_column: str | None) -> Input:
        """What `predict` gets of a row of a table.

        Raises:
            InputError: when the row lacks the column, or it holds something else.
        """
        return text_of(row, text_column, "text_column")

    @classmethod
    def load(cls, directory: str, config: PreTrainedConfig, device: torch.device) -> Any:
        """The saved model, as `predict` gets it; `InputError` when a file is missing or wrong."""
        model = load_complete_model(directory, config, model_class_of(config, directory)).to(device).eval()
        with suppress(ValueError):  # the training has said why
            padding_free(model)
        return model

    @classmethod
    def answer_columns(cls, saved: SavedModel, options: dict[str, Any]) -> list[str]:
        """The names of an answer's columns in a table."""
        return ["prediction"]

    @classmethod
    @abstractmethod
    def predict(cls, saved: SavedModel, inputs: list[Input], options: dict[str, Any]) -> list[Answer]:
        """An answer to each input, as one batch.

        Args:
            saved: A model that the task has trained, with its tokenizer and settings.
            inputs: None of them empty.
            options: Those of `prediction_options` that were given, by their names.
        """

    @property
    def first_import(self) -> str:
        """What makes the model known to transformers, which needs nothing to open its own classes."""
        line = "import hf_roformer_lite  # makes the architecture known to transformers\n"
        return line if self.has_own_class else ""

    def loading_code(self, model_id: str) -> str:
        """The lines that every snippet begins with."""
        auto = self.auto_model.__name__
        return (
            f"{self.first_import}from transformers import {auto}, AutoTokenizer\n\n"
            f"tokenizer = AutoTokenizer.from_pretrained({quoted(model_id)})\n"
            f"model = {auto}.from_pretrained({quoted(model_id)})\n"
        )

    def require(self, condition: bool, row: Row, message: str) -> None:
        """Raise `InputError` about `row` unless `condition` is true."""
        if not condition:
            raise InputError(f"{row['origin']}: {message}")


def architecture_of(config: PreTrainedConfig) -> str:
    """The class that a model was saved from."""
    return next(iter(config.architectures or ()), "the model")


def one_of(names: Sequence[str]) -> str:
    """`a, b or c`."""
    return " or ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


def quoted(value: str | list[str]) -> str:
    """Text as a Python literal in double quotes, with characters beyond ASCII kept readable."""
    return json.dumps(value, ensure_ascii=False)
