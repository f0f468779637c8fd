"""The trainers of sentence-transformers with the options, clock, averaged weights and guard.

The training loop, the batches and the losses come from sentence-transformers.
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from datasets import Dataset
from sentence_transformers import (
    CrossEncoderTrainer,
    CrossEncoderTrainingArguments,
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
)
from sentence_transformers.base.evaluation import BaseEvaluator
from sentence_transformers.base.model import BaseModel
from sentence_transformers.base.sampler import BatchSamplers, DefaultBatchSampler
from torch.utils.data import RandomSampler

from ..measuring.metrics import Metrics
from .trainer import RoFormerLiteTrainer


class ShuffledBatches(DefaultBatchSampler):
    """Draws rows in an order that depends only on the seed and the epoch, so that it is the same in
    a continued training.

    With the library's own sampler, the order also depends on the earlier epochs.
    """

    generator: Any

    def __init__(self, dataset: Dataset, generator: torch.Generator, **kwargs: Any):
        rows = RandomSampler(dataset, generator=generator)
        super().__init__(rows, generator=generator, **kwargs)

    def __iter__(self) -> Iterator[list[int]]:
        self.generator.manual_seed(self.seed + self.epoch)
        yield from super().__iter__()


class MeasuredModel(BaseEvaluator):
    """Wraps a function that evaluates a model as an evaluator of the library."""

    def __init__(self, measure: Callable[[BaseModel], Metrics]):
        super().__init__()
        self.measure = measure

    def __call__(self, model: BaseModel, *args: Any, **kwargs: Any) -> Metrics:
        return self.measure(model)


class SentenceTrainerMixin(RoFormerLiteTrainer):
    """The common base of the trainers for sentence-transformers.

    Args:
        evaluator: Evaluates the model on the validation data.
        avoids_duplicates: Whether no batch contains the same text twice by default.
    """

    def __init__(
        self,
        *args: Any,
        evaluator: Callable[[BaseModel], Metrics] | None = None,
        avoids_duplicates: bool = False,
        **kwargs: Any,
    ):
        measured = None if evaluator is None else MeasuredModel(evaluator)
        super().__init__(*args, evaluator=measured, **kwargs)
        if self.args.batch_sampler == BatchSamplers.BATCH_SAMPLER:
            self.args.batch_sampler = ShuffledBatches
            if avoids_duplicates:
                self.args.batch_sampler = BatchSamplers.NO_DUPLICATES

    def add_model_card_callback(self, default_args_dict: dict[str, Any]) -> None:
        """Omit the callback, which collects information for the library's own card, partly from the
        Hub."""

    def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None:
        """Save the modules without the library's own card."""
        model: Any = self.model
        model.save_pretrained(output_dir or self.args.output_dir, create_model_card=False)


class EmbeddingTrainer(SentenceTrainerMixin, SentenceTransformerTrainer):
    """`SentenceTransformerTrainer` with `TrainingOptions`."""

    args_class = SentenceTransformerTrainingArguments


class RerankingTrainer(SentenceTrainerMixin, CrossEncoderTrainer):
    """`CrossEncoderTrainer` with `TrainingOptions`."""

    args_class = CrossEncoderTrainingArguments
