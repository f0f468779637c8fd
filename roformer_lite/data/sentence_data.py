"""Training data of sentence-transformers models: the kinds of rows, which differ in their
columns."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from ..errors import InputError
from .data_files import Row, listed, number_of, text_of
from .sampling import sample_rows

if TYPE_CHECKING:
    from datasets import Dataset

# Triplets come before pairs because they also have the columns of a pair.
KINDS: dict[str, tuple[str, ...]] = {
    "scores": ("sentence1", "sentence2", "score"),
    "triplets": ("anchor", "positive", "negative"),
    "pairs": ("anchor", "positive"),
}
# A reranker is evaluated on at most `MAX_QUERIES` queries and ranks `NUM_CANDIDATES` documents for
# each.
MAX_QUERIES = 500
NUM_CANDIDATES = 30


def row_of_kind(row: Row, kind: str | None) -> tuple[str, Row]:
    """The kind of a row, and the row with only the columns of that kind.

    Args:
        row: A row of the user's data.
        kind: The kind of the previous rows; None for the first row.

    Raises:
        InputError: if the row lacks the columns of its kind, or those of any kind.
    """
    columns = row["columns"]
    fitting = kinds_with(columns)
    if kind is None and not fitting:
        choices = "; or ".join(map(", ".join, KINDS.values()))
        raise InputError(
            f"{row['origin']}: the columns are {listed(columns)}, but the training data "
            f"need {choices}. If the file has no header line, name its columns with "
            "--column_names"
        )
    kind = kind or fitting[0]
    selected: Row = {}
    for name in KINDS[kind]:
        selected[name] = number_of(row, name) if name == "score" else text_of(row, name)
    return kind, {**selected, "origin": row["origin"]}


def kind_of(rows: Dataset) -> str:
    """The kind of rows that were selected by `row_of_kind`."""
    return kinds_with(rows.column_names)[0]


def kinds_with(columns: Iterable[str]) -> list[str]:
    """The kinds of rows that have these columns and possibly others, in the order of `KINDS`."""
    return [kind for kind, needed in KINDS.items() if set(needed) <= set(columns)]


def candidates(rows: Dataset) -> list[dict[str, Any]]:
    """Make the evaluation data of a reranker from pairs or triplets.

    Each sample is a query with its relevant documents and 29 others: the negatives of its rows, if
    they have any, and then the documents that follow in the data. At most 500 random queries are
    used.
    """
    queries, documents, right = queries_and_documents(rows)
    negatives: dict[str, list[str]] = {}
    if "negative" in rows.column_names:
        negatives = rows.to_pandas().groupby("anchor")["negative"].agg(list).to_dict()
    samples = []
    for number in sample_rows(range(len(queries)), MAX_QUERIES):
        query = queries[number]
        positive = [documents[place] for place in sorted(right[number])]
        start = min(right[number])
        following = documents[start:] + documents[:start]
        following = following[: NUM_CANDIDATES + len(positive)]
        others = dict.fromkeys([*negatives.get(query, ()), *following])
        negative = [text for text in others if text != query and text not in positive]
        samples.append(
            {"query": query, "positive": positive, "negative": negative[: NUM_CANDIDATES - 1]}
        )
    return samples


def queries_and_documents(rows: Dataset) -> tuple[list[str], list[str], list[set[int]]]:
    """Turn pairs or triplets into search data: every distinct anchor is a query, and every distinct
    text of the other columns a document.

    Returns:
        Queries, documents, and for each query the indices of its relevant documents.
    """
    negatives = rows["negative"] if "negative" in rows.column_names else []
    documents = list(dict.fromkeys([*rows["positive"], *negatives]))
    numbers = {text: number for number, text in enumerate(documents)}
    right: dict[str, set[int]] = {}
    for anchor, positive in zip(rows["anchor"], rows["positive"], strict=True):
        right.setdefault(anchor, set()).add(numbers[positive])
    return list(right), documents, list(right.values())
