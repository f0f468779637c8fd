"""The trainers and evaluators of sentence-transformers, with our options, clock, averaged weights
and guard, and with its names of metrics.

The training loop, the batches and the losses are those of sentence-transformers.
"""

from collections.abc import Iterator, Mapping, Sequence
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
    """Rows in an order that only the seed and the epoch determine, so that a continued training
    goes on with it.

    That of the library draws the order of an epoch after those of the epochs before it.
    """

    def __init__(self, dataset: Dataset, *args: Any, generator: torch.Generator, **kwargs: Any):
        super().__init__(
            RandomSampler(dataset, generator=generator), *args, generator=generator, **kwargs
        )

    def __iter__(self) -> Iterator[list[int]]:
        self.generator.manual_seed(self.seed + self.epoch)
        yield from super().__iter__()


class SentenceTrainerMixin(RoFormerLiteTrainerMixin):
    """What the trainers of this package have in common."""

    def add_model_card_callback(self, default_args_dict: dict[str, Any]) -> None:
        """Leave the callback out: it collects, also from the Hub, what the library's own card
        says."""

    def save_model(self, output_dir: str | None = None, *args: Any, **kwargs: Any) -> None:
        """Save the modules without the library's own card."""
        if self.args.should_save:
            self.model.save_pretrained(output_dir or self.args.output_dir, create_model_card=False)


class EmbeddingTrainer(SentenceTrainerMixin, SentenceTransformerTrainer):
    """`SentenceTransformerTrainer` with `TrainingOptions`."""


class RerankingTrainer(SentenceTrainerMixin, CrossEncoderTrainer):
    """`CrossEncoderTrainer` with `TrainingOptions`."""


TRAINERS = {"SentenceTransformer": EmbeddingTrainer, "CrossEncoder": RerankingTrainer}


class NamedMetrics(BaseEvaluator):
    """Several evaluators as one.

    Args:
        evaluators: By what follows the names of their metrics: nothing, or `_64`.
        names: The metrics to keep. The library has the similarity before or after its names for
            them, as in `cosine_mrr@10` and `spearman_cosine`.
    """

    def __init__(self, evaluators: Mapping[str, BaseEvaluator], names: Sequence[str]):
        super().__init__()
        self.evaluators, self.names = evaluators, names

    @property
    def metrics(self) -> list[str]:
        """The names of all metrics."""
        return [name + suffix for suffix in self.evaluators for name in self.names]

    def __call__(self, model: Any, *args: Any, **kwargs: Any) -> Metrics:
        metrics: Metrics = {}
        for suffix, evaluator in self.evaluators.items():
            found = evaluator(model)
            for name in self.names:
                key = next(key for key in found if key.endswith(name) or key.startswith(f"{name}_"))
                metrics[name + suffix] = float(found[key])
        return metrics


def search(
    queries: Sequence[str], documents: Sequence[str], right: Sequence[set[int]]
) -> dict[str, Any]:
    """The arguments of the library's evaluators of retrieval."""
    return {
        "queries": {str(number): text for number, text in enumerate(queries)},
        "corpus": {str(number): text for number, text in enumerate(documents)},
        "relevant_docs": {
            str(number): set(map(str, numbers)) for number, numbers in enumerate(right)
        },
        "accuracy_at_k": [1, 10],
        "write_csv": False,
    }
