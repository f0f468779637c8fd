"""The task sparse: a text gets a weight for each token of the vocabulary, most of them zero (SPLADE)."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from transformers import AutoModelForMaskedLM, PreTrainedModel

from ..data_files import Row
from ..task_arguments import SparseDataArguments
from .answers import Answer, Input, SavedModel
from .base import quoted
from .sentence import SentenceTask

if TYPE_CHECKING:
    from typing import Any

    import torch
    from datasets import Dataset
    from sentence_transformers import SparseEncoder
    from sentence_transformers.base.evaluation import BaseEvaluator
    from transformers import Trainer, TrainerCallback

    from ..trainer_arguments import RoFormerLiteTrainingArguments

# Weights of the penalty on non-zero weights: the library's own, found on search queries and passages.
_QUERY_WEIGHT, _DOCUMENT_WEIGHT = 5e-5, 3e-5


class SparseTask(SentenceTask):
    """Weights of tokens, the largest that the LM head gives at any place of the text."""

    name, summary = SparseDataArguments.task, SparseDataArguments.summary
    architecture = "ForMaskedLM"
    auto_model = AutoModelForMaskedLM
    pipeline_tag = "feature-extraction"
    arguments = SparseDataArguments
    metric_names = ("spearman", "pearson", "mrr@10", "accuracy@1", "accuracy@10", "active_dims")

    @classmethod
    def training_classes(cls) -> tuple[type[RoFormerLiteTrainingArguments], type[Trainer]]:
        from ..sentence_trainers import SentenceTrainingArguments, SparseTrainer

        return SentenceTrainingArguments, SparseTrainer

    @classmethod
    def model_class(cls) -> type[SparseEncoder]:
        from sentence_transformers import SparseEncoder

        return SparseEncoder

    def loss(self, model: SparseEncoder) -> torch.nn.Module:
        from sentence_transformers.sparse_encoder import losses

        if self.kind == "scores":  # the two texts are alike, neither is a query
            cosent = losses.SparseCoSENTLoss(model)
            return losses.SpladeLoss(model, cosent, _DOCUMENT_WEIGHT, use_document_regularizer_only=True)
        ranking = losses.SparseMultipleNegativesRankingLoss(model)
        return losses.SpladeLoss(model, ranking, _DOCUMENT_WEIGHT, _QUERY_WEIGHT)

    def callbacks(self, loss: torch.nn.Module) -> list[TrainerCallback]:
        from sentence_transformers.sparse_encoder.callbacks import SpladeRegularizerWeightSchedulerCallback

        return [SpladeRegularizerWeightSchedulerCallback(loss)]

    def evaluator(self, encoded: Dataset, batch_size: int) -> BaseEvaluator:
        from sentence_transformers.sparse_encoder import evaluation

        from ..sentence_data import queries_and_documents
        from ..sentence_evaluators import CORRELATIONS, RETRIEVAL, SPARSITY, Figures, search

        if self.main_metric == "spearman":
            made = evaluation.SparseEmbeddingSimilarityEvaluator(
                *self.scored_pairs(encoded), batch_size, main_similarity="cosine", write_csv=False
            )
            return Figures({"": made}, (*CORRELATIONS, *SPARSITY))
        arguments = search(*queries_and_documents(encoded))
        made = evaluation.SparseInformationRetrievalEvaluator(batch_size=batch_size, **arguments)
        return Figures({"": made}, (*RETRIEVAL, *SPARSITY))

    def metric_notes(self, model: PreTrainedModel) -> list[str]:
        how = "texts" if self.main_metric == "spearman" else "queries"
        return [
            *super().metric_notes(model),
            f"active_dims is how many weights of the {how} are not zero, on average.",
        ]

    def example_line(self, row: Row) -> str:
        return self.first_texts(row)[0]

    def snippet(self, model_id: str, row: Row) -> str:
        text = quoted(self.first_texts(row)[0])
        return self.loading_code(model_id) + f"print(model.decode(model.encode([{text}]), top_k=10))"

    @classmethod
    def answer_columns(cls, saved: SavedModel, options: dict[str, Any]) -> list[str]:
        return ["weights"]

    @classmethod
    def predict(cls, saved: SavedModel, inputs: list[Input], options: dict[str, Any]) -> list[Answer]:
        """An object of JSON with the weights that are not zero by their tokens, the largest first."""
        encoded = saved.model.encode(inputs, batch_size=len(inputs), show_progress_bar=False)
        rows = [{token: round(weight, 4) for token, weight in row} for row in saved.model.decode(encoded)]
        return [Answer(json.dumps(row, ensure_ascii=False), {"weights": row}) for row in rows]
