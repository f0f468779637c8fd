"""The rows of classify: texts or pairs of texts, with labels or a number."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..data.data_files import Row, number_of, text_of, value_of
from ..data.reader import require
from ..options.tasks import ClassifyDataArguments
from .labels import LabelReader

if TYPE_CHECKING:
    from datasets import DatasetDict

SINGLE = "single_label_classification"
MULTI = "multi_label_classification"
REGRESSION = "regression"


class ClassifyReader(LabelReader):
    """Reads a `text`, optionally a `text_pair`, and `labels` or a `number`. If the options do not
    decide the type of the problem, `is_list` says whether the labels are a list."""

    input_columns = ("text", "text_pair")

    options: ClassifyDataArguments

    @property
    def problem_type(self) -> str | None:
        """The type of the problem; None if it depends on the rows."""
        given = self.options.problem_type
        return MULTI if given is None and self.options.label_separator else given

    def select_columns(self, row: Row) -> Row:
        selected = {
            "text": text_of(row, self.options.text_column, "text_column"),
            "origin": row["origin"],
        }
        if self.options.text_pair_column:
            selected["text_pair"] = text_of(row, self.options.text_pair_column, "text_pair_column")
        column = self.options.label_column
        if self.problem_type == REGRESSION:
            return {**selected, "number": number_of(row, column, "label_column")}
        label = value_of(row, column, "label_column")
        if self.problem_type is None:
            selected["is_list"] = isinstance(label, list)
        return {**selected, "labels": self.names_in(label, row)}

    def names_in(self, label: Any, row: Row) -> list[str]:
        """The names of the labels of a row."""
        column = self.options.label_column
        separator = self.options.label_separator
        names = label if isinstance(label, list) else [label]
        if isinstance(label, str) and separator and self.problem_type == MULTI:
            names = [part for part in label.split(separator) if part.strip()]
        are_names = all(isinstance(name, (str, int)) for name in names)
        message = (
            f"column {column!r} must be a label, not {label!r}; --problem_type regression is for "
            "numbers"
        )
        require(are_names, row, message)
        names = [str(name).strip() for name in names]
        require(all(names), row, f"column {column!r} is empty")
        message = (
            f"column {column!r} names a label twice: {label!r}; write the names of the labels, not "
            "zeros and ones"
        )
        require(len({*names}) == len(names), row, message)
        fits = self.problem_type != SINGLE or len(names) == 1
        require(fits, row, f"one label is needed, not {label!r}")
        return names


def problem_type_in(options: ClassifyDataArguments, rows: DatasetDict) -> str:
    """The type of the problem: the one of the options. Otherwise rows have several labels if the
    labels of any row are a list, and one label if not.

    Args:
        options: The options of the task.
        rows: All rows of the data, as a `ClassifyReader` returns them.
    """
    given = ClassifyReader(options).problem_type
    if given is not None:
        return given
    has_list = any(True in split.unique("is_list") for split in rows.values())
    return MULTI if has_list else SINGLE


def numbers_first(label: str) -> tuple[bool, int, str]:
    """A sort key that puts numbers first, in the order of their values."""
    if label.isdecimal():
        return False, int(label), label
    return True, 0, label
