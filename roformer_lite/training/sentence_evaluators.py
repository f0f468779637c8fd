"""The evaluators of sentence-transformers, with their figures under the names that this package has for them."""

from collections.abc import Mapping, Sequence
from typing import Any

from sentence_transformers.base.evaluation import BaseEvaluator

from .metrics import Metrics

CORRELATIONS = ("spearman", "pearson")
RETRIEVAL = ("mrr@10", "accuracy@1", "accuracy@10")
RERANKING = ("mrr@10", "ndcg@10", "map")


class Figures(BaseEvaluator):
    """Several evaluators as one.

    Args:
        evaluators: By what stands behind the names of their figures: nothing, or `_64`.
        names: The figures to keep. The library has the similarity before or behind its names for them, as in
            `cosine_mrr@10` and `spearman_cosine`.
    """

    def __init__(self, evaluators: Mapping[str, BaseEvaluator], names: Sequence[str]):
        super().__init__()
        self.evaluators, self.names = evaluators, names

    @property
    def figures(self) -> list[str]:
        """The names of all figures."""
        return [name + suffix for suffix in self.evaluators for name in self.names]

    def __call__(self, model: Any, *args: Any, **kwargs: Any) -> Metrics:
        figures: Metrics = {}
        for suffix, evaluator in self.evaluators.items():
            found = evaluator(model)
            figures |= {name + suffix: _figure(found, name) for name in self.names}
        return figures


def _figure(found: Mapping[str, float], name: str) -> float:
    return next(float(found[key]) for key in found if key.endswith(name) or key.startswith(f"{name}_"))


def search(queries: Sequence[str], documents: Sequence[str], right: Sequence[set[int]]) -> dict[str, Any]:
    """The arguments of the library's evaluators of retrieval."""
    return {
        "queries": {str(number): text for number, text in enumerate(queries)},
        "corpus": {str(number): text for number, text in enumerate(documents)},
        "relevant_docs": {str(number): set(map(str, numbers)) for number, numbers in enumerate(right)},
        "accuracy_at_k": [1, 10],
        "write_csv": False,
    }
