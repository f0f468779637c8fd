"""What simple means give on the same data: honest company for the figures of a trained model.

Each module serves one kind of task. It learns from the training data, is measured by the functions that measure the
model, and takes seconds.
"""

from collections.abc import Sequence
from typing import TypeVar

from ..metrics import Metrics

Baselines = dict[str, dict[str, Metrics]]  # figures by the name of the means and by split

T = TypeVar("T")


def at_most(rows: Sequence[T], amount: int) -> Sequence[T]:
    """`amount` of the rows or fewer, spread evenly over all of them: simple means learn little from more."""
    return rows[:: max(1, -(-len(rows) // amount))]
