"""The splits train, validation and test as data sets, from files or from the Hub, with every row
checked."""

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
_HELD_OUT, _MOST_HELD_OUT = 0.1, 2000  # of the training rows, where nothing else is asked for

logger = logging.getLogger(__name__)


class Source(NamedTuple):
    """The rows of a split, which can be read more than once, and what messages call them."""

    name: str
    rows: Callable[[], Iterator[Row]]


def load_splits(
    recipe: Recipe, args: DataArguments, cache_dir: Path, seed: int, wanted: Sequence[str] = _SPLITS
) -> DatasetDict:
    """The rows of the splits `train`, `validation` and `test`, the last two where there are any.

    Args:
        recipe: Defines what a row is.
        args: Where the rows come from.
        cache_dir: Where the rows are stored; memory holds only those in use.
        seed: Determines which rows `validation_fraction` holds out.
        wanted: The splits to read, of which there must be the first.

    Raises:
        InputError: about a file, a line or a column that cannot be used.
    """
    sources, splits = _open_splits(recipe, args, wanted), DatasetDict()
    streamed = sources.pop("train") if getattr(args, "streaming", False) else None
    if streamed is not None:
        skipped = 0
        if "validation" not in sources and args.validation_fraction is None:
            counted = sum(1 for _ in islice(streamed.rows(), 5 * _MOST_HELD_OUT))
            skipped = _rows_to_hold_out(counted, None, "the first ones", recipe.fewest_rows)
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
            len(splits["train"]), args.validation_fraction, which, recipe.fewest_rows
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


def _rows_to_hold_out(rows: int, fraction: float | None, which: str, fewest_rows: int) -> int:
    """How many of the training rows are held out, where no validation data are given.

    Raises:
        InputError: when nothing would be left.
    """
    if fraction is None:
        amount = min(round(rows * _HELD_OUT), _MOST_HELD_OUT) if rows >= fewest_rows else 0
        if amount:
            logger.warning(
                "no validation data are given: %d of the %d training rows, %s, are held out: they choose the best "
                "checkpoint (--validation_fraction 0 holds out none)",
                amount,
                rows,
                which,
            )
        return amount
    amount = math.ceil(rows * fraction)
    if fraction and amount >= rows:
        raise InputError(
            f"--validation_fraction {fraction} of {rows} row{'s' * (rows > 1)} leaves no row for training; give "
            "more data or a smaller fraction"
        )
    return amount


def _with_all_labels(recipe: Recipe, train: Dataset, held_out: Dataset) -> tuple[Dataset, Dataset]:
    """The same two, but for the rows held out that are needed for training."""
    needed = recipe.needed_for_training(train, held_out)
    if not needed or len(needed) == len(held_out):
        return train, held_out
    logger.warning("%d of them are trained on, as no other row has their label", len(needed))
    others = sorted(set(range(len(held_out))) - set(needed))
    return concatenate_datasets([train, held_out.select(needed)]), held_out.select(others)


def _hub_splits(args: DataArguments, wanted: Sequence[str]) -> dict[str, Dataset]:
    try:
        streaming = getattr(args, "streaming", False)
        loaded = load_dataset(args.dataset_name, args.dataset_config_name, streaming=streaming)
    # the library raises many kinds: no such dataset, no network, no such configuration
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
        """The name of a class number, in lists too; -1 means no label."""
        if isinstance(feature, ClassLabel):
            return feature.int2str(value) if value is not None and value >= 0 else ""
        inner = getattr(feature, "feature", None)
        return (
            [named(item, inner) for item in value]
            if isinstance(inner, ClassLabel) and value is not None
            else value
        )

    for number, row in enumerate(dataset):
        row = {column: named(value, dataset.features[column]) for column, value in row.items()}
        yield recipe.select_columns(
            row_of(row, f"{args.dataset_name} [{dataset.split}] row {number}")
        )


def _collect_rows(source: Source, recipe: Recipe, cache_dir: Path) -> Dataset:
    """Store rows in `cache_dir`, those without text left out.

    Raises:
        InputError: when none has text.
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
    if not has_text:  # of a document the blank lines are rows too
        raise InputError(f"{source.name}: {_NO_TEXT}")
    if left_out:
        logger.warning(
            "%d rows without text are left out, the first at %s", len(left_out), left_out[0]
        )
    return dataset
