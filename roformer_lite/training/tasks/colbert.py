"""The task colbert: every token of a text gets a vector, and a pair of texts is scored by the best matches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from transformers import AutoModel

from ..data_files import Row
from ..task_arguments import ColbertDataArguments
from .answers import SavedModel
from .base import quoted
from .sentence import PairTask

if TYPE_CHECKING:
    import torch
    from datasets import Dataset
    from sentence_transformers import MultiVectorEncoder
    from sentence_transformers.base.evaluation import BaseEvaluator
    from transformers import Trainer

    from ..trainer_arguments import RoFormerLiteTrainingArguments


class ColbertTask(PairTask):
    """Late interaction: each token of the query takes its best match among those of the document."""

    name, summary = ColbertDataArguments.task, ColbertDataArguments.summary
    architecture = "Model"
    auto_model = AutoModel
    pipeline_tag = "feature-extraction"
    arguments = ColbertDataArguments
    metric_names = ("mrr@10", "accuracy@1", "accuracy@10")
    kinds = ("triplets", "pairs")

    @classmethod
    def training_classes(cls) -> tuple[type[RoFormerLiteTrainingArguments], type[Trainer]]:
        from ..sentence_trainers import MultiVectorTrainer, SentenceTrainingArguments

        return SentenceTrainingArguments, MultiVectorTrainer

    @classmethod
    def model_class(cls) -> type[MultiVectorEncoder]:
        from sentence_transformers import MultiVectorEncoder

        return MultiVectorEncoder

    def config_fields(self) -> dict[str, Any]:
        return {"add_pooling_layer": False}

    def loss(self, model: MultiVectorEncoder) -> torch.nn.Module:
        from sentence_transformers.multi_vector_encoder.losses import MultiVectorMultipleNegativesRankingLoss

        return MultiVectorMultipleNegativesRankingLoss(model)

    def evaluator(self, encoded: Dataset, batch_size: int) -> BaseEvaluator:
        from sentence_transformers.multi_vector_encoder.evaluation import MultiVectorInformationRetrievalEvaluator

        from ..sentence_data import queries_and_documents
        from ..sentence_evaluators import RETRIEVAL, Figures, search

        arguments = search(*queries_and_documents(encoded))
        return Figures({"": MultiVectorInformationRetrievalEvaluator(batch_size=batch_size, **arguments)}, RETRIEVAL)

    def snippet(self, model_id: str, row: Row) -> str:
        query, document = map(quoted, self.first_texts(row))
        return self.loading_code(model_id) + (
            f"queries, documents = model.encode_query([{query}]), model.encode_document([{document}])\n"
            "print(model.similarity(queries, documents))"
        )

    @classmethod
    def scores(cls, saved: SavedModel, pairs: list[list[str]]) -> list[float]:
        options = {"batch_size": len(pairs), "show_progress_bar": False}
        queries, documents = zip(*pairs, strict=True)
        encoded = (
            saved.model.encode_query(list(queries), **options),
            saved.model.encode_document(list(documents), **options),
        )
        return saved.model.similarity_pairwise(*encoded).tolist()
