"""The tasks embed and rerank: models of sentence-transformers, with that library's trainers, losses
and evaluators."""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from transformers import AutoModel, AutoModelForSequenceClassification, PreTrainedModel
from transformers.configuration_utils import PreTrainedConfig

from ..data.data_files import Row, columns_of, file_format, read_lines, read_table
from ..data.sentence_data import (
    KINDS,
    MAX_QUERIES,
    candidates,
    check_scores,
    kind_of,
    queries_and_documents,
    row_of_kind,
)
from ..errors import InputError
from ..evaluate.baselines import ScoredPairs, TfidfCosine
from ..evaluate.metrics import CORRELATIONS, Metrics
from ..options.tasks import EmbedDataArguments, RerankDataArguments, SentenceDataArguments
from ..sentence_models import make_sentence_model, open_sentence_model
from ..teacher import open_teacher, principal_axes, take_over_tokens
from .base import (
    OWN_IMPORT,
    Answer,
    Input,
    Measured,
    MeasuredBaselines,
    Recipe,
    Shown,
    quoted,
    significant,
)

if TYPE_CHECKING:
    from pathlib import Path

    from datasets import Dataset, DatasetDict
    from sentence_transformers import CrossEncoder, SentenceTransformer
    from sentence_transformers.base.evaluation import BaseEvaluator
    from sentence_transformers.base.model import BaseModel
    from transformers import TrainingArguments

    from ..answers import SavedModel
    from ..run import Run

RETRIEVAL = ("mrr@10", "accuracy@1", "accuracy@10")
RERANKING = ("mrr@10", "ndcg@10", "map")
# The `classifier_pooling` of a configuration for each pooling mode of the library.
POOLINGS = {"mean": "mean", "cls": "cls", "lasttoken": "last"}
ONLY_TEXTS = (
    "data with only the column text say nothing about similarity; for training, give --teacher, a "
    "model whose vectors are learned; for both training and evaluation, data with columns such as "
    "anchor and positive can be used"
)


class SentenceRecipe(Recipe):
    """The common base of the tasks of sentence-transformers.

    A row has the columns of one of `KINDS`. The kind of the training data determines the loss, and
    the kind of the evaluation data determines the metrics.
    """

    options: SentenceDataArguments
    library = "sentence-transformers"
    package = '".[embed]"'
    engines = ("torch",)
    truncates = True
    # Sentence-transformers makes its own batches.
    uses_bfloat16 = False
    # The task can learn from these kinds of rows.
    kinds: ClassVar[tuple[str, ...]] = ("scores", "triplets", "pairs")
    # The losses of these kinds of rows compare each row with the others of its batch.
    compared_kinds: ClassVar[tuple[str, ...]] = ("pairs",)

    def __init__(self, options: SentenceDataArguments):
        super().__init__(options)
        # The kind of the training data, and the kind of the validation and test data.
        self.kind = ""
        self.measured_kind = ""
        # The model to train, which wraps a model of transformers.
        self.sentence_model: BaseModel | None = None

    @classmethod
    @abstractmethod
    def sentence_class(cls) -> type[BaseModel]:
        """The class of sentence-transformers that opens the finished model."""

    # Reading the data.

    def read_rows(self, files: Sequence[str]) -> Iterator[Row]:
        kind = None
        for path in files:
            if file_format(path) == ".txt" and "texts" in self.kinds:
                rows = read_lines(path)
            else:
                rows = read_table(path, self.options.column_names)
            for row in rows:
                kind, selected = row_of_kind(row, self.kinds, kind)
                yield selected

    def select_columns(self, row: Row) -> Row:
        _, selected = row_of_kind(row, self.kinds, None)
        return selected

    def is_empty(self, row: Row) -> bool:
        return not all(self.texts([row]))

    def texts(self, rows: Iterable[Row]) -> Iterator[str]:
        for row in rows:
            for value in columns_of(row).values():
                if isinstance(value, str):
                    yield value

    def inspect(self, rows: DatasetDict) -> None:
        kinds = {split: kind_of(dataset) for split, dataset in rows.items()}
        self.kind = kinds.pop("train")
        self.measured_kind = next(iter(kinds.values()), "")
        for split, kind in kinds.items():
            if kind == "scores":
                check_scores(rows[split])
            if kind != self.measured_kind:
                raise InputError(
                    "the validation data have the columns "
                    f"{', '.join(KINDS[self.measured_kind])}, but the test data "
                    f"{', '.join(KINDS[kind])}; both need the same columns, because they are "
                    "evaluated with the same metrics"
                )

    def inspect_model(self, config: PreTrainedConfig, settings: dict[str, Any]) -> None:
        self.kind = settings.get("kind", "")
        if self.kind not in ("", *self.kinds):
            raise InputError(f"kind must be one of {', '.join(self.kinds)}, not {self.kind!r}")

    def settings(self) -> dict[str, Any]:
        return {**super().settings(), "kind": self.kind}

    # Encoding.

    def encode(self, rows: Dataset, training: bool) -> Dataset:
        """The texts, which sentence-transformers tokenises itself, and the scores."""
        return rows.select_columns(list(KINDS[kind_of(rows)]))

    # The model, and its training.

    def wrap(self, model: PreTrainedModel, run: Run) -> BaseModel:
        """The model of sentence-transformers that wraps `model`."""
        return make_sentence_model(
            self.sentence_class(),
            model,
            self.tokenizer,
            self.max_length,
            modules_of=run.model.model_name_or_path,
        )

    @abstractmethod
    def loss(self) -> torch.nn.Module:
        """The library's loss of `sentence_model` for the kind of the training data."""

    def with_targets(self, encoded: DatasetDict) -> DatasetDict:
        """The encoded data in the form that the loss needs."""
        return encoded

    def trainer_parts(
        self,
        run: Run,
        args: TrainingArguments,
        model: PreTrainedModel,
        rows: DatasetDict,
        encoded: DatasetDict,
    ) -> dict[str, Any]:
        from sentence_transformers.base.sampler import BatchSamplers

        number = len(encoded["train"])
        if self.kind in self.compared_kinds and min(args.train_batch_size, number) < 2:
            raise InputError(
                f"--per_device_train_batch_size {args.per_device_train_batch_size}, {number} rows: "
                f"with the columns {', '.join(KINDS[self.kind])} a row is compared with the others "
                "of its batch; give at least two"
            )
        self.sentence_model = self.wrap(model.to(args.device), run)
        evaluator = None
        if "validation" in encoded:
            evaluator = self.evaluator(encoded["validation"], args.per_device_eval_batch_size)
        is_default = args.batch_sampler == BatchSamplers.BATCH_SAMPLER
        if is_default and self.kind in ("pairs", "triplets"):
            # The texts of the other rows serve as negatives, and must not equal the positive.
            args.batch_sampler = BatchSamplers.NO_DUPLICATES
        targets = self.with_targets(encoded)
        has_loss = self.measured_kind == self.kind
        return {
            "model": self.sentence_model,
            "train_dataset": targets["train"],
            "eval_dataset": targets.get("validation") if has_loss else None,
            "evaluator": evaluator,
            "loss": self.loss(),
        }

    def save_further_files(self, folder: Path) -> None:
        self.sentence_model.save_pretrained(str(folder), create_model_card=False)

    # Choosing a checkpoint.

    @property
    def are_correlations(self) -> bool:
        """Whether the metrics are correlations with the scores in the evaluation data."""
        return (self.measured_kind or self.kind) in ("scores", "texts")

    @property
    def main_metric(self) -> str:
        return "spearman" if self.are_correlations else "mrr@10"

    @property
    def metric_for_best_model(self) -> str:
        return self.main_metric

    def metrics_in_training(self, args: TrainingArguments) -> list[str]:
        if self.measured_kind == self.kind:
            return [*self.metric_names, "loss"]
        return list(self.metric_names)

    @abstractmethod
    def evaluator(self, rows: Dataset, batch_size: int) -> Callable[[BaseModel], Metrics]:
        """A function that evaluates a model on a split with the library's evaluators and returns
        the `metric_names`."""

    # Answering.

    def open(self, directory: str, config: PreTrainedConfig, device: torch.device) -> BaseModel:
        # This refuses damaged files, for which sentence-transformers would use random numbers.
        super().open(directory, config, torch.device("cpu"))
        return open_sentence_model(self.sentence_class(), directory, str(device))

    # Measuring.

    def evaluate(self, saved: SavedModel, rows: Dataset, batch_size: int, seed: int) -> Measured:
        """The metrics of the library's evaluators, which give no results for single rows."""
        self.measured_kind = kind_of(rows)
        if self.measured_kind == "scores":
            check_scores(rows)
        # Models of other programs have lengths of their own, which belong to the results.
        length = saved.model.max_seq_length or self.options.max_length
        self.options = replace(self.options, max_length=length)
        return self.evaluator(rows, batch_size)(saved.model), []

    def scored_pairs(self, rows: Dataset) -> ScoredPairs:
        """First texts, second texts and scores of a split whose metrics are correlations."""
        return rows["sentence1"][:], rows["sentence2"][:], rows["score"][:]

    def rows_to_measure(self, rows: Dataset, encoded: Dataset) -> Dataset:
        # The encoded rows may also contain the vectors of a teacher.
        return encoded

    def baselines(self, rows: DatasetDict) -> MeasuredBaselines:
        cosine = TfidfCosine(list(self.texts(rows["train"])))
        by_split: dict[str, Metrics] = {}
        for split, dataset in rows.items():
            if split == "train":
                continue
            if self.are_correlations:
                by_split[split] = cosine.correlations(self.scored_pairs(dataset))
            else:
                by_split[split] = cosine.retrieval(queries_and_documents(dataset))
        return {"TF-IDF cosine": by_split}, {}

    # What the card shows.

    def notes(self) -> list[str]:
        if self.are_correlations:
            return ["Pearson and Spearman are correlations from -1 to 1."]
        return [
            "Every distinct first text of the split is a query, and every distinct text of the other "
            "columns is a document, even if it equals the query: accuracy@k is the fraction of "
            "queries with a relevant document among the first k, and mrr@10 is the mean of 1/rank "
            "among the first ten. Larger splits are harder."
        ]

    def neutral_example(self) -> Row:
        return {"anchor": "a question", "positive": "its answer"}

    def loading_code(self, model_id: str) -> str:
        name = self.sentence_class().__name__
        own = OWN_IMPORT if self.has_own_class else ""
        return (
            f"{own}from sentence_transformers import {name}\n\nmodel = {name}({quoted(model_id)})\n"
        )


class Embed(SentenceRecipe):
    """A text gets a vector that is close to the vectors of texts with a similar meaning.

    The model is an encoder, and the vector of a text is the mean of its tokens' states. It learns
    from pairs, triplets or scored pairs, or from the vectors of a teacher.
    """

    options_class = EmbedDataArguments
    options: EmbedDataArguments
    pipeline_tag = "sentence-similarity"
    architecture = "Model"
    auto_model = AutoModel
    kinds = (*SentenceRecipe.kinds, "texts")
    compared_kinds = ("pairs", "scores")

    def __init__(self, options: EmbedDataArguments):
        super().__init__(options)
        # The Matryoshka dimensions, to which vectors may be cut.
        self.widths: list[int] = list(options.matryoshka)
        # The model whose vectors are learned. It is only kept while it is needed.
        self.teacher: SentenceTransformer | None = None
        self.sentence_model: SentenceTransformer | None = None

    @classmethod
    def sentence_class(cls) -> type[SentenceTransformer]:
        from sentence_transformers import SentenceTransformer

        return SentenceTransformer

    def inspect(self, rows: DatasetDict) -> None:
        super().inspect(rows)
        teacher = self.options.teacher
        if self.kind != "texts" and teacher is not None:
            raise InputError(
                f"--teacher {teacher} is for training data with the column text, not with "
                f"{', '.join(KINDS[self.kind])}"
            )
        if "texts" in (self.kind, self.measured_kind) and teacher is None:
            raise InputError(ONLY_TEXTS)

    def inspect_model(self, config: PreTrainedConfig, settings: dict[str, Any]) -> None:
        super().inspect_model(config, settings)
        widths = settings.get("matryoshka", [])
        is_list = isinstance(widths, list)
        if not is_list or not all(type(width) is int and width > 0 for width in widths):
            raise InputError(f"matryoshka must be a list of whole numbers, not {widths!r}")
        self.widths = widths

    def settings(self) -> dict[str, Any]:
        return {**super().settings(), "matryoshka": self.widths}

    # Encoding.

    def encode(self, rows: Dataset, training: bool) -> Dataset:
        """With a teacher, add its normalised vectors `(rows, width)` as the column `label`."""
        encoded = super().encode(rows, training)
        if kind_of(rows) != "texts":
            return encoded
        if self.teacher is None:
            self.teacher = open_teacher(self.options.teacher)
        return with_vectors(encoded, self.teacher)

    # The model, and its training.

    def config_fields(self) -> dict[str, Any]:
        return {"add_pooling_layer": False}

    def wrap(self, model: PreTrainedModel, run: Run) -> BaseModel:
        wrapped = super().wrap(model, run)
        self.check_widths(wrapped)
        if self.has_own_class:
            for module in wrapped:
                pooling = getattr(module, "pooling_mode", None)
                if pooling in POOLINGS:
                    # `export` reads this field.
                    model.config.classifier_pooling = POOLINGS[pooling]
        if run.begins_with_teachers_tokens:
            take_over_tokens(model.get_input_embeddings(), self.teacher)
        return wrapped

    def check_widths(self, model: SentenceTransformer) -> None:
        """Refuse Matryoshka dimensions above that of the vectors, and leave out the full one."""
        width = model.get_embedding_dimension()
        for part in self.widths:
            if part > width:
                raise InputError(f"--matryoshka {part}: the model's vectors have {width} numbers")
        self.widths = sorted({*self.widths} - {width}, reverse=True)

    def loss(self) -> torch.nn.Module:
        from sentence_transformers.sentence_transformer import losses

        model = self.sentence_model
        kinds = {"scores": losses.CoSENTLoss, "texts": losses.EmbedDistillLoss}
        loss = kinds.get(self.kind, losses.MultipleNegativesRankingLoss)(model)
        if not self.widths:
            return loss
        widths = [model.get_embedding_dimension(), *self.widths]
        return losses.MatryoshkaLoss(model, loss, widths)

    def with_targets(self, encoded: DatasetDict) -> DatasetDict:
        """With a teacher, the targets are its vectors. They are projected onto their principal axes
        if the model is narrower or has Matryoshka dimensions. Only the last axes are lost, so the
        cosines change little."""
        from datasets import DatasetDict

        if self.kind != "texts":
            return encoded
        # The teacher is released because the training needs the memory.
        self.teacher = None
        width = self.sentence_model.get_embedding_dimension()
        given = len(encoded["train"][0]["label"])
        if width > given:
            raise InputError(
                f"the model's vectors have {width} numbers, but the vectors of --teacher "
                f"{self.options.teacher} only {given}; give a smaller --size, or a wider teacher"
            )
        axes = None
        if width < given or self.widths:
            axes = principal_axes(encoded["train"].with_format("numpy", dtype=np.float32), width)
        targets = DatasetDict(encoded)
        for split, dataset in encoded.items():
            if kind_of(dataset) != "texts":
                continue
            if axes is not None:
                dataset = projected(dataset, axes)
            targets[split] = dataset.with_format(
                "torch", columns=["label"], output_all_columns=True
            )
        return targets

    # Choosing a checkpoint.

    @property
    def metric_names(self) -> Sequence[str]:
        names = CORRELATIONS if self.are_correlations else RETRIEVAL
        suffixes = ["", *(f"_{width}" for width in self.widths)]
        return [name + suffix for suffix in suffixes for name in names]

    def evaluator(self, rows: Dataset, batch_size: int) -> Callable[[BaseModel], Metrics]:
        from sentence_transformers.sentence_transformer import evaluation
        from sentence_transformers.util import cos_sim

        kind: type[BaseEvaluator]
        options: dict[str, Any] = {"batch_size": batch_size, "write_csv": False}
        if self.are_correlations:
            kind = evaluation.EmbeddingSimilarityEvaluator
            keys = {name: f"{name}_cosine" for name in CORRELATIONS}
            first, second, scores = self.scored_pairs(rows)
            options |= {"sentences1": first, "sentences2": second, "scores": scores}
            options["main_similarity"] = "cosine"
        else:
            kind = evaluation.InformationRetrievalEvaluator
            keys = {name: f"cosine_{name}" for name in RETRIEVAL}
            options |= search(rows)
            # Without these functions, the library takes that of the model.
            options["score_functions"] = {"cosine": cos_sim}
        evaluators = {"": kind(**options)}
        for width in self.widths:
            evaluators[f"_{width}"] = kind(truncate_dim=width, **options)
        return partial(named_metrics, evaluators=evaluators, keys=keys)

    # Answering.

    def text_columns(self) -> list[str]:
        first, *_ = KINDS[self.kind or "texts"]
        return [first]

    def input_of_row(self, row: Row) -> Input:
        return next(self.texts([row]))

    def answer(
        self, saved: SavedModel, inputs: list[Input], options: dict[str, Any]
    ) -> list[Answer]:
        """The vector as `embedding`."""
        vectors = saved.model.encode(inputs, batch_size=len(inputs), show_progress_bar=False)
        return [{"embedding": vector} for vector in vectors.tolist()]

    def answer_columns(self, options: dict[str, Any]) -> list[str]:
        return ["embedding"]

    def show(self, answer: Answer, options: dict[str, Any]) -> Shown:
        """A JSON list with the precision of 32-bit numbers."""
        numbers = [float(f"{number:.8g}") for number in answer["embedding"]]
        return Shown(line=json.dumps(numbers), columns={"embedding": numbers})

    # Measuring.

    def evaluate(self, saved: SavedModel, rows: Dataset, batch_size: int, seed: int) -> Measured:
        self.check_widths(saved.model)
        return super().evaluate(saved, rows, batch_size, seed)

    def scored_pairs(self, rows: Dataset) -> ScoredPairs:
        """Each text forms a pair with the next one, scored with the cosine of the teacher's
        vectors."""
        if kind_of(rows) != "texts":
            return super().scored_pairs(rows)
        if "label" not in rows.column_names:
            raise InputError(ONLY_TEXTS)
        # The pairs depend on the order of the rows. The rows are therefore put into an order that
        # depends only on their content, and in which neighbours do not resemble each other.
        rows = rows.sort("text").shuffle(seed=0)
        texts = rows["text"][:]
        vectors = np.asarray(rows["label"][:], dtype=np.float32)
        cosines = (vectors * np.roll(vectors, -1, axis=0)).sum(axis=1)
        return texts, [*texts[1:], texts[0]], cosines.tolist()

    def measurements(self, rows: Dataset) -> int:
        if self.are_correlations:
            return len(rows)
        queries, _, _ = queries_and_documents(rows)
        return len(queries)

    # What the card shows.

    def notes(self) -> list[str]:
        notes = super().notes()
        if self.measured_kind == "texts":
            notes = [
                "Pearson and Spearman are correlations, from -1 to 1, between the cosines of pairs "
                "of texts and the cosines of the teacher's vectors."
            ]
        if self.widths:
            parts = ", ".join(map(str, self.widths))
            notes.append(
                "Metrics that end in a number are computed with vectors cut to that dimension: "
                f"{parts}."
            )
        return notes

    def snippet(self, row: Row) -> str:
        texts = list(self.texts([row]))[:2]
        width = self.sentence_model.get_embedding_dimension()
        return (
            f"vectors = model.encode({quoted(texts)})  # ({len(texts)}, {width})\n"
            "print(model.similarity(vectors, vectors))"
        )


class Rerank(SentenceRecipe):
    """A query and a document are read together and get a score.

    The model is an encoder with a head for one number. It learns from pairs, triplets or scored
    pairs.
    """

    options_class = RerankDataArguments
    options: RerankDataArguments
    pipeline_tag = "text-ranking"
    architecture = "ForSequenceClassification"
    auto_model = AutoModelForSequenceClassification
    answer_options = ("text_pair_column",)
    takes_pairs = True

    @classmethod
    def sentence_class(cls) -> type[CrossEncoder]:
        from sentence_transformers import CrossEncoder

        return CrossEncoder

    def inspect(self, rows: DatasetDict) -> None:
        super().inspect(rows)
        if self.kind != "scores":
            return
        for row in rows["train"]:
            self.require(
                0 <= row["score"] <= 1,
                row,
                f"the score {row['score']:g} must lie between 0 and 1; divide the scores by the "
                "largest possible one",
            )

    # The model, and its training.

    def config_fields(self) -> dict[str, Any]:
        return {"num_labels": 1}

    def why_new_head(self, config: PreTrainedConfig) -> str:
        if config.num_labels == 1:
            return ""
        why = f"its head has {config.num_labels} labels, but a reranker has one score"
        return self.why_no_head(config) or why

    def loss(self) -> torch.nn.Module:
        from sentence_transformers.cross_encoder import losses

        if self.kind == "scores":
            return losses.BinaryCrossEntropyLoss(self.sentence_model)
        return losses.MultipleNegativesRankingLoss(self.sentence_model)

    # Choosing a checkpoint.

    @property
    def metric_names(self) -> Sequence[str]:
        return CORRELATIONS if self.are_correlations else RERANKING

    def evaluator(self, rows: Dataset, batch_size: int) -> Callable[[BaseModel], Metrics]:
        from sentence_transformers.cross_encoder import evaluation

        options = {"batch_size": batch_size, "write_csv": False, "show_progress_bar": False}
        made: Any
        if self.are_correlations:
            first, second, scores = self.scored_pairs(rows)
            pairs = [list(pair) for pair in zip(first, second, strict=True)]
            made = evaluation.CrossEncoderCorrelationEvaluator(pairs, scores, **options)
        else:
            # The wrong documents of each query depend on the order of the rows. The rows are
            # therefore put into an order that depends only on their content, and in which
            # neighbours do not resemble each other.
            rows = rows.sort(rows.column_names).shuffle(seed=0)
            made = evaluation.CrossEncoderRerankingEvaluator(candidates(rows), **options)
        keys = {name: name for name in self.metric_names}
        return partial(named_metrics, evaluators={"": made}, keys=keys)

    # Answering.

    def text_columns(self) -> list[str]:
        first, second, *_ = KINDS[self.kind or "pairs"]
        return [first, second]

    def input_of_row(self, row: Row) -> Input:
        return list(self.texts([row]))[:2]

    def answer(
        self, saved: SavedModel, inputs: list[Input], options: dict[str, Any]
    ) -> list[Answer]:
        """The `score` of each pair."""
        scores = saved.model.predict(inputs, batch_size=len(inputs), show_progress_bar=False)
        return [{"score": score} for score in scores.tolist()]

    def answer_columns(self, options: dict[str, Any]) -> list[str]:
        return ["score"]

    def show(self, answer: Answer, options: dict[str, Any]) -> Shown:
        score = significant(answer["score"])
        return Shown(line=str(score), columns={"score": score})

    # Measuring.

    def measurements(self, rows: Dataset) -> int:
        if self.are_correlations:
            return len(rows)
        return min(len(set(rows["anchor"])), MAX_QUERIES)

    def baselines(self, rows: DatasetDict) -> MeasuredBaselines:
        if not self.are_correlations:
            return {}, {}
        return super().baselines(rows)

    # What the card shows.

    def notes(self) -> list[str]:
        if self.are_correlations:
            return super().notes()
        return [
            "For each of at most 500 queries, its relevant documents and 29 others of the split "
            "are ranked: mrr@10 is the mean of 1/rank of the first relevant one, and ndcg@10 and "
            "map depend on the ranks of all of them."
        ]

    def snippet(self, row: Row) -> str:
        texts = ", ".join(map(quoted, self.input_of_row(row)))
        return f"print(model.predict([({texts})]))"


def named_metrics(
    model: BaseModel,
    evaluators: Mapping[str, Callable[[BaseModel], Any]],
    keys: Mapping[str, str],
) -> Metrics:
    """The metrics of several evaluators of the library, under our names.

    Args:
        model: The model to evaluate.
        evaluators: The evaluators by the suffix of their metrics, such as "" or `_64`.
        keys: The library's name of each metric by our name.
    """
    metrics: Metrics = {}
    for suffix, evaluator in evaluators.items():
        found = evaluator(model)
        for name, key in keys.items():
            metrics[name + suffix] = float(found[key])
    return metrics


def with_vectors(texts: Dataset, teacher: SentenceTransformer) -> Dataset:
    """Add the teacher's vectors as the column `label`."""

    def vectors_of(batch: dict[str, list]) -> dict[str, np.ndarray]:
        vectors = teacher.encode(batch["text"], normalize_embeddings=True, show_progress_bar=False)
        return {"label": vectors}

    return texts.map(vectors_of, batched=True, desc="Vectors of the teacher")


def projected(texts: Dataset, axes: np.ndarray) -> Dataset:
    """Project the vectors in the column `label` onto axes `(given, width)`."""

    def project(batch: dict[str, list]) -> dict[str, np.ndarray]:
        return {"label": np.asarray(batch["label"], dtype=np.float32) @ axes}

    return texts.map(project, batched=True, desc="Principal axes")


def search(rows: Dataset) -> dict[str, Any]:
    """Pairs or triplets as arguments of the library's evaluator of retrieval."""
    queries, documents, right = queries_and_documents(rows)
    relevant = {str(number): set(map(str, places)) for number, places in enumerate(right)}
    return {
        "queries": {str(number): text for number, text in enumerate(queries)},
        "corpus": {str(number): text for number, text in enumerate(documents)},
        "relevant_docs": relevant,
        "accuracy_at_k": [1, 10],
    }
