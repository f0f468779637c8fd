"""The task rerank: a pair of texts, read together, gets a score."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from transformers import AutoModelForSequenceClassification, PreTrainedModel
from transformers.configuration_utils import PreTrainedConfig

from ..data.sentence_data import candidates
from .sentence import (
    CORRELATIONS,
    RERANKING,
    SentenceData,
    SentenceMetrics,
    SentenceModel,
    SentenceTask,
)
from .task_arguments import RerankDataArguments

if TYPE_CHECKING:
    import torch
    from datasets import Dataset, DatasetDict
    from sentence_transformers import CrossEncoder
    from sentence_transformers.base.evaluation import BaseEvaluator

    from ..evaluate.baselines import Baselines


class RerankData(SentenceData):
    """Pairs, triplets or scored pairs, of a query and a document."""

    def inspect(self, rows: DatasetDict) -> None:
        super().inspect(rows)
        for row in rows["train"] if self.kind == "scores" else ():
            self.require(
                0 <= row["score"] <= 1,
                row,
                f"the score {row['score']:g} must lie between 0 and 1; divide the scores by the largest possible one",
            )

    def settings(self) -> dict[str, Any]:
        return {"pairs": True, **super().settings()}


class RerankModel(SentenceModel):
    """An encoder that reads a query and a document together."""

    architecture = "ForSequenceClassification"
    auto_model = AutoModelForSequenceClassification
    class_name = "CrossEncoder"
    data: RerankData

    def config_fields(self) -> dict[str, Any]:
        return {"num_labels": 1}

    def why_new_head(self, config: PreTrainedConfig) -> str:
        if config.num_labels == 1:
            return ""
        return (
            self.has_no_head(config)
            or f"its head has {config.num_labels} labels, and a reranker gives one score"
        )

    def loss(self, model: CrossEncoder) -> torch.nn.Module:
        from sentence_transformers.cross_encoder import losses

        if self.data.kind == "scores":
            return losses.BinaryCrossEntropyLoss(model)
        return losses.MultipleNegativesRankingLoss(model)


class RerankMetrics(SentenceMetrics):
    """Correlations with scores, or how well right documents are ranked."""

    @property
    def names(self) -> Sequence[str]:
        return CORRELATIONS if self.are_correlations else RERANKING

    def evaluator(self, encoded: Dataset, batch_size: int) -> BaseEvaluator:
        from sentence_transformers.cross_encoder import evaluation

        from ..train.sentence_trainers import NamedMetrics

        options = {"batch_size": batch_size, "write_csv": False, "show_progress_bar": False}
        if self.are_correlations:
            first, second, scores = self.data.scored_pairs(encoded)
            pairs = [list(pair) for pair in zip(first, second, strict=True)]
            made = evaluation.CrossEncoderCorrelationEvaluator(pairs, scores, **options)
        else:
            made = evaluation.CrossEncoderRerankingEvaluator(candidates(encoded), **options)
        return NamedMetrics({"": made}, self.names)

    def measurements(self, rows: Dataset) -> int:
        return len(rows) if self.are_correlations else len(candidates(rows))

    def baselines(self, rows: DatasetDict, encoded: DatasetDict) -> Baselines:
        return super().baselines(rows, encoded) if self.are_correlations else {}

    def notes(self, model: PreTrainedModel) -> list[str]:
        if self.are_correlations:
            return super().notes(model)
        return [
            "For each query, 500 at most, its right documents and 29 others of the split are ranked: mrr@10 is the "
            "mean of 1/rank of the first right one, and ndcg@10 and map count the ranks of all of them."
        ]


class RerankTask(SentenceTask):
    """A score of a query and a document that are read together."""

    arguments = RerankDataArguments
    pipeline_tag = "text-ranking"
    data_class, model_class, metrics_class = RerankData, RerankModel, RerankMetrics
