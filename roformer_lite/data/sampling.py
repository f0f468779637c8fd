"""Samples of rows, for work that needs no more."""

from collections.abc import Sequence
from typing import TypeVar

import numpy as np

# A baseline learns from at most this many rows.
MAX_ROWS = 100_000

T = TypeVar("T")


def sample_rows(rows: Sequence[T], amount: int) -> Sequence[T]:
    """All rows, or `amount` random ones in their original order.

    The indices depend only on the length of the sequence.
    """
    if len(rows) <= amount:
        return rows
    order = np.random.default_rng(0).permutation(len(rows))
    places = np.sort(order[:amount])
    return [rows[place] for place in places]
