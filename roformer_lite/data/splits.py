"""Loads the splits train, validation and test from files or from the Hub, and checks every row."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from datasets import (
    ClassLabel,
    Dataset,
    DatasetDict,
    IterableDataset,
    concatenate_datasets,
    load_dataset,
)
from datasets.exceptions import DatasetGenerationError

from ..errors import InputError
from ..task_options import DataArguments
from .data_files import Row, row_of

if TYPE_CHECKING:
    from ..recipes.base import Recipe

_SPLITS = ("train", "validation", "test")
_NO_TEXT = "there is no row with text"
# The default fraction and maximum number of training rows that are held out for validation.
HELD_OUT_FRACTION = 0.1
MAX_HELD_OUT_ROWS = 2000

logger = logging.getLogger(__name__)


class Source(NamedTuple):
    """The rows of a split, which can be read more than once, and their name in messages."""

    name: str
    rows: Callable[[], Iterator[Row]]


def load_splits(
    recipe: Recipe, args: DataArguments, cache_dir: Path, seed: int, wanted: Sequence[str] = _SPLITS
) -> DatasetDict:
    """Load the splits `train`, `validation` and `test`; the last two are optional.

    Args:
        recipe: Defines what a row is.
        args: Where the rows come from.
        cache_dir: Where the rows are stored, so that memory holds only those in use.
        seed: Determines which rows `validation_fraction` holds out.
        wanted: The splits to read. The first one must exist.

    Raises:
        InputError: for a file, a line or a column that cannot be used.
    """
    sources = _open_splits(recipe, args, wanted)
    splits = DatasetDict()
    streamed = None
    if getattr(args, "streaming", False):
        streamed = sources.pop("train")
    if streamed is not None:
        skipped = 0
        if "validation" not in sources and args.validation_fraction is None:
            counted = sum(1 for _ in islice(streamed.rows(), 5 * MAX_HELD_OUT_ROWS))
            skipped = _rows_to_hold_out(counted, None, "the first ones", recipe.min_rows_to_split)
        if skipped:
            sources["validation"] = Source(streamed.name, lambda: islice(streamed.rows(), skipped))
        splits["train"] = IterableDataset.from_generator(
            _stream, gen_kwargs={"recipe": recipe, "source": streamed, "skipped": skipped}
        )
    for split, source in sources.items():
        splits[split] = _collect_rows(source, recipe, cache_dir / split)
    if streamed is None and "train" in splits and "validation" not in splits:
        which = "at random" if recipe.rows_are_independent else "the last ones"
        amount = _rows_to_hold_out(
            len(splits["train"]), args.validation_fraction, which, recipe.min_rows_to_split
        )
        if amount:
            parts = splits["train"].train_test_split(
                amount, seed=seed, shuffle=recipe.rows_are_independent
            )
            splits["train"], splits["validation"] = _with_all_labels(
                recipe, parts["train"], parts["test"]
            )
    return DatasetDict({split: splits[split] for split in _SPLITS if split in splits})


def _open_splits(recipe: Recipe, args: DataArguments, wanted: Sequence[str]) -> dict[str, Source]:
    """Where the rows of each split come from."""
    if args.dataset_name:
        return {
            split: Source(
                f"{args.dataset_name} [{split}]", partial(_hub_rows, recipe, args, dataset)
            )
            for split, dataset in _hub_splits(args, wanted).items()
        }
    files = {"train": args.train_file, "validation": args.validation_file, "test": args.test_file}
    return {
        split: Source(", ".join(paths), partial(recipe.read_rows, paths))
        for split, paths in files.items()
        if paths and split in wanted
    }


def _stream(recipe: Recipe, source: Source, skipped: int) -> Iterator[Row]:
    for row in islice(source.rows(), skipped, None):
        if not recipe.is_empty(row):
            yield row


def _rows_to_hold_out(rows: int, fraction: float | None, which: str, min_rows: int) -> int:
    """The number of training rows to hold out if no validation data are given.

    Raises:
        InputError: if no row would be left for training.
    """
    if fraction is None:
        amount = 0
        if rows >= min_rows:
            amount = min(round(rows * HELD_OUT_FRACTION), MAX_HELD_OUT_ROWS)
        if amount:
            logger.warning(
                "no validation data are given: %d of the %d training rows, %s, are held out to "
                "choose the best checkpoint (--validation_fraction 0 holds out none)",
                amount,
                rows,
                which,
            )
        return amount
    amount = math.ceil(rows * fraction)
    if fraction and amount >= rows:
        raise InputError(
            f"--validation_fraction {fraction} of {rows} row{'s' * (rows > 1)} leaves no row for "
            "training; give more data or a smaller fraction"
        )
    return amount


def _with_all_labels(recipe: Recipe, train: Dataset, held_out: Dataset) -> tuple[Dataset, Dataset]:
    """Move the held-out rows that are needed for training back to the training rows."""
    needed = recipe.needed_for_training(train, held_out)
    if not needed or len(needed) == len(held_out):
        return train, held_out
    logger.warning(
        "%d of them are used for training, because no other row has their label", len(needed)
    )
    others = sorted(set(range(len(held_out))) - set(needed))
    return concatenate_datasets([train, held_out.select(needed)]), held_out.select(others)


def _hub_splits(args: DataArguments, wanted: Sequence[str]) -> dict[str, Dataset]:
    try:
        streaming = getattr(args, "streaming", False)
        loaded = load_dataset(args.dataset_name, args.dataset_config_name, streaming=streaming)
    # The library raises many kinds of errors: no such dataset, no network, no such configuration.
    except Exception as error:
        raise InputError(f"--dataset_name {args.dataset_name}: {error}") from error
    names = {
        "train": args.train_split,
        "validation": args.validation_split,
        "test": args.test_split,
    }
    needed = names[wanted[0]]
    if needed not in loaded:
        raise InputError(
            f"{args.dataset_name} has no split {needed!r}; its splits are {', '.join(loaded)}"
        )
    return {split: loaded[names[split]] for split in wanted if names[split] in loaded}


def _hub_rows(recipe: Recipe, args: DataArguments, dataset: Dataset) -> Iterator[Row]:
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
        row = {column: named(value, dataset.features[column]) for column, value in row.items()}
        yield recipe.select_columns(
            row_of(row, f"{args.dataset_name} [{dataset.split}] row {number}")
        )


def _collect_rows(source: Source, recipe: Recipe, cache_dir: Path) -> Dataset:
    """Store the rows with text in `cache_dir`.

    Raises:
        InputError: if no row has text.
    """
    left_out: list[str] = []
    has_text = False

    def with_text() -> Iterator[Row]:
        nonlocal has_text
        for row in source.rows():
            if recipe.is_empty(row):
                left_out.append(row["origin"])
            else:
                has_text = has_text or any(text.strip() for text in recipe.texts([row]))
                yield row

    kept = with_text()
    first = next(kept, None)
    if first is None:
        raise InputError(f"{source.name}: {_NO_TEXT}")
    try:
        # The library would hash the generator for a fingerprint, and this one cannot be pickled.
        dataset = Dataset.from_generator(
            lambda: chain([first], kept), cache_dir=str(cache_dir), fingerprint=cache_dir.name
        )
    except DatasetGenerationError as error:
        if isinstance(error.__cause__, InputError):
            raise error.__cause__ from None
        raise
    # The blank lines of a document are rows, but have no text.
    if not has_text:
        raise InputError(f"{source.name}: {_NO_TEXT}")
    if left_out:
        logger.warning(
            "%d rows without text are left out, the first at %s", len(left_out), left_out[0]
        )
    return dataset
