"""The task rerank: a pair of texts, read together, gets a score."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from transformers import AutoModelForSequenceClassification, PreTrainedModel
from transformers.configuration_utils import PreTrainedConfig

from ..data.data_files import Row
from ..data.sentence_data import candidates
from ..evaluate.metrics import Metrics
from .answers import SavedModel
from .base import quoted
from .sentence import PairTask
from .task_arguments import RerankDataArguments

if TYPE_CHECKING:
    import torch
    from datasets import Dataset
    from sentence_transformers import CrossEncoder
    from sentence_transformers.base.evaluation import BaseEvaluator
    from transformers import Trainer, TrainingArguments

    from ..evaluate.baselines import TfidfCosine


class RerankTask(PairTask):
    """A score of a query and a document that are read together."""

    architecture = "ForSequenceClassification"
    auto_model = AutoModelForSequenceClassification
    pipeline_tag = "text-ranking"
    arguments = RerankDataArguments
    metric_names = ("spearman", "pearson", "mrr@10", "ndcg@10", "map")

    @classmethod
    def training_classes(cls) -> tuple[type[TrainingArguments], type[Trainer]]:
        from ..train.sentence_trainers import RerankingTrainer, SentenceTrainingArguments

        return SentenceTrainingArguments, RerankingTrainer

    @classmethod
    def model_class(cls) -> type[CrossEncoder]:
        from sentence_transformers import CrossEncoder

        return CrossEncoder

    def config_fields(self) -> dict[str, Any]:
        return {"num_labels": 1}

    def why_new_head(self, config: PreTrainedConfig) -> str:
        if config.num_labels == 1:
            return ""
        return self.has_no_head(config) or f"its head has {config.num_labels} labels, and a reranker gives one score"

    def inspect_training_data(self, rows: Dataset) -> None:
        super().inspect_training_data(rows)
        for row in rows if self.kind == "scores" else ():
            self.require(
                0 <= row["score"] <= 1,
                row,
                f"the score {row['score']:g} must lie between 0 and 1; divide the scores by the largest possible one",
            )

    def loss(self, model: CrossEncoder) -> torch.nn.Module:
        from sentence_transformers.cross_encoder import losses

        if self.kind == "scores":
            return losses.BinaryCrossEntropyLoss(model)
        return losses.MultipleNegativesRankingLoss(model)

    def evaluator(self, encoded: Dataset, batch_size: int) -> BaseEvaluator:
        from sentence_transformers.cross_encoder import evaluation

        from ..train.sentence_trainers import CORRELATIONS, RERANKING, NamedMetrics

        options = {"batch_size": batch_size, "write_csv": False, "show_progress_bar": False}
        if self.main_metric == "spearman":
            first, second, scores = self.scored_pairs(encoded)
            pairs = [list(pair) for pair in zip(first, second, strict=True)]
            return NamedMetrics(
                {"": evaluation.CrossEncoderCorrelationEvaluator(pairs, scores, **options)}, CORRELATIONS
            )
        made = evaluation.CrossEncoderRerankingEvaluator(candidates(encoded), **options)
        return NamedMetrics({"": made}, RERANKING)

    def baseline_metrics(self, cosine: TfidfCosine, encoded: Dataset) -> Metrics:
        if self.main_metric == "spearman":
            return super().baseline_metrics(cosine, encoded)
        return cosine.reranking(candidates(encoded))

    def metric_notes(self, model: PreTrainedModel) -> list[str]:
        if self.main_metric == "spearman":
            return super().metric_notes(model)
        return [
            "For each query, 500 at most, its right documents and 29 others of the split are ranked: mrr@10 is the "
            "mean of 1/rank of the first right one, and ndcg@10 and map count the ranks of all of them."
        ]

    def snippet(self, model_id: str, row: Row) -> str:
        texts = self.first_texts(row)
        return self.loading_code(model_id) + f"print(model.predict([({', '.join(map(quoted, texts))})]))"

    @classmethod
    def scores(cls, saved: SavedModel, pairs: list[list[str]]) -> list[float]:
        return saved.model.predict(pairs, batch_size=len(pairs), show_progress_bar=False).tolist()
