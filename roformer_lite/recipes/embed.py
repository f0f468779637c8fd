"""The task embed: a text gets a vector."""

from __future__ import annotations

import json
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from transformers import AutoModel

from hf_roformer_lite.conversion.poolings import POOLINGS

from ..data.sentence_data import KINDS, queries_and_documents
from ..measuring.baselines import retrieval_scores
from ..options.tasks import EmbedDataArguments
from .base import Answer, Shown, Start
from .loaded_model import Input, LoadedModel
from .sentence import SentenceRecipe

if TYPE_CHECKING:
    from datasets import Dataset
    from sentence_transformers import SentenceTransformer

# The number of queries that are compared with all documents at once.
NUM_QUERIES_AT_ONCE = 1000


class Embed(SentenceRecipe):
    """A text gets a vector that is close to the vectors of texts with a similar meaning.

    The model is an encoder, and the vector of a text is the mean of its tokens' states. It learns
    from pairs, triplets or scored pairs.
    """

    options_class = EmbedDataArguments
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

    # The model, and its training.

    def config_fields(self) -> dict[str, Any]:
        return {"add_pooling_layer": False}

    def prepared(self, start: Start) -> Start:
        start = super().prepared(start)
        if start.has_own_class:
            for module in start.trained:
                mode = getattr(module, "pooling_mode", None)
                if mode in POOLINGS["sentence-transformers"]:
                    # `export` reads this field.
                    start.model.config.classifier_pooling = POOLINGS["sentence-transformers"][mode]
        return start

    def loss(self, model: Any) -> torch.nn.Module:
        from sentence_transformers.sentence_transformer import losses

        if self.kind == "scores":
            return losses.CoSENTLoss(model)
        return losses.MultipleNegativesRankingLoss(model)

    # Answering.

    def text_columns(self) -> list[str]:
        return [KINDS[self.kind][0] if self.kind else "text"]

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

    def predicted(self, model: Any, rows: Dataset, batch_size: int) -> np.ndarray:
        """The cosine of each pair, or the `retrieval_scores` of the queries."""
        from sentence_transformers.util import cos_sim, pairwise_cos_sim

        options = {
            "batch_size": batch_size,
            "show_progress_bar": False,
            "convert_to_tensor": True,
        }
        texts_of: Any = self.scored_pairs if self.are_correlations else queries_and_documents
        texts, others, right = texts_of(rows)
        first = model.encode(texts, **options)
        second = model.encode(others, **options)
        if self.are_correlations:
            return pairwise_cos_sim(first, second).cpu().numpy()
        # The scores of all queries at once could be too many for the memory.
        scores = chain.from_iterable(
            cos_sim(part, second).cpu().numpy() for part in first.split(NUM_QUERIES_AT_ONCE)
        )
        return retrieval_scores(scores, right)
