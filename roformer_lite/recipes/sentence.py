"""The common base of the tasks embed and rerank: models of sentence-transformers, with that
library's trainers, losses and evaluators."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
import torch
from transformers import PreTrainedConfig, PreTrainedTokenizerBase

from ..data.data_files import Row, read_table
from ..data.duplicates import SEEN
from ..data.reader import Reader
from ..data.sentence_data import KINDS, kind_of, queries_and_documents, row_of_kind
from ..errors import InputError
from ..measuring.baselines import Predictions, ScoredPairs, TfidfCosine
from ..measuring.metrics import CORRELATIONS, Metrics, regression_metrics
from ..measuring.significance import Measured, correlation, mean
from ..options.tasks import SentenceDataArguments
from ..saved.sentence_models import make_sentence_model, open_sentence_model
from .base import FittedBaseline, Recipe, Start
from .loaded_model import LoadedModel

if TYPE_CHECKING:
    from datasets import Dataset, DatasetDict
    from sentence_transformers.base.model import BaseModel
    from transformers import TrainingArguments


class SentenceReader(Reader):
    """Reads rows with the columns of one of `KINDS`."""

    input_columns = ("sentence1", "sentence2", "anchor", "positive")
    target_columns = ("negative",)

    options: SentenceDataArguments

    def read_rows(self, files: Sequence[str]) -> Iterator[Row]:
        kind = None
        for path in files:
            for row in read_table(path, self.options.column_names):
                kind, selected = row_of_kind(row, kind)
                yield selected

    def select_columns(self, row: Row) -> Row:
        _, selected = row_of_kind(row, None)
        return selected


@dataclass(frozen=True)
class SentenceRecipe(Recipe):
    """The common base of the tasks of sentence-transformers.

    The kind of the training data determines the loss, and the kind of the evaluation data
    determines the metrics.

    Attributes:
        compared_kinds: The losses of these kinds of rows compare each row with the others of its
            batch.
        ranking_metrics: The metrics of pairs and triplets. The first one is the main metric.

    Args:
        kind: The kind of the training data; empty if it is unknown, as for a checkpoint of another
            program.
        measured_kind: The kind of the validation and test data; empty if there are none.
    """

    reader_class = SentenceReader
    library = "sentence-transformers"
    package = '".[embed]"'
    takes_graphs = False
    compares_checkpoint = True
    smooths_labels = False
    # Sentence-transformers makes its own batches.
    neutral_example = {"anchor": "a question", "positive": "its answer"}
    compared_kinds: ClassVar[tuple[str, ...]] = ("pairs",)
    ranking_metrics: ClassVar[tuple[str, ...]]

    options: SentenceDataArguments
    kind: str = ""
    measured_kind: str = ""

    @classmethod
    @abstractmethod
    def sentence_class(cls) -> type[BaseModel]:
        """The class of sentence-transformers that opens the finished model."""

    # What is found in the data or in a saved model.

    @classmethod
    def inspect(cls, options: Any, rows: DatasetDict) -> Self:
        kinds = {split: kind_of(dataset) for split, dataset in rows.items()}
        kind = kinds.pop("train")
        measured_kind = next(iter(kinds.values()), "")
        for own_kind in kinds.values():
            if own_kind != measured_kind:
                raise InputError(
                    "the validation data have the columns "
                    f"{', '.join(KINDS[measured_kind])}, but the test data "
                    f"have {', '.join(KINDS[own_kind])}; both need the same columns, because they "
                    "are evaluated with the same metrics"
                )
        return cls(options, kind=kind, measured_kind=measured_kind)

    @classmethod
    def of_model(cls, options: Any, config: PreTrainedConfig, settings: dict[str, Any]) -> Self:
        kind = settings.get("kind")
        # Version 0.2 also trained from texts alone, with the vectors of a teacher.
        return cls(options, kind=kind if kind in KINDS else "")

    def settings(self) -> dict[str, Any]:
        return {**super().settings(), "kind": self.kind}

    # Encoding.

    def encode(self, rows: Any, tokenizer: PreTrainedTokenizerBase, training: bool) -> Any:
        """The texts, which sentence-transformers tokenises itself, and the scores."""
        return rows.select_columns(list(KINDS[kind_of(rows)]))

    # The model, and its training.

    def prepared(self, start: Start) -> Start:
        model: Any = start.model
        made = make_sentence_model(
            self.sentence_class(),
            model.to(start.args.device),
            start.tokenizer,
            self.max_length,
            modules_of=start.run.model.model_name_or_path,
        )
        return replace(start, trained=made)

    @abstractmethod
    def loss(self, model: Any) -> torch.nn.Module:
        """The library's loss of a model for the kind of the training data."""

    def trainer_parts(self, start: Start) -> dict[str, Any]:
        args = start.args
        encoded = start.encoded
        number = len(encoded["train"])
        if self.kind in self.compared_kinds and min(args.train_batch_size, number) < 2:
            raise InputError(
                f"--per_device_train_batch_size {args.per_device_train_batch_size}, {number} rows: "
                f"with the columns {', '.join(KINDS[self.kind])} a row is compared with the others "
                "of its batch; pass at least two"
            )
        evaluator = None
        if "validation" in encoded:
            evaluator = partial(
                self.metrics_of,
                rows=encoded["validation"],
                batch_size=args.per_device_eval_batch_size,
            )
        has_loss = self.measured_kind == self.kind
        return {
            "train_dataset": encoded["train"],
            "eval_dataset": encoded.get("validation") if has_loss else None,
            "evaluator": evaluator,
            "loss": self.loss(start.trained),
            # The texts of the other rows serve as negatives, and must not equal the positive.
            "avoids_duplicates": self.kind in ("pairs", "triplets"),
        }

    # Choosing a checkpoint.

    @property
    def are_correlations(self) -> bool:
        """Whether the metrics are correlations with the scores in the evaluation data."""
        return (self.measured_kind or self.kind) == "scores"

    @property
    def metric_names(self) -> Sequence[str]:
        return CORRELATIONS if self.are_correlations else self.ranking_metrics

    @property
    def metric_for_best_model(self) -> str:
        return self.main_metric

    def metrics_in_training(self, args: TrainingArguments) -> list[str]:
        loss = ["loss"] if self.measured_kind == self.kind else []
        return [*self.metric_names, *loss]

    def metrics_of(self, model: BaseModel, rows: Dataset, batch_size: int) -> Metrics:
        """The `metric_names` of a model of the library."""
        return self.measured(self.predicted(model, rows, batch_size), rows).metrics

    # Answering.

    def open(self, directory: str, config: PreTrainedConfig, device: torch.device) -> BaseModel:
        # This reports damaged files, for which sentence-transformers would use random numbers.
        super().open(directory, config, torch.device("cpu"))
        return open_sentence_model(self.sentence_class(), directory, str(device))

    def truncates(self, positions: int | None, tokenizer: PreTrainedTokenizerBase) -> bool:
        return True

    # Measuring.

    def for_rows(self, saved: LoadedModel, rows: Dataset) -> Self:
        kind = kind_of(rows)
        # Models of other programs have lengths of their own, which belong to the results.
        length = saved.model.max_seq_length or self.options.max_length
        return replace(self, measured_kind=kind, options=replace(self.options, max_length=length))

    def evaluate(self, saved: LoadedModel, rows: Dataset, batch_size: int, seed: int) -> Measured:
        return self.measured(self.predicted(saved.model, rows, batch_size), rows)

    @abstractmethod
    def predicted(self, model: Any, rows: Dataset, batch_size: int) -> np.ndarray:
        """The predictions of a model of the library, in the form that `measured` takes."""

    def measured(self, predicted: np.ndarray, rows: Dataset) -> Measured:
        """The metrics of the scores of pairs, `(rows,)`, or of the metrics of each query,
        `(queries, metrics)`."""
        if not self.are_correlations:
            means = predicted.mean(axis=0).tolist()
            metrics = dict(zip(self.ranking_metrics, means, strict=True))
            return Measured(metrics, mean(predicted[:, 0]))
        true = np.array(self.scored_pairs(rows)[2], dtype=float)
        found = regression_metrics(predicted, true)
        metrics = {name: found[name] for name in CORRELATIONS}
        return Measured(metrics, correlation(predicted, true, of_ranks=True))

    def scored_pairs(self, rows: Dataset) -> ScoredPairs:
        """First texts, second texts and scores of a split whose metrics are correlations."""
        return rows["sentence1"][:], rows["sentence2"][:], rows["score"][:]

    def in_order(self, rows: Dataset) -> Dataset:
        """The rows in the order in which they are measured."""
        return rows

    def are_seen(self, saved: LoadedModel, rows: Dataset) -> np.ndarray:
        rows = self.in_order(rows)
        if self.are_correlations:
            return np.array(rows[SEEN])
        by_query = rows.to_pandas().groupby("anchor", sort=False)
        return by_query[SEEN].any().to_numpy()

    def baselines(self, rows: DatasetDict, fitted: FittedBaseline | None) -> Predictions:
        cosine = TfidfCosine(list(self.texts(rows["train"])))
        by_split = {}
        for split, dataset in rows.items():
            if split == "train":
                continue
            if self.are_correlations:
                by_split[split] = cosine.cosines(self.scored_pairs(dataset))
            else:
                by_split[split] = cosine.retrieval(queries_and_documents(dataset))
        return {"TF-IDF cosine": by_split}

    # What the card shows.

    def notes(self) -> list[str]:
        if self.are_correlations:
            return ["Pearson and Spearman are correlations from -1 to 1."]
        return [
            "Every distinct first text of the split is a query, and every distinct text of the "
            "other columns is a document, even if it equals the query: accuracy@k is the fraction "
            "of queries with a relevant document among the first k, and mrr@10 is the mean of "
            "1/rank among the first ten. Larger splits are harder."
        ]
