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
# A reranker is measured by at most so many queries, and ranks so many documents for each.
MAX_QUERIES = 500
NUM_CANDIDATES = 30


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
            f"{row['origin']}: the columns are {', '.join(columns)}, but training data have the "
            f"columns {choices}. If the file has no header line, name its columns with "
            "--column_names"
        )
    kind = kind or fitting[0]
    selected: Row = {}
    for name in KINDS[kind]:
        selected[name] = _number(row, name) if name == "score" else text_of(row, name)
    return kind, {**selected, "origin": row["origin"]}


def _number(row: Row, column: str) -> float:
    value = value_of(row, column)
    number = number_of(value)
    if number is None:
        raise InputError(f"{row['origin']}: column {column!r} must be a number, not {value!r}")
    return number


def kind_of(rows: Dataset) -> str:
    """The kind of rows that were selected by `row_of_kind`."""
    return next(kind for kind, columns in KINDS.items() if set(columns) <= set(rows.column_names))


def candidates(rows: Dataset) -> list[dict[str, Any]]:
    """Pairs or triplets as what a reranker is measured by: a query, its right documents and 29
    others.

    The others are the negatives of the row, where it has some, and then the documents that follow
    in the data. Of more than 500 queries, 500 random ones are taken.
    """
    queries, documents, right = queries_and_documents(rows)
    negatives: dict[str, list[str]] = {}
    if "negative" in rows.column_names:
        for row in rows:
            negatives.setdefault(row["anchor"], []).append(row["negative"])
    samples = []
    for number in at_most(range(len(queries)), MAX_QUERIES):
        query = queries[number]
        positive = [documents[place] for place in sorted(right[number])]
        start = min(right[number])
        following = documents[start:] + documents[:start]
        following = following[: NUM_CANDIDATES + len(positive)]
        others = dict.fromkeys([*negatives.get(query, ()), *following])
        negative = [text for text in others if text not in positive]
        samples.append(
            {"query": query, "positive": positive, "negative": negative[: NUM_CANDIDATES - 1]}
        )
    return samples


def queries_and_documents(rows: Dataset) -> tuple[list[str], list[str], list[set[int]]]:
    """Pairs or triplets as a search: every different anchor is a query, every other different text
    a document.

    Returns:
        Queries, documents, and for each query the numbers of the documents that are right.
    """
    negatives = rows["negative"] if "negative" in rows.column_names else []
    documents = list(dict.fromkeys([*rows["positive"], *negatives]))
    numbers = {text: number for number, text in enumerate(documents)}
    right: dict[str, set[int]] = {}
    for anchor, positive in zip(rows["anchor"], rows["positive"], strict=True):
        right.setdefault(anchor, set()).add(numbers[positive])
    return list(right), documents, list(right.values())
