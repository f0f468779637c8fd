"""The task rerank: a query and a document get a score."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch
from transformers import AutoModelForSequenceClassification
from transformers.configuration_utils import PreTrainedConfig

from ..data.reader import require
from ..data.sampling import sample_rows
from ..data.sentence_data import KINDS, MAX_QUERIES, candidates
from ..measuring.baselines import Predictions, retrieval_scores
from ..options.tasks import RerankDataArguments
from .base import Answer, FittedBaseline, Shown, significant
from .loaded_model import Input, LoadedModel
from .sentence import SentenceRecipe

if TYPE_CHECKING:
    from datasets import Dataset, DatasetDict
    from sentence_transformers import CrossEncoder


@dataclass(frozen=True)
class Rerank(SentenceRecipe):
    """A query and a document are read together and get a score.

    The model is an encoder with a head for one number. It learns from pairs, triplets or scored
    pairs.
    """

    options_class = RerankDataArguments
    pipeline_tag = "text-ranking"
    architecture = "ForSequenceClassification"
    auto_model = AutoModelForSequenceClassification
    answer_column = "score"
    answer_options = ("text_pair_column",)
    takes_pairs = True
    ranking_metrics = ("mrr@10", "ndcg@10", "map")

    options: RerankDataArguments

    @classmethod
    def sentence_class(cls) -> type[CrossEncoder]:
        from sentence_transformers import CrossEncoder

        return CrossEncoder

    @classmethod
    def inspect(cls, options: RerankDataArguments, rows: DatasetDict) -> Self:
        found = super().inspect(options, rows)
        if found.kind == "scores":
            for row in rows["train"]:
                require(
                    0 <= row["score"] <= 1,
                    row,
                    f"the score {row['score']:g} must lie between 0 and 1; divide the scores by "
                    "the largest possible one",
                )
        return found

    # The model, and its training.

    def config_fields(self) -> dict[str, Any]:
        return {"num_labels": 1}

    def why_new_head(self, config: PreTrainedConfig) -> str:
        if config.num_labels == 1:
            return ""
        why = f"its head has {config.num_labels} labels, but a reranker has one score"
        return self.why_no_head(config) or why

    def loss(self, model: Any) -> torch.nn.Module:
        from sentence_transformers.cross_encoder import losses

        if self.kind == "scores":
            return losses.BinaryCrossEntropyLoss(model)
        return losses.MultipleNegativesRankingLoss(model)

    # Answering.

    def text_columns(self) -> list[str]:
        first, second, *_ = KINDS[self.kind or "pairs"]
        return [first, second]

    def answer(
        self, saved: LoadedModel, inputs: list[Input], options: dict[str, Any]
    ) -> list[Answer]:
        """The `score` of each pair."""
        scores = saved.model.predict(inputs, batch_size=len(inputs), show_progress_bar=False)
        return [{"score": score} for score in scores.tolist()]

    def show(self, answer: Answer, options: dict[str, Any]) -> Shown:
        score = significant(answer["score"])
        return Shown(line=str(score), columns={"score": score})

    # Measuring.

    def in_order(self, rows: Dataset) -> Dataset:
        if self.are_correlations:
            return rows
        # The wrong documents of each query depend on the order of the rows. The rows are therefore
        # put into an order that depends only on their content, and in which neighbours do not
        # resemble each other.
        return rows.sort(rows.column_names).shuffle(seed=0)

    def are_seen(self, saved: LoadedModel, rows: Dataset) -> np.ndarray:
        is_seen = super().are_seen(saved, rows)
        if self.are_correlations:
            return is_seen
        return np.array(sample_rows(is_seen.tolist(), MAX_QUERIES))

    def predicted(self, model: Any, rows: Dataset, batch_size: int) -> np.ndarray:
        """The score of each pair, or the metrics of each query."""
        from sentence_transformers.cross_encoder.evaluation import CrossEncoderRerankingEvaluator

        def scores_of(pairs: list[tuple[str, str]]) -> np.ndarray:
            return model.predict(pairs, batch_size=batch_size, show_progress_bar=False)

        if self.are_correlations:
            first, second, _ = self.scored_pairs(rows)
            return scores_of(list(zip(first, second, strict=True)))
        pairs: list[tuple[str, str]] = []
        is_right: list[np.ndarray] = []
        for sample in candidates(self.in_order(rows)):
            documents = [*sample["positive"], *sample["negative"]]
            pairs += [(sample["query"], document) for document in documents]
            is_right.append(np.arange(len(documents)) < len(sample["positive"]))
        ends = np.cumsum(list(map(len, is_right)))
        scores = np.split(scores_of(pairs), ends[:-1])
        metrics_of = CrossEncoderRerankingEvaluator(samples=[], at_k=10).compute_metrics
        found = np.array([metrics_of(*query) for query in zip(is_right, scores, strict=True)])
        # The library gives the last rank among equal scores to the relevant documents.
        right = [np.flatnonzero(own) for own in is_right]
        found[:, 0] = retrieval_scores(scores, right)[:, 0]
        return found

    def baselines(self, rows: DatasetDict, fitted: FittedBaseline | None) -> Predictions:
        if not self.are_correlations:
            return {}
        return super().baselines(rows, fitted)

    # What the card shows.

    def notes(self) -> list[str]:
        if self.are_correlations:
            return super().notes()
        return [
            "For each of at most 500 queries, its relevant documents and up to 29 others of the "
            "split are ranked: mrr@10 is the mean of 1/rank of the first relevant one, and ndcg@10 "
            "and map depend on the ranks of all of them. A split with fewer documents is easier."
        ]
