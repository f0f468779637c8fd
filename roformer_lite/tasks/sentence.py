"""What the tasks embed and rerank share: models of sentence-transformers around a stack of this
package, with that library's trainers, losses and evaluators."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from transformers import PreTrainedModel

from hf_roformer_lite.padding_free import padding_free

from ..data.data_files import Row, columns_of, file_format, read_lines, read_table, text_of
from ..data.sentence_data import KINDS, kind_of, queries_and_documents, row_of_kind, text_columns
from ..errors import InputError
from ..evaluate.metrics import Metrics
from ..train.sentence_models import make_sentence_model, open_sentence_model
from .answers import Answer, Input, Outcome, SavedModel
from .base import Task, one_of, quoted
from .task_arguments import SentenceDataArguments

if TYPE_CHECKING:
    from pathlib import Path

    import torch
    from datasets import Dataset, DatasetDict
    from sentence_transformers.base.evaluation import BaseEvaluator
    from sentence_transformers.base.model import BaseModel
    from transformers import EvalPrediction, Trainer, TrainingArguments
    from transformers.configuration_utils import PreTrainedConfig

    from ..evaluate.baselines import Baselines, ScoredPairs, TfidfCosine
    from ..train.run import Run


class SentenceTask(Task):
    """A task of sentence-transformers. The column names of the data determine the loss and the metrics."""

    library = "sentence-transformers"
    package = '".[embed]"'
    arguments: ClassVar[type[SentenceDataArguments]]
    tries_bfloat16 = False  # the library makes its own batches
    engines = ("torch",)
    kinds: ClassVar[tuple[str, ...]] = ("scores", "triplets", "pairs")
    measured_kind = ""  # of the validation and test data

    def __init__(self, args: SentenceDataArguments):
        super().__init__(args)
        self.kind = ""  # of the training data
        self.sentence_model: BaseModel | None = None
        self.evaluators: dict[str, BaseEvaluator] = {}

    def check_options(self, args: TrainingArguments) -> None:
        if args.label_smoothing_factor:
            raise InputError(
                f"label_smoothing_factor is not for {self.name}, whose losses have no labels; leave it out"
            )

    # reading

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
        return not all(value for value in columns_of(row).values() if isinstance(value, str))

    def inspect_training_data(self, rows: Dataset) -> None:
        self.kind = kind_of(rows)

    def texts(self, rows: Iterable[Row]) -> Iterator[str]:
        for row in rows:
            yield from (value for value in columns_of(row).values() if isinstance(value, str))

    # model

    @property
    def max_length(self) -> int:
        return self.args.max_length

    @classmethod
    @abstractmethod
    def model_class(cls) -> type[BaseModel]:
        """The class of sentence-transformers that opens the finished model."""

    # training

    def encode(self, rows: Dataset, training: bool) -> Dataset:
        """The texts, which the library itself turns into tokens, and the scores."""
        kind = kind_of(rows)
        if not training:
            if self.measured_kind and kind != self.measured_kind:
                raise InputError(
                    f"the validation data have the columns {', '.join(KINDS[self.measured_kind])}, but the test data "
                    f"{', '.join(KINDS[kind])}; both are measured in the same way, and need the same columns"
                )
            self.measured_kind = kind
        return rows.select_columns(list(KINDS[kind]))

    def lengths(self, encoded: Dataset) -> list[int]:
        columns = [encoded[name] for name in text_columns(kind_of(encoded))]
        return [sum(map(len, texts)) for texts in zip(*columns, strict=True)]

    def collator(self, model: PreTrainedModel) -> Any:
        """None: the trainer of sentence-transformers has its own."""
        return None

    def trainer_parts(
        self, run: Run, args: TrainingArguments, model: PreTrainedModel, rows: DatasetDict, encoded: DatasetDict
    ) -> dict[str, Any]:
        parts = (model.to(args.device), self.tokenizer, self.args.max_length)
        self.sentence_model = make_sentence_model(self.model_class(), *parts, modules_of=run.model.model_name_or_path)
        batch_size = args.per_device_eval_batch_size
        self.evaluators = {split: self.evaluator(encoded[split], batch_size) for split in encoded if split != "train"}
        self.prepare_targets(encoded)
        if self.kind in ("pairs", "triplets"):
            from sentence_transformers.base.sampler import BatchSamplers

            args.batch_sampler = BatchSamplers.NO_DUPLICATES  # a positive must not be a negative too
        loss = self.loss(self.sentence_model)
        self.check_metric(run)
        return {
            "model": self.sentence_model,
            "train_dataset": encoded["train"],
            "eval_dataset": encoded.get("validation") if self.measured_kind == self.kind else None,
            "evaluator": self.evaluators.get("validation"),
            "loss": loss,
        }

    def check_metric(self, run: Run) -> None:
        """Refuse a `metric_for_best_model` that these validation data do not give."""
        best = run.training.stock.get("metric_for_best_model")
        if "validation" not in self.evaluators or best is None:
            return
        measured = [*self.evaluators["validation"].metrics, *(["loss"] if self.measured_kind == self.kind else [])]
        if best.removeprefix("eval_") not in measured:
            raise InputError(
                f"--training_arguments metric_for_best_model={best} is not measured on these validation data; choose "
                f"{one_of(measured)}"
            )

    def prepare_targets(self, encoded: DatasetDict) -> None:
        """Bring training data into the form that the model needs."""
        return None

    @abstractmethod
    def loss(self, model: BaseModel) -> torch.nn.Module:
        """The library's loss for the kind of the training data."""

    # measuring

    @abstractmethod
    def evaluator(self, encoded: Dataset, batch_size: int) -> BaseEvaluator:
        """The library's evaluators on a split."""

    def measure(self, trainer: Trainer, split: str, rows: Dataset, encoded: Dataset) -> tuple[Metrics, EvalPrediction]:
        from transformers import EvalPrediction

        trainer.evaluator, metrics = None, {}
        if self.measured_kind == self.kind:
            metrics["loss"] = trainer.evaluate(encoded, metric_key_prefix=split)[f"{split}_loss"]
        metrics |= self.evaluators[split](self.sentence_model)
        return metrics, EvalPrediction(np.empty(0), np.empty(0))

    def measure_saved(self, model: BaseModel, encoded: Dataset, batch_size: int) -> Metrics:
        """The metrics of a saved model on labelled data."""
        model.max_seq_length = self.args.max_length
        self.sentence_model = model
        return self.evaluator(encoded, batch_size)(model)

    def metrics(self, prediction: EvalPrediction, rows: Dataset) -> Metrics:
        """Nothing: the metrics are those of the evaluators, in `measure`."""
        return {}

    def outcomes(self, prediction: EvalPrediction, rows: Dataset, encoded: Dataset) -> list[Outcome]:
        """None: what the library's evaluators give is metrics."""
        return []

    @property
    def metric_for_best_model(self) -> str:
        return self.main_metric

    @property
    def main_metric(self) -> str:
        return "spearman" if self.measured_kind in ("scores", "texts") else "mrr@10"

    def baselines(self, rows: DatasetDict, encoded: DatasetDict) -> Baselines:
        from ..evaluate.baselines import TfidfCosine

        cosine = TfidfCosine(list(self.texts(rows["train"])))
        measured = {split: dataset for split, dataset in encoded.items() if split != "train"}
        return {"cosine of TF-IDF": {split: self.baseline_metrics(cosine, measured[split]) for split in measured}}

    def baseline_metrics(self, cosine: TfidfCosine, encoded: Dataset) -> Metrics:
        """What the cosine of TF-IDF gives on a split."""
        if self.main_metric == "spearman":
            return cosine.correlations(self.scored_pairs(encoded))
        return cosine.retrieval(queries_and_documents(encoded))

    def scored_pairs(self, encoded: Dataset) -> ScoredPairs:
        """First texts, second texts and scores of a split that is measured by correlations."""
        return encoded["sentence1"][:], encoded["sentence2"][:], encoded["score"][:]

    # the card

    def neutral_example(self) -> Row:
        return {"anchor": "a question", "positive": "its answer"}

    def first_texts(self, row: Row) -> list[str]:
        """The texts of a row that a snippet shows: one, or a pair."""
        return list(self.texts([row]))[:2]

    def loading_code(self, model_id: str) -> str:
        name = self.model_class().__name__
        return f"{self.first_import}from sentence_transformers import {name}\n\nmodel = {name}({quoted(model_id)})\n"

    def metric_notes(self, model: PreTrainedModel) -> list[str]:
        if self.main_metric == "spearman":
            return ["Pearson and Spearman are correlations from -1 to 1."]
        return [
            "Every different first text of the split is a query, every other different text of it a document: "
            "accuracy@k is how often a right one is among the first k, and mrr@10 the mean of 1/rank among the first "
            "ten. Larger splits are harder."
        ]

    # predicting

    @classmethod
    def load(cls, directory: str, config: PreTrainedConfig, device: torch.device) -> BaseModel:
        super().load(directory, config, device)  # which refuses damaged files
        model = open_sentence_model(cls.model_class(), directory, str(device)).eval()
        with suppress(ValueError):  # the training has said why
            padding_free(model)
        return model

    # saving

    def save_beside(self, folder: Path) -> None:
        self.sentence_model.save_pretrained(str(folder), create_model_card=False)


class PairTask(SentenceTask):
    """A task whose models answer a pair of texts, a query and a document, with a score."""

    prediction_options = ("text_pair_column",)

    def prediction_settings(self) -> dict[str, Any]:
        return {"pairs": True, **super().prediction_settings()}

    def example_line(self, row: Row) -> str:
        return "\t".join(self.first_texts(row))

    @classmethod
    def input_of(cls, row: Row, text_column: str, text_pair_column: str | None) -> Input:
        if text_pair_column is None:
            raise InputError(
                f"{cls.name} models score pairs of texts; give --text_pair_column, the column of the second"
            )
        return [text_of(row, text_column), text_of(row, text_pair_column)]

    @classmethod
    def answer_columns(cls, saved: SavedModel, options: dict[str, Any]) -> list[str]:
        return ["score"]

    @classmethod
    def predict(cls, saved: SavedModel, inputs: list[Input], options: dict[str, Any]) -> list[Answer]:
        """The score of each pair."""
        pairs = [given.split("\t") if isinstance(given, str) else given for given in inputs]
        for pair in pairs:
            if len(pair) != 2:
                raise InputError(
                    f"{cls.name} models score pairs of texts, separated by a tab or in two columns of a table; got "
                    f"{quoted(pair[0])} with {len(pair) - 1} tabs"
                )
        return [Answer(f"{score:.4f}", {"score": round(score, 4)}) for score in cls.scores(saved, pairs)]

    @classmethod
    @abstractmethod
    def scores(cls, saved: SavedModel, pairs: list[list[str]]) -> list[float]:
        """The scores of queries and documents, as one batch."""
