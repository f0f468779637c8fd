"""Rows whose input is the same, up to case and spaces. The same text must not be both learned and
measured."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from datasets import Dataset

# The column that says whether the input of a row also occurs in the data used for training: in the
# training data or, for test data, in the validation data, which choose the model.
SEEN = "seen"


def keys_of(rows: Dataset, columns: Sequence[str]) -> np.ndarray:
    """A number for the input of each row, `(rows,)`, which is equal for equal inputs. It is
    different in each process.

    Args:
        rows: The rows.
        columns: The columns of the input. A column contains texts or lists of texts.
    """
    inputs = zip(*(rows[column] for column in columns), strict=True)
    keys = [hash(tuple(map(normal_form, values))) for values in inputs]
    return np.array(keys, dtype=np.int64)


def normal_form(value: str | list[str]) -> str:
    """A text, or the words of one, without differences of case and spaces."""
    text = value if isinstance(value, str) else " ".join(value)
    return " ".join(text.casefold().split())


def groups_of(keys: np.ndarray) -> list[list[int]]:
    """The places of equal keys, in the order of the first of each."""
    groups: dict[int, list[int]] = {}
    for place, key in enumerate(keys.tolist()):
        groups.setdefault(key, []).append(place)
    return list(groups.values())
