"""What a task is: its data, its model and its metrics.

Each of the three is a small class, here with what most tasks have in common; a module beside this
one holds the three of a task, in this order. How a saved model answers is in `predict/answers.py`,
what a card shows in `examples.py`. The libraries that only training needs, such as datasets, are
imported when a training begins, because `predict` starts seconds sooner without them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase
from transformers.configuration_utils import PreTrainedConfig

from hf_roformer_lite.model.configuration_roformer_lite import RoFormerLiteConfig

from ..data.data_files import Row, read_table
from ..errors import InputError
from ..evaluate.metrics import ByLabel, Metrics
from .task_arguments import TaskArguments

if TYPE_CHECKING:
    from pathlib import Path

    from datasets import Dataset, DatasetDict
    from transformers import EvalPrediction, Trainer, TrainingArguments

    from ..evaluate.baselines import Baselines
    from ..evaluate.report import LabelReport, Outcome
    from ..train.run import Run


class TaskData(ABC):
    """The user's data as rows, and the rows as inputs of the model.

    A row has the task's own columns (`source` and `target`, `text` and `label`, …) and `origin`,
    its file and line. An instance serves one training or one evaluation: it holds the options, and
    what was found in the data.
    """

    rows_are_independent: ClassVar[bool] = True  # whether rows may be shuffled
    has_labels: ClassVar[bool] = False  # whether labels are learned, and not the text itself
    # rows without any held out, which would choose a checkpoint; set by the training
    learns_from_few = False

    def __init__(self, args: TaskArguments):
        self.args = args
        self.tokenizer: PreTrainedTokenizerBase | None = None  # from when it is known

    def read_rows(self, files: Sequence[str]) -> Iterator[Row]:
        """The rows of the user's files, every one checked."""
        for path in files:
            for row in read_table(path, self.args.column_names):
                yield self.select_columns(row)

    @abstractmethod
    def select_columns(self, row: Row) -> Row:
        """The task's own columns of a row of a table or of a Hub dataset; `InputError` where one is
        missing."""

    def is_empty(self, row: Row) -> bool:
        """Whether there is nothing to learn from a row; such rows are left out, and counted."""
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

    def settings(self) -> dict[str, Any]:
        """What `predict` and `evaluate` must know later and the configuration of the model does not
        hold."""
        return {name: getattr(self.args, name) for name in self.args.measuring_options}

    @property
    def fewest_rows(self) -> int:
        """Of fewer training rows none are held out unasked, as none can be spared; known once the
        rows are read."""
        return 100

    @property
    def max_length(self) -> int:
        """The longest input in tokens."""
        return self.args.max_length

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
        """Model inputs with labels. Without `training`, there is one example for each row, in the
        same order, if the metrics compare row by row."""

    def lengths(self, encoded: Dataset) -> list[int]:
        """Number of real tokens of each example."""
        return [len(ids) for ids in encoded["input_ids"]]

    def collator(self, model: PreTrainedModel) -> Any:
        """One of transformers' data collators. Default: none, where the trainer has its own."""
        return None

    def require(self, condition: bool, row: Row, message: str) -> None:
        """Raise `InputError` about `row` unless `condition` is true."""
        if not condition:
            raise InputError(f"{row['origin']}: {message}")


class TaskModel:
    """Which model learns the task: its class, its configuration, its head, and what is added after
    the training."""

    architecture: ClassVar[str | tuple[str, ...]]  # how the model's class name ends
    auto_model: ClassVar[type]
    config_class: ClassVar[type[PreTrainedConfig]] = RoFormerLiteConfig
    # fields of a new configuration, where --size is not given
    new_model: ClassVar[dict[str, Any]] = {}
    uses_bfloat16: ClassVar[bool] = True  # on processors with instructions for it

    def __init__(self, data: TaskData):
        self.data = data
        self.has_new_head = False  # on weights that were trained before
        self.has_own_class = True  # whether the model is of this package, and not of transformers

    @classmethod
    def training_classes(cls) -> tuple[type[TrainingArguments], type[Trainer]]:
        """The classes of the training arguments and of the trainer."""
        from transformers import TrainingArguments

        from ..train.trainer import RoFormerLiteTrainer

        return TrainingArguments, RoFormerLiteTrainer

    def config_fields(self) -> dict[str, Any]:
        """Fields of the configuration that the task determines."""
        return {}

    def why_new_head(self, config: PreTrainedConfig) -> str:
        """Why the head of a given model does not fit the training data; empty if it does. The order
        that it has the labels in is then that of this training."""
        return ""

    def has_no_head(self, config: PreTrainedConfig) -> str:
        """That as a sentence, where the class of a model is of another kind; else empty."""
        name = next(iter(config.architectures or ()), "the model")
        return (
            ""
            if name.endswith(self.architecture)
            else f"{name} has no head for {self.data.args.task}"
        )

    def prepare_generation(
        self, model: PreTrainedModel, args: TrainingArguments
    ) -> GenerationConfig | None:
        """Set the task's defaults of `generate`; returns a copy to save, because the Trainer fills
        in others."""
        return (
            GenerationConfig.from_dict(model.generation_config.to_dict())
            if model.can_generate()
            else None
        )

    def prepare_head(self, trainer: Trainer, train: Dataset) -> bool:
        """Give a new head on weights that were trained before a better start than random numbers,
        and return whether it has got one."""
        return False

    def complete(
        self,
        run: Run,
        trainer: Trainer,
        rows: DatasetDict,
        encoded: DatasetDict,
        metrics: TaskMetrics,
    ) -> Baselines:
        """Add to the trained model what is not learned by gradients; returns the metrics of its
        parts alone."""
        return {}

    def learn_validation_rows(self, trainer: Trainer, encoded: DatasetDict) -> None:
        """Fit again, once the validation metrics are known, what also learns from the validation
        rows."""
        return None

    def save_beside(self, folder: Path) -> None:
        """Save what the finished model needs besides its weights and its tokenizer, which are in
        `folder`."""
        return None


class TaskMetrics(ABC):
    """How a model of the task is measured, and what it is compared with."""

    def __init__(self, data: TaskData, model: TaskModel):
        self.data, self.model = data, model

    def paired_tests(self, split: str) -> dict[str, float]:
        """The probability of a difference like that between the model and each baseline, were both
        equally good, from their answers to the same rows. Default: unknown."""
        return {}

    @property
    @abstractmethod
    def names(self) -> Sequence[str]:
        """The metrics besides the loss. They may depend on the data."""

    @property
    @abstractmethod
    def main(self) -> str:
        """The metric by which the model is compared with baselines."""

    @property
    def for_best_model(self) -> str:
        """The metric on the validation data by which the best checkpoint is chosen, where none is
        asked for."""
        return "loss"

    def in_training(self, args: TrainingArguments) -> list[str]:
        """The metrics of the validation data during the training."""
        return ["loss", *self.names]

    def measurements(self, rows: Dataset) -> int:
        """How many measurements the main metric of a split is the mean of."""
        return len(rows)

    def check(self, args: TrainingArguments, best: str | None = None) -> None:
        """Refuse options by which nothing could be measured, once the data are known.

        Args:
            args: Of the training.
            best: The `metric_for_best_model`, where one is asked for.

        Raises:
            InputError: naming the option, its value and what would be right.
        """
        known = self.in_training(args)
        if best is not None and best.removeprefix("eval_") not in known:
            raise InputError(
                f"--training_arguments metric_for_best_model={best} is not measured by {self.data.args.task} on these "
                f"data; choose one of {', '.join(known)}"
            )

    def reduce_logits(self, logits: Any, labels: torch.Tensor) -> torch.Tensor:
        """The part of the logits that the metrics need (`preprocess_logits_for_metrics` of the
        Trainer)."""
        return logits

    def compute(self, prediction: EvalPrediction, rows: Dataset) -> Metrics:
        """Metrics for predictions on the encoded `rows`. With several processes there may be more
        predictions than rows, because each process gets equally many: those beyond the last row
        must be ignored. Default: none, where the trainer has evaluators."""
        return {}

    def measure(
        self, trainer: Trainer, split: str, rows: Dataset, encoded: Dataset
    ) -> tuple[Metrics, EvalPrediction]:
        """The final metrics of a split, and the predictions that they are of."""
        from transformers import EvalPrediction

        output = trainer.predict(encoded, metric_key_prefix=split)
        prediction = EvalPrediction(output.predictions, output.label_ids)
        return {
            "loss": output.metrics[f"{split}_loss"],
            **self.compute(prediction, rows),
        }, prediction

    def outcomes(
        self, prediction: EvalPrediction, rows: Dataset, encoded: Dataset
    ) -> list[Outcome]:
        """What the model answered to each of the encoded `rows`, or to each block of their text.
        Default: nothing."""
        return []

    def report(self, outcomes: Sequence[Outcome]) -> LabelReport | None:
        """How well each label is found; None for tasks without labels."""
        return None

    def by_label(self, prediction: EvalPrediction, rows: Dataset) -> ByLabel:
        """Precision, recall, F1 and support of each label, where a task has labels; arguments as of
        `compute`."""
        return {}

    def baselines(self, rows: DatasetDict, encoded: DatasetDict) -> Baselines:
        """Metrics of baselines that learn from the training rows, on the other splits. Default:
        there are none."""
        return {}

    def notes(self, model: PreTrainedModel) -> list[str]:
        """What a reader of the metrics must know about how they were measured."""
        return []

    def draw(self, folder: Path) -> None:
        """Draw the pictures that the `notes` show. Default: none."""
        return None


class Task:
    """One kind of training: data, model and metrics, for the options of one training or
    evaluation."""

    name: ClassVar[str]
    summary: ClassVar[str]
    arguments: ClassVar[type[TaskArguments]]
    pipeline_tag: ClassVar[str]  # the Hub's name of the task
    library: ClassVar[str] = "transformers"  # the Hub's name of what opens the finished model
    package: ClassVar[str] = "."  # what pip installs in a checkout to use it, with the extra
    data_class: ClassVar[type[TaskData]]
    model_class: ClassVar[type[TaskModel]]
    metrics_class: ClassVar[type[TaskMetrics]]

    def __init_subclass__(cls) -> None:
        if "arguments" in vars(cls):
            cls.name, cls.summary = cls.arguments.task, cls.arguments.summary

    def __init__(self, args: TaskArguments):
        self.args, self.data = args, self.data_class(args)
        self.model = self.model_class(self.data)
        self.metrics = self.metrics_class(self.data, self.model)

    def trainer_parts(
        self,
        run: Run,
        args: TrainingArguments,
        model: PreTrainedModel,
        rows: DatasetDict,
        encoded: DatasetDict,
    ) -> dict[str, Any]:
        """Arguments of the trainer's class: the model, the data, how to collate them and how to
        measure."""
        measures = "validation" in encoded and self.metrics.in_training(args) != ["loss"]
        return {
            "model": model,
            "train_dataset": encoded["train"],
            "eval_dataset": encoded.get("validation"),
            "data_collator": self.data.collator(model),
            "compute_metrics": partial(self.metrics.compute, rows=rows["validation"])
            if measures
            else None,
            "preprocess_logits_for_metrics": self.metrics.reduce_logits,
        }
