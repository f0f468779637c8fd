"""What a task is: how its rows are read and encoded, which model learns it, how it is measured, what it predicts.

`Task` is the common mechanism. The five tasks fill in their own parts (`task_seq2seq.py`, `task_language_model.py`,
`task_classify.py`, `task_tag.py`), and `task_registry.py` lists them.
"""

import json
import logging
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, ClassVar

import torch
from datasets import Dataset
from transformers import BatchEncoding, EvalPrediction, PreTrainedModel, PreTrainedTokenizerBase, Trainer
from transformers.configuration_utils import PreTrainedConfig

from ...errors import InputError
from ...model.configuration_roformer_lite import RoFormerLiteConfig
from ..arguments import DataArguments, LiteTrainingArguments
from ..data_files import Row, read_table
from ..metrics import Metrics
from ..trainer import LiteTrainer

logger = logging.getLogger(__name__)


class Task(ABC):
    """One kind of training. An instance serves one run: it holds the options and what was learnt about the data.

    Raw rows have the task's own columns (`source` and `target`, `text` and `label`, …) and `origin`.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    architecture: ClassVar[str]  # how the model's class name ends
    auto_model: ClassVar[type]
    pipeline_tag: ClassVar[str]  # the Hub's name of the task
    arguments: ClassVar[type[DataArguments]]
    config_class: ClassVar[type[PreTrainedConfig]] = RoFormerLiteConfig
    training_arguments: ClassVar[type[LiteTrainingArguments]] = LiteTrainingArguments
    trainer: ClassVar[type[Trainer]] = LiteTrainer
    rows_are_independent: ClassVar[bool] = True  # whether rows may be shuffled

    def __init__(self, args: DataArguments):
        self.args = args

    # reading

    def rows(self, files: Sequence[str]) -> Iterator[Row]:
        """Raw rows of the user's files, every one checked."""
        for path in files:
            for row in read_table(path, self.args.column_names):
                yield self.raw_row(row)

    @abstractmethod
    def raw_row(self, row: Row) -> Row:
        """A row of a table, or of a Hub dataset, with the task's own columns; `InputError` where one is missing."""

    def is_empty(self, row: Row) -> bool:
        """Whether there is nothing to learn from a raw row; such rows are left out, and counted."""
        return False

    def learn(self, train: Dataset) -> None:
        """Find out what only the whole training data tell, such as the set of labels."""
        return None

    @abstractmethod
    def texts(self, rows: Iterable[Row]) -> Iterator[str]:
        """The text of raw rows, to train a tokenizer on."""

    # model

    @property
    @abstractmethod
    def max_length(self) -> int:
        """The longest input in tokens."""

    def config_fields(self) -> dict[str, Any]:
        """Fields of the configuration that the task determines."""
        return {}

    def prepare_tokenizer(self, tokenizer: PreTrainedTokenizerBase) -> None:
        """Set how the tokenizer, saved beside the model, shall encode by default."""
        return None

    def prepare_generation(self, model: PreTrainedModel, args: LiteTrainingArguments) -> None:
        """Set what `generate` shall do by default, for measuring and later for users."""
        return None

    def settings(self) -> dict[str, Any]:
        """What `predict` must know later and the configuration does not hold."""
        return {}

    # training

    @abstractmethod
    def encode(self, raw: Dataset, tokenizer: PreTrainedTokenizerBase, training: bool) -> Dataset:
        """Model inputs with labels. Without `training`, one example for each raw row, in the same order, where the
        metrics compare row by row."""

    def lengths(self, encoded: Dataset) -> list[int]:
        """Real tokens of each example."""
        return [len(ids) for ids in encoded["input_ids"]]

    @abstractmethod
    def collator(self, tokenizer: PreTrainedTokenizerBase, model: PreTrainedModel) -> Any:
        """One of transformers' data collators."""

    # measuring

    def reduce_logits(self, logits: Any, labels: torch.Tensor) -> torch.Tensor:
        """What of the logits is kept for the metrics (`preprocess_logits_for_metrics` of the Trainer)."""
        return logits

    def measures_loss_only(self, args: LiteTrainingArguments) -> bool:
        """Whether evaluations in the course of the training look at the loss alone."""
        return False

    @abstractmethod
    def metrics(self, prediction: EvalPrediction, raw: Dataset, tokenizer: PreTrainedTokenizerBase) -> Metrics:
        """Figures for predictions on the encoded `raw`. There may be more predictions than rows when several processes
        had to be given equally many: the surplus at the end is to be ignored."""

    # the card

    @abstractmethod
    def example_line(self, row: Row) -> str:
        """A line of input for `predict`, made of a raw row."""

    @abstractmethod
    def snippet(self, model_id: str, row: Row) -> str:
        """Python code that uses the saved model on a raw row."""

    def metric_notes(self, model: PreTrainedModel) -> list[str]:
        """What a reader of the figures must know about how they were measured."""
        return []

    # predicting

    @classmethod
    @abstractmethod
    def predict(
        cls,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        lines: list[str],
        settings: dict[str, Any],
        generation: dict[str, Any],
    ) -> list[str]:
        """One line of output for each line of input, as one batch.

        Args:
            model, tokenizer: As saved by the task.
            lines: Not empty.
            settings: What `settings` gave when the model was trained.
            generation: Options for `generate`, where the task has use for them.
        """

    def loading_code(self, model_id: str) -> str:
        """The lines that every snippet begins with."""
        auto = self.auto_model.__name__
        return (
            "import hf_roformer_lite  # makes the architecture known to transformers\n"
            f"from transformers import {auto}, AutoTokenizer\n\n"
            f"tokenizer = AutoTokenizer.from_pretrained({quoted(model_id)})\n"
            f"model = {auto}.from_pretrained({quoted(model_id)})\n"
        )

    def check(self, value: bool, row: Row, message: str) -> None:
        """Raise `InputError` about `row` unless `value` holds."""
        if not value:
            raise InputError(f"{row['origin']}: {message}")


def encode_lines(tokenizer: PreTrainedTokenizerBase, *columns: list[str]) -> BatchEncoding:
    """Tensors of whole lines, or of pairs of them, with a warning when some are too long for the model and are cut."""
    encoded = tokenizer(*columns, truncation=True, padding=True, return_tensors="pt")
    if encoded["input_ids"].shape[1] >= tokenizer.model_max_length:
        whole = tokenizer(*columns, truncation=False, verbose=False)["input_ids"]
        cut = sum(len(ids) > tokenizer.model_max_length for ids in whole)
        if cut:
            logger.warning("%d lines are cut: they have more than %d tokens", cut, tokenizer.model_max_length)
    return encoded


def quoted(value: str | list[str]) -> str:
    """Text as a Python literal in double quotes, with its letters as they are."""
    return json.dumps(value, ensure_ascii=False)
