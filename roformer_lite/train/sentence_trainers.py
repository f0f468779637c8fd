"""The trainers and evaluators of sentence-transformers, with our options, clock, averaged weights
and guard, and with our names of metrics.

The training loop, the batches and the losses are those of sentence-transformers.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from datasets import Dataset
from sentence_transformers import CrossEncoderTrainer, SentenceTransformerTrainer
from sentence_transformers.base.evaluation import BaseEvaluator
from sentence_transformers.base.sampler import DefaultBatchSampler
from torch.utils.data import RandomSampler

from ..evaluate.metrics import Metrics
from .trainer import RoFormerLiteTrainerMixin


class ShuffledBatches(DefaultBatchSampler):
    """Rows in an order that only the seed and the epoch determine, so that a continued training has
    the same one.

    The library's own sampler draws the order of an epoch after those of the epochs before it.
    """

    def __init__(self, dataset: Dataset, *args: Any, generator: torch.Generator, **kwargs: Any):
        rows = RandomSampler(dataset, generator=generator)
        super().__init__(rows, *args, generator=generator, **kwargs)

    def __iter__(self) -> Iterator[list[int]]:
        self.generator.manual_seed(self.seed + self.epoch)
        yield from super().__iter__()


class SentenceTrainerMixin(RoFormerLiteTrainerMixin):
    """What the trainers of this package have in common."""

    def add_model_card_callback(self, default_args_dict: dict[str, Any]) -> None:
        """Leave the callback out: it collects, also from the Hub, what the library's own card
        says."""

    def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None:
        """Save the modules without the library's own card."""
        self.model.save_pretrained(output_dir or self.args.output_dir, create_model_card=False)


class EmbeddingTrainer(SentenceTrainerMixin, SentenceTransformerTrainer):
    """`SentenceTransformerTrainer` with `TrainingOptions`."""


class RerankingTrainer(SentenceTrainerMixin, CrossEncoderTrainer):
    """`CrossEncoderTrainer` with `TrainingOptions`."""


class NamedMetrics(BaseEvaluator):
    """Several evaluators as one, with our names of their metrics.

    Args:
        evaluators: By what follows the names of their metrics: nothing, or `_64`.
        keys: What the library calls each metric, by our name of it.
    """

    def __init__(self, evaluators: Mapping[str, BaseEvaluator], keys: Mapping[str, str]):
        super().__init__()
        self.evaluators = evaluators
        self.keys = keys

    def __call__(self, model: Any, *args: Any, **kwargs: Any) -> Metrics:
        metrics: Metrics = {}
        for suffix, evaluator in self.evaluators.items():
            found = evaluator(model)
            for name, key in self.keys.items():
                metrics[name + suffix] = float(found[key])
        return metrics
