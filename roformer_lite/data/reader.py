"""The base class of what reads and checks the rows of a task."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from ..errors import InputError
from ..options.tasks import TaskArguments
from .data_files import Row, read_table
from .duplicates import keys_of

if TYPE_CHECKING:
    from datasets import Dataset


@dataclass(frozen=True)
class Reader(ABC):
    """Reads the rows of a task. A row has the columns of the task (`source` and `target`, `text`
    and `labels`, …) and `origin`, its file and line.

    Attributes:
        rows_are_independent: Whether rows may be shuffled.
        input_columns: The columns of the input. A row may have only some of them.
        target_columns: The columns of other text.

    Args:
        options: The options of the task.
    """

    rows_are_independent = True
    input_columns: ClassVar[tuple[str, ...]] = ("text",)
    target_columns: ClassVar[tuple[str, ...]] = ()

    options: TaskArguments

    def read_rows(self, files: Sequence[str]) -> Iterator[Row]:
        """Read and check the rows of the user's files."""
        for path in files:
            for row in read_table(path, self.options.column_names):
                yield self.select_columns(row)

    @abstractmethod
    def select_columns(self, row: Row) -> Row:
        """The columns of the task in a row of a table or of a Hub dataset.

        Raises:
            InputError: if a column is missing.
        """

    def is_empty(self, row: Row) -> bool:
        """Whether a row contains nothing to learn from. Such rows are left out and counted."""
        return not all(self.texts([row]))

    def texts(self, rows: Iterable[Row]) -> Iterator[str]:
        """The text of the rows."""
        columns = (*self.input_columns, *self.target_columns)
        return (row[name] for row in rows for name in columns if name in row)

    def keys(self, rows: Dataset) -> np.ndarray:
        """A number for each row, `(rows,)`, which is equal for rows with the same input, up to case
        and spaces."""
        return keys_of(rows, [name for name in self.input_columns if name in rows.column_names])

    def needed_for_training(self, train: Dataset, held_out: Dataset) -> list[int]:
        """The indices of rows that must not be held out, such as the only ones with a label."""
        return []


def require(condition: bool, row: Row, message: str) -> None:
    """Raise `InputError` about `row` unless `condition` is true."""
    if not condition:
        raise InputError(f"{row['origin']}: {message}")
