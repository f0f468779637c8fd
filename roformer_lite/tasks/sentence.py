"""What the tasks embed and rerank share: models of sentence-transformers around a stack, with that
library's trainers, losses and evaluators."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from transformers import PreTrainedModel

from ..data.data_files import Row, columns_of, file_format, read_lines, read_table
from ..data.sentence_data import KINDS, kind_of, queries_and_documents, row_of_kind, text_columns
from ..errors import InputError
from ..evaluate.metrics import Metrics
from ..sentence_models import make_sentence_model
from .base import Task, TaskData, TaskMetrics, TaskModel
from .task_arguments import SentenceDataArguments

if TYPE_CHECKING:
    import torch
    from datasets import Dataset, DatasetDict
    from sentence_transformers.base.evaluation import BaseEvaluator
    from sentence_transformers.base.model import BaseModel
    from transformers import EvalPrediction, Trainer, TrainingArguments

    from ..evaluate.baselines import Baselines, ScoredPairs
    from ..train.run import Run


CORRELATIONS = ("spearman", "pearson")
RETRIEVAL = ("mrr@10", "accuracy@1", "accuracy@10")
RERANKING = ("mrr@10", "ndcg@10", "map")


class SentenceData(TaskData):
    """Rows of one of the kinds of `sentence_data`, whose columns determine the loss and the
    metrics."""

    args: SentenceDataArguments
    kinds: ClassVar[tuple[str, ...]] = ("scores", "triplets", "pairs")

    def __init__(self, args: SentenceDataArguments):
        super().__init__(args)
        self.kind = ""  # of the training data
        self.measured_kind = ""  # of the validation and test data

    def read_rows(self, files: Sequence[str]) -> Iterator[Row]:
        kind = None
        for path in files:
            lines = file_format(path) == ".txt" and "texts" in self.kinds
            for row in read_lines(path) if lines else read_table(path, self.args.column_names):
                kind, selected = row_of_kind(row, self.kinds, kind)
                yield selected

    def select_columns(self, row: Row) -> Row:
        return row_of_kind(row, self.kinds, None)[1]

    def is_empty(self, row: Row) -> bool:
        return not all(self.texts([row]))

    def texts(self, rows: Iterable[Row]) -> Iterator[str]:
        return (
            value for row in rows for value in columns_of(row).values() if isinstance(value, str)
        )

    def inspect(self, rows: DatasetDict) -> None:
        kinds = {split: kind_of(dataset) for split, dataset in rows.items()}
        self.kind = kinds.pop("train")
        self.measured_kind = next(iter(kinds.values()), "")
        for kind in kinds.values():
            if kind != self.measured_kind:
                raise InputError(
                    f"the validation data have the columns {', '.join(KINDS[self.measured_kind])}, but the test data "
                    f"{', '.join(KINDS[kind])}; both are measured in the same way, and need the same columns"
                )

    def encode(self, rows: Dataset, training: bool) -> Dataset:
        """The texts, which the library itself turns into tokens, and the scores."""
        kind = kind_of(rows)
        if not training:
            self.measured_kind = kind
        return rows.select_columns(list(KINDS[kind]))

    def lengths(self, encoded: Dataset) -> list[int]:
        columns = [encoded[name] for name in text_columns(kind_of(encoded))]
        return [sum(map(len, texts)) for texts in zip(*columns, strict=True)]

    def scored_pairs(self, encoded: Dataset) -> ScoredPairs:
        """First texts, second texts and scores of a split that is measured by correlations."""
        return encoded["sentence1"][:], encoded["sentence2"][:], encoded["score"][:]


class SentenceModel(TaskModel):
    """A model of sentence-transformers around one of this package, or one of transformers."""

    uses_bfloat16 = False  # sentence-transformers makes its own batches
    class_name: ClassVar[str]  # of sentence-transformers

    def __init__(self, data: SentenceData):
        super().__init__(data)
        self.sentence_model: BaseModel | None = None

    @classmethod
    def training_classes(cls) -> tuple[type[TrainingArguments], type[Trainer]]:
        import sentence_transformers

        from ..train.sentence_trainers import TRAINERS

        return getattr(sentence_transformers, f"{cls.class_name}TrainingArguments"), TRAINERS[
            cls.class_name
        ]

    @classmethod
    def sentence_class(cls) -> type[BaseModel]:
        """The class of sentence-transformers that opens the finished model."""
        import sentence_transformers

        return getattr(sentence_transformers, cls.class_name)

    def wrap(self, model: PreTrainedModel, run: Run) -> BaseModel:
        """The model of sentence-transformers around `model`, which it shares."""
        kind, tokenizer, given = (
            self.sentence_class(),
            self.data.tokenizer,
            run.model.model_name_or_path,
        )
        self.sentence_model = make_sentence_model(
            kind, model, tokenizer, self.data.max_length, modules_of=given
        )
        return self.sentence_model

    @property
    def compares_rows(self) -> bool:
        """Whether a row learns from the other rows of its batch alone."""
        return self.data.kind == "pairs"

    def prepare_targets(self, encoded: DatasetDict) -> None:
        """Bring training data into the form that the model needs."""
        return None

    @abstractmethod
    def loss(self, model: BaseModel) -> torch.nn.Module:
        """The library's loss for the kind of the training data."""

    def save_beside(self, folder: Path) -> None:
        self.sentence_model.save_pretrained(str(folder), create_model_card=False)


class SentenceMetrics(TaskMetrics):
    """The metrics of the library's evaluators: correlations with scores, or how well right texts
    are found."""

    data: SentenceData
    model: SentenceModel

    def __init__(self, data: SentenceData, model: SentenceModel):
        super().__init__(data, model)
        self.evaluators: dict[str, BaseEvaluator] = {}

    @property
    def are_correlations(self) -> bool:
        """Whether the data have scores to correlate with."""
        return (self.data.measured_kind or self.data.kind) in ("scores", "texts")

    @property
    def main(self) -> str:
        return "spearman" if self.are_correlations else "mrr@10"

    @property
    def for_best_model(self) -> str:
        return self.main

    def in_training(self, args: TrainingArguments) -> list[str]:
        return [*self.names, *(["loss"] if self.data.measured_kind == self.data.kind else [])]

    @abstractmethod
    def evaluator(self, encoded: Dataset, batch_size: int) -> BaseEvaluator:
        """The library's evaluators on a split."""

    def measure(
        self, trainer: Trainer, split: str, rows: Dataset, encoded: Dataset
    ) -> tuple[Metrics, EvalPrediction]:
        from transformers import EvalPrediction

        trainer.evaluator, metrics = None, {}
        if self.data.measured_kind == self.data.kind:
            metrics["loss"] = trainer.evaluate(encoded, metric_key_prefix=split)[f"{split}_loss"]
        metrics |= self.evaluators[split](self.model.sentence_model)
        return metrics, EvalPrediction(np.empty(0), np.empty(0))

    def measure_saved(self, model: BaseModel, encoded: Dataset, batch_size: int) -> Metrics:
        """The metrics of a saved model on labelled data."""
        model.max_seq_length = self.data.args.max_length
        self.model.sentence_model = model
        return self.evaluator(encoded, batch_size)(model)

    def baselines(self, rows: DatasetDict, encoded: DatasetDict) -> Baselines:
        from ..evaluate.baselines import TfidfCosine

        cosine = TfidfCosine(list(self.data.texts(rows["train"])))
        by_split: dict[str, Metrics] = {}
        for split, dataset in encoded.items():
            if split == "train":
                continue
            if self.are_correlations:
                by_split[split] = cosine.correlations(self.data.scored_pairs(dataset))
            else:
                by_split[split] = cosine.retrieval(queries_and_documents(dataset))
        return {"TF-IDF cosine": by_split}

    def notes(self, model: PreTrainedModel) -> list[str]:
        if self.are_correlations:
            return ["Pearson and Spearman are correlations from -1 to 1."]
        return [
            "Every different first text of the split is a query, every other different text of it a document: "
            "accuracy@k is how often a right one is among the first k, and mrr@10 the mean of 1/rank among the first "
            "ten. Larger splits are harder."
        ]


class SentenceTask(Task):
    """A task of sentence-transformers."""

    library = "sentence-transformers"
    package = '".[embed]"'
    arguments: ClassVar[type[SentenceDataArguments]]
    data: SentenceData
    model: SentenceModel
    metrics: SentenceMetrics

    def trainer_parts(
        self,
        run: Run,
        args: TrainingArguments,
        model: PreTrainedModel,
        rows: DatasetDict,
        encoded: DatasetDict,
    ) -> dict[str, Any]:
        from sentence_transformers.base.sampler import BatchSamplers

        from ..train.sentence_trainers import ShuffledBatches

        if self.model.compares_rows and min(args.train_batch_size, len(encoded["train"])) < 2:
            given = f"--per_device_train_batch_size {args.per_device_train_batch_size}, {len(encoded['train'])} rows"
            raise InputError(
                f"{given}: with the columns {', '.join(KINDS[self.data.kind])} a row learns from the others of its "
                "batch, and alone nothing; give at least two"
            )
        wrapped = self.model.wrap(model.to(args.device), run)
        measured, batch_size = (
            [split for split in encoded if split != "train"],
            args.per_device_eval_batch_size,
        )
        self.metrics.evaluators = {
            split: self.metrics.evaluator(encoded[split], batch_size) for split in measured
        }
        self.model.prepare_targets(encoded)
        if args.batch_sampler == BatchSamplers.BATCH_SAMPLER:  # the default
            # in these a positive must not be a negative too
            is_free = self.data.kind not in ("pairs", "triplets")
            args.batch_sampler = ShuffledBatches if is_free else BatchSamplers.NO_DUPLICATES
        return {
            "model": wrapped,
            "train_dataset": encoded["train"],
            "eval_dataset": encoded.get("validation")
            if self.data.measured_kind == self.data.kind
            else None,
            "evaluator": self.metrics.evaluators.get("validation"),
            "loss": self.model.loss(wrapped),
        }
