"""What a model of sentence-transformers learns from: the kinds of rows, told apart by their
columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..errors import InputError
from ..evaluate.baselines import at_most
from .data_files import Row, columns_of, number_of, text_of, value_of

if TYPE_CHECKING:
    from datasets import Dataset

# In the order in which they are looked for: a triplet has the columns of a pair too.
KINDS: dict[str, tuple[str, ...]] = {
    "scores": ("sentence1", "sentence2", "score"),
    "triplets": ("anchor", "positive", "negative"),
    "pairs": ("anchor", "positive"),
    "texts": ("text",),
}
_QUERIES, _CANDIDATES = 500, 30  # that a reranker is measured by


def row_of_kind(row: Row, kinds: Sequence[str], kind: str | None) -> tuple[str, Row]:
    """The kind of a row, and the row with the columns of that kind alone.

    Args:
        row: Of the user's data.
        kinds: Those that the task learns from.
        kind: That of the rows before it; None for the first.

    Raises:
        InputError: when the row has the columns of no kind, or not those of the rows before it.
    """
    columns = columns_of(row)
    fitting = [name for name in kinds if set(KINDS[name]) <= set(columns)]
    if kind is None and not fitting:
        choices = "; or ".join(", ".join(KINDS[name]) for name in kinds)
        raise InputError(
            f"{row['origin']}: the columns are {', '.join(columns)}, but training data have the columns {choices}"
            ". If the file has no header line, name its columns with --column_names"
        )
    kind = kind or fitting[0]
    return kind, {
        **{
            name: _number(row, name) if name == "score" else text_of(row, name)
            for name in KINDS[kind]
        },
        "origin": row["origin"],
    }


def _number(row: Row, column: str) -> float:
    value = value_of(row, column)
    number = number_of(value)
    if number is None:
        raise InputError(f"{row['origin']}: column {column!r} must be a number, not {value!r}")
    return number


def kind_of(rows: Dataset) -> str:
    """The kind of rows that were selected by `row_of_kind`."""
    return next(kind for kind, columns in KINDS.items() if set(columns) <= set(rows.column_names))


def text_columns(kind: str) -> list[str]:
    """The columns of texts, in the order in which losses take them."""
    return [name for name in KINDS[kind] if name != "score"]


def candidates(rows: Dataset) -> list[dict[str, Any]]:
    """Pairs or triplets as what a reranker is measured by: a query, its right documents and 29
    others.

    The others are the negatives of the row, where it has some, and then the documents that follow
    in the data. Of more than 500 queries, 500 random ones are taken.
    """
    queries, documents, right = queries_and_documents(rows)
    negatives: dict[str, list[str]] = {}
    for row in rows if "negative" in rows.column_names else ():
        negatives.setdefault(row["anchor"], []).append(row["negative"])
    samples = []
    for number in at_most(range(len(queries)), _QUERIES):
        positive = [documents[place] for place in sorted(right[number])]
        start = min(right[number])
        following = documents[start:] + documents[:start]
        others = dict.fromkeys(
            [*negatives.get(queries[number], ()), *following[: _CANDIDATES + len(positive)]]
        )
        negative = [text for text in others if text not in positive][: _CANDIDATES - 1]
        samples.append({"query": queries[number], "positive": positive, "negative": negative})
    return samples


def queries_and_documents(rows: Dataset) -> tuple[list[str], list[str], list[set[int]]]:
    """Pairs or triplets as a search: every different anchor is a query, every other different text
    a document.

    Returns:
        Queries, documents, and for each query the numbers of the documents that are right.
    """
    negatives = rows["negative"] if "negative" in rows.column_names else []
    numbers = {
        text: number for number, text in enumerate(dict.fromkeys([*rows["positive"], *negatives]))
    }
    right: dict[str, set[int]] = {}
    for anchor, positive in zip(rows["anchor"], rows["positive"], strict=True):
        right.setdefault(anchor, set()).add(numbers[positive])
    return list(right), list(numbers), list(right.values())
