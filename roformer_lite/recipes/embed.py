"""The task embed: a text gets a vector."""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch
from transformers import AutoModel, PreTrainedTokenizerBase

from hf_roformer_lite.conversion.poolings import POOLINGS

from ..data.sentence_data import KINDS, kind_of, queries_and_documents
from ..errors import InputError
from ..measuring.baselines import ScoredPairs, retrieval_scores
from ..options.tasks import EmbedDataArguments
from .base import Answer, Shown, Start
from .loaded_model import Input, LoadedModel
from .sentence import SentenceReader, SentenceRecipe
from .teacher import open_teacher, principal_axes, projected, with_vectors

if TYPE_CHECKING:
    from datasets import Dataset, DatasetDict
    from sentence_transformers import SentenceTransformer

# The number of queries that are compared with all documents at once.
NUM_QUERIES_AT_ONCE = 1000
ONLY_TEXTS = (
    "data with only the column text say nothing about similarity; for training, pass --teacher, a "
    "model whose vectors are learned; for both training and evaluation, use data with columns such "
    "as anchor and positive"
)


class EmbedReader(SentenceReader):
    """Also reads rows with only a text, if there is a teacher."""

    kinds = (*SentenceReader.kinds, "texts")


@dataclass(frozen=True)
class Embed(SentenceRecipe):
    """A text gets a vector that is close to the vectors of texts with a similar meaning.

    The model is an encoder, and the vector of a text is the mean of its tokens' states. It learns
    from pairs, triplets or scored pairs, or from the vectors of a teacher.
    """

    options_class = EmbedDataArguments
    reader_class = EmbedReader
    pipeline_tag = "sentence-similarity"
    architecture = "Model"
    auto_model = AutoModel
    answer_column = "embedding"
    compared_kinds = ("pairs", "scores")
    ranking_metrics = ("mrr@10", "accuracy@1", "accuracy@10")

    options: EmbedDataArguments

    @classmethod
    def sentence_class(cls) -> type[SentenceTransformer]:
        from sentence_transformers import SentenceTransformer

        return SentenceTransformer

    @classmethod
    def inspect(cls, options: EmbedDataArguments, rows: DatasetDict) -> Self:
        found = super().inspect(options, rows)
        teacher = options.teacher
        if found.kind != "texts" and teacher is not None:
            raise InputError(
                f"--teacher {teacher} is for training data with the column text, not with "
                f"{', '.join(KINDS[found.kind])}"
            )
        if "texts" in (found.kind, found.measured_kind) and teacher is None:
            raise InputError(ONLY_TEXTS)
        return found

    # Encoding.

    def encode_splits(
        self, rows: DatasetDict, tokenizer: PreTrainedTokenizerBase
    ) -> dict[str, Any]:
        """With a teacher, add its normalised vectors `(rows, width)` as the column `label`."""
        encoded = super().encode_splits(rows, tokenizer)
        if self.options.teacher is None:
            return encoded
        teacher = open_teacher(self.options.teacher)
        return {
            split: with_vectors(part, teacher) if kind_of(part) == "texts" else part
            for split, part in encoded.items()
        }

    # The model, and its training.

    def config_fields(self) -> dict[str, Any]:
        return {"add_pooling_layer": False}

    def wrapped(self, start: Start, modules_of: str | None, device: torch.device) -> Start:
        start = super().wrapped(start, modules_of, device)
        trained: Any = start.trained
        if start.has_own_class:
            for module in trained:
                mode = getattr(module, "pooling_mode", None)
                pooling = POOLINGS["sentence-transformers"].get(mode)
                if pooling is not None:
                    # `export` reads this field.
                    start.model.config.classifier_pooling = pooling
        return start

    def loss(self, model: Any) -> torch.nn.Module:
        from sentence_transformers.sentence_transformer import losses

        kinds = {"scores": losses.CoSENTLoss, "texts": losses.EmbedDistillLoss}
        return kinds.get(self.kind, losses.MultipleNegativesRankingLoss)(model)

    def with_targets(self, encoded: DatasetDict, model: Any) -> DatasetDict:
        """With a teacher, the targets are its vectors. They are projected onto their principal axes
        if the model is narrower. Only the last axes are lost, so the cosines change little."""
        from datasets import DatasetDict

        if self.kind != "texts":
            return encoded
        width = model.get_embedding_dimension()
        given = len(encoded["train"][0]["label"])
        if width > given:
            raise InputError(
                f"the model's vectors have {width} numbers, but the vectors of --teacher "
                f"{self.options.teacher} only {given}; pass a smaller --size, or a wider teacher"
            )
        axes = None
        if width < given:
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

    # Answering.

    def text_columns(self) -> list[str]:
        first, *_ = KINDS[self.kind or "texts"]
        return [first]

    def answer(
        self, saved: LoadedModel, inputs: list[Input], options: dict[str, Any]
    ) -> list[Answer]:
        """The vector as `embedding`."""
        vectors = saved.model.encode(inputs, batch_size=len(inputs), show_progress_bar=False)
        return [{"embedding": vector} for vector in vectors.tolist()]

    def show(self, answer: Answer, options: dict[str, Any]) -> Shown:
        """A JSON list with the precision of 32-bit numbers."""
        numbers = [float(f"{number:.8g}") for number in answer["embedding"]]
        return Shown(line=json.dumps(numbers), columns={"embedding": numbers})

    # Measuring.

    def scored_pairs(self, rows: Dataset) -> ScoredPairs:
        """Each text forms a pair with the next one, scored with the cosine of the teacher's
        vectors."""
        if kind_of(rows) != "texts":
            return super().scored_pairs(rows)
        if "label" not in rows.column_names:
            raise InputError(ONLY_TEXTS)
        rows = self.in_order(rows)
        texts = rows["text"][:]
        vectors = np.asarray(rows["label"][:], dtype=np.float32)
        cosines = (vectors * np.roll(vectors, -1, axis=0)).sum(axis=1)
        return texts, [*texts[1:], texts[0]], cosines.tolist()

    def in_order(self, rows: Dataset) -> Dataset:
        if kind_of(rows) != "texts":
            return rows
        # The pairs depend on the order of the rows. The rows are therefore put into an order that
        # depends only on their content, and in which neighbours do not resemble each other.
        return rows.sort("text").shuffle(seed=0)

    def are_seen(self, saved: LoadedModel, rows: Dataset) -> np.ndarray:
        is_seen = super().are_seen(saved, rows)
        return is_seen | np.roll(is_seen, -1) if kind_of(rows) == "texts" else is_seen

    def predicted(self, model: Any, rows: Dataset, batch_size: int) -> np.ndarray:
        """The cosine of each pair, or the `retrieval_scores` of the queries."""
        from sentence_transformers.util import cos_sim, pairwise_cos_sim

        options = {
            "batch_size": batch_size,
            "show_progress_bar": False,
            "convert_to_tensor": True,
        }
        if self.are_correlations:
            texts, others, _ = self.scored_pairs(rows)
            first = model.encode(texts, **options)
            second = model.encode(others, **options)
            return pairwise_cos_sim(first, second).cpu().numpy()
        texts, documents, right = queries_and_documents(rows)
        queries = model.encode_query(texts, **options)
        corpus = model.encode_document(documents, **options)
        # The scores of all queries at once could be too many for the memory.
        scores = chain.from_iterable(
            cos_sim(part, corpus).cpu().numpy() for part in queries.split(NUM_QUERIES_AT_ONCE)
        )
        return retrieval_scores(scores, right)

    # What the card shows.

    def notes(self) -> list[str]:
        if self.measured_kind == "texts":
            return [
                "Pearson and Spearman are correlations, from -1 to 1, between the cosines of pairs "
                "of texts and the cosines of the teacher's vectors."
            ]
        return super().notes()
