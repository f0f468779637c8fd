"""Loads the splits train, validation and test from files or from the Hub, and checks every row."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Sequence
from fractions import Fraction
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
from datasets import (
    ClassLabel,
    Dataset,
    DatasetDict,
    Features,
    List,
    Value,
    concatenate_datasets,
    load_dataset,
)
from datasets.exceptions import DatasetGenerationError

from ..errors import InputError
from ..options.common import DataArguments, given_options
from .data_files import Row
from .duplicates import SEEN, groups_of
from .reader import Reader

_SPLITS = ("train", "validation", "test")
# The default fraction and maximum number of training rows that are held out for validation.
HELD_OUT_FRACTION = 0.1
# Training data with fewer rows are not split by default.
MIN_ROWS_TO_SPLIT = 100
MAX_HELD_OUT_ROWS = 2000
# A split hides its labels if this many rows have none.
NUM_INSPECTED_ROWS = 100

logger = logging.getLogger(__name__)


def load_splits(
    reader: Reader, args: DataArguments, cache_dir: Path, wanted: Sequence[str] = _SPLITS
) -> DatasetDict:
    """Load the splits `train`, `validation` and `test` that exist; the last two are optional.

    Args:
        reader: Reads the rows.
        args: Where the rows come from.
        cache_dir: Where the rows are stored, so that memory holds only those in use.
        wanted: The splits to read. The first one must exist.

    Raises:
        InputError: for a file, a line or a column that cannot be used.
    """
    return DatasetDict(
        {
            split: _collect_rows(name, rows, reader, cache_dir / split)
            for split, (name, rows) in _open_splits(reader, args, wanted).items()
        }
    )


def hold_out(
    reader: Reader,
    args: DataArguments,
    rows: DatasetDict,
    seed: int,
    min_rows: int = MIN_ROWS_TO_SPLIT,
) -> DatasetDict:
    """Hold out some of the training rows as validation data, unless there are validation data. Rows
    with the same input, up to case and spaces, stay together.

    Args:
        reader: What has read the rows.
        args: The options, which may specify the fraction to hold out.
        rows: The result of `load_splits`.
        seed: Determines which rows are held out.
        min_rows: Data with fewer rows are not split by default.

    Raises:
        InputError: if no row would be left for training, or none to hold out.
    """
    train = rows["train"]
    if "validation" in rows:
        return rows
    amount = _rows_to_hold_out(len(train), args.validation_fraction, min_rows)
    if not amount:
        return rows
    keys = reader.keys(train)
    groups = groups_of(keys)
    num_groups = min(max(1, round(amount * len(groups) / len(train))), len(groups) - 1)
    if not num_groups:
        raise InputError(
            "all training rows are the same, up to case and spaces, so that none can be held out; "
            "provide other data, or pass --validation_fraction 0"
        )
    numbers = Dataset.from_dict({"group": range(len(groups))})
    parts = numbers.train_test_split(num_groups, seed=seed, shuffle=reader.rows_are_independent)
    kept, held_out = (
        np.concatenate([groups[number] for number in parts[name]["group"]])
        for name in ("train", "test")
    )
    if args.validation_fraction is None:
        logger.info(
            "there are no validation data: %d of the %d training rows are held out to choose the "
            "best checkpoint (--validation_fraction 0 holds out none)",
            len(held_out),
            len(train),
        )
    kept, held_out = _with_all_labels(reader, train, keys, kept, held_out)
    if not len(held_out):
        if args.validation_fraction is None:
            return rows
        raise InputError(
            f"--validation_fraction {args.validation_fraction}: every held-out row would be the "
            "only one with its label, up to copies of it; provide more data, or pass "
            "--validation_fraction 0"
        )
    splits = {**rows, "train": train.select(kept), "validation": train.select(held_out)}
    return DatasetDict({split: splits[split] for split in _SPLITS if split in splits})


def mark_seen(reader: Reader, rows: DatasetDict) -> DatasetDict:
    """Add the column `seen` to the splits with rows whose input also occurs in the data used for
    training, and warn of them.

    Args:
        reader: What has read the rows.
        rows: The splits.
    """
    marked = DatasetDict(rows)
    known = np.zeros(0, dtype=int)
    before: list[Dataset] = []
    for split, own_rows in rows.items():
        own = reader.keys(own_rows)
        is_seen = np.isin(own, known)
        if is_seen.any():
            marked[split] = own_rows.add_column(SEEN, is_seen)
            first = int(is_seen.argmax())
            same = int((known == own[first]).argmax())
            logger.warning(
                "%d of the %d rows of the %s data also occur in the data used for training, up to "
                "case and spaces, for example %s (%s)",
                is_seen.sum(),
                len(own),
                split,
                own_rows[first]["origin"],
                concatenate_datasets(before)[same]["origin"],
            )
        known = np.concatenate([known, own])
        before.append(own_rows)
    return marked


def _open_splits(
    reader: Reader, args: DataArguments, wanted: Sequence[str]
) -> dict[str, tuple[str, Iterator[Row]]]:
    """The rows of each split, after their name in messages."""
    if args.dataset_name:
        if args.validation_fraction is not None:
            wanted = [split for split in wanted if split != "validation"]
        return {
            split: (f"{args.dataset_name} [{split}]", _hub_rows(reader, args, dataset))
            for split, dataset in _hub_splits(args, wanted).items()
        }
    files = {split: getattr(args, f"{split}_file") for split in wanted}
    return {
        split: (", ".join(paths), reader.read_rows(paths))
        for split, paths in files.items()
        if paths
    }


def _rows_to_hold_out(rows: int, fraction: float | None, min_rows: int) -> int:
    """The number of training rows to hold out if there are no validation data.

    Raises:
        InputError: if no row would be left for training.
    """
    if fraction is None:
        return min(round(rows * HELD_OUT_FRACTION), MAX_HELD_OUT_ROWS) if rows >= min_rows else 0
    # In binary numbers, 0.07 of 100 rows are a little more than 7.
    amount = math.ceil(rows * Fraction(str(fraction)))
    if fraction and amount >= rows:
        raise InputError(
            f"--validation_fraction {fraction} of {rows} row{'s' * (rows > 1)} leaves no row for "
            "training; provide more data, or pass a smaller fraction"
        )
    return amount


def _with_all_labels(
    reader: Reader, rows: Dataset, keys: np.ndarray, kept: np.ndarray, held_out: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Move the held-out rows that are needed for training back to the training rows, together with
    the rows that have the same input.

    Args:
        reader: What has read the rows.
        rows: All rows.
        keys: The keys of their inputs.
        kept, held_out: The places of the rows for training and of the held-out rows.
    """
    needed = reader.needed_for_training(rows.select(kept), rows.select(held_out))
    if not needed:
        return kept, held_out
    own_keys = keys[held_out]
    is_needed = np.isin(own_keys, own_keys[needed])
    logger.info(
        "%d of them are used for training, because no other row has their label", is_needed.sum()
    )
    return np.concatenate([kept, held_out[is_needed]]), held_out[~is_needed]


def _hub_splits(args: DataArguments, wanted: Sequence[str]) -> dict[str, Dataset]:
    try:
        loaded = load_dataset(args.dataset_name, args.dataset_config_name)
    # The library raises many kinds of errors: no such dataset, no network, no such configuration.
    except Exception as error:
        raise InputError(f"--dataset_name {args.dataset_name}: {error}") from error
    found = {}
    for split in wanted:
        name = getattr(args, f"{split}_split")
        is_needed = split == wanted[0] or f"{split}_split" in given_options(args)
        if name not in loaded:
            if is_needed:
                raise InputError(
                    f"{args.dataset_name} has no split {name!r}; its splits are {', '.join(loaded)}"
                )
            continue
        # Sounds and pictures would be decoded row by row.
        dataset = loaded[name]
        media = [column for column, kind in dataset.features.items() if hasattr(kind, "decode")]
        dataset = dataset.remove_columns(media)
        # Benchmarks whose organisers keep the labels of the test split have -1 instead.
        column = getattr(args, "label_column", "score")
        labels = [row.get(column) for row in islice(dataset, NUM_INSPECTED_ROWS)]
        if not is_needed and labels.count(-1) == len(labels) > 0:
            logger.warning(
                "the split %s of %s is left out, because all its labels are -1; --%s_split names "
                "another one",
                name,
                args.dataset_name,
                split,
            )
            continue
        found[split] = dataset
    return found


def _hub_rows(reader: Reader, args: DataArguments, dataset: Dataset) -> Iterator[Row]:
    def named(value: Any, feature: Any) -> Any:
        """Replace class numbers by their names, in lists as well; -1 means no label."""
        if isinstance(feature, ClassLabel):
            has_label = value is not None and value >= 0
            return feature.int2str(value) if has_label else ""
        inner = getattr(feature, "feature", None)
        if isinstance(inner, ClassLabel) and value is not None:
            return [named(item, inner) for item in value]
        return value

    for number, row in enumerate(dataset):
        columns = {column: named(value, dataset.features[column]) for column, value in row.items()}
        origin = f"{args.dataset_name} [{dataset.split}] row {number}"
        yield reader.select_columns({"columns": columns, "origin": origin})


def _collect_rows(name: str, rows: Iterator[Row], reader: Reader, cache_dir: Path) -> Dataset:
    """Store the rows with text in `cache_dir`.

    Args:
        name: The name of the rows in messages.
        rows: The rows.
        reader: What reads them.
        cache_dir: The directory.

    Raises:
        InputError: if no row has text.
    """
    left_out: list[str] = []
    first = list(islice(rows, 1))

    def rows_with_text() -> Iterator[Row]:
        has_text = False
        for row in chain(first, rows):
            if reader.is_empty(row):
                left_out.append(row["origin"])
                continue
            # The blank lines of a document are rows, but have no text.
            has_text = has_text or any(text.strip() for text in reader.texts([row]))
            yield row
        if not has_text:
            raise InputError(f"{name}: there is no row with text")

    try:
        # The library would hash the generator for a fingerprint, and this one cannot be pickled.
        dataset = Dataset.from_generator(
            rows_with_text,
            features=_features_of(first[0]) if first else None,
            cache_dir=str(cache_dir),
            fingerprint=cache_dir.name,
        )
    except DatasetGenerationError as error:
        if isinstance(error.__cause__, InputError):
            raise error.__cause__ from None
        raise
    if left_out:
        logger.warning(
            "rows without text are left out: %d, the first at %s", len(left_out), left_out[0]
        )
    return dataset


def _features_of(row: Row) -> Features:
    """The types of the columns: texts, lists of texts, numbers and truth values. The library would
    infer them from the first thousand rows, whose lists may all be empty."""
    types = {
        str: Value("string"),
        list: List(Value("string")),
        float: Value("float64"),
        bool: Value("bool"),
    }
    return Features({name: types[type(value)] for name, value in row.items()})
