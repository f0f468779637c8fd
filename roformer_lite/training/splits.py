"""The splits train, validation and test as `datasets.Dataset`, from files or from the Hub, with every row checked."""

import logging
import math
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any

import pyarrow as pa
from datasets import ClassLabel, Dataset, DatasetDict, concatenate_datasets, load_dataset
from datasets.exceptions import DatasetGenerationError

from ..errors import InputError
from .arguments import DataArguments
from .corpus.corpus import Corpus
from .corpus.manifest import Manifest, held_out_file, read_manifest
from .corpus.stream import TextStream
from .data_files import Row, row_of
from .source import Source
from .task_arguments import LanguageModelDataArguments
from .tasks.base import Task

_SPLITS = ("train", "validation", "test")
NO_TEXT = "there is no row with text"
_HELD_OUT, MOST_HELD_OUT = 0.1, 2000  # of the training rows, where nothing else is asked for
_FEWEST_ROWS = 100  # too few to spare any

logger = logging.getLogger(__name__)


def load_splits(
    task: Task, args: DataArguments, cache_dir: Path, seed: int, wanted: Sequence[str] = _SPLITS
) -> DatasetDict:
    """The rows of the splits `train`, `validation` and `test`, the last two where there are any.

    Args:
        task: Defines what a row is.
        args: Where the rows come from.
        cache_dir: Where the rows are stored; memory holds only those in use.
        seed: Determines which rows `validation_fraction` holds out.
        wanted: The splits to read, of which there must be the first.

    Raises:
        InputError: about a file, a line or a column that cannot be used.
    """
    if getattr(args, "prepared", None):
        return _prepared_splits(task, args, cache_dir)
    if getattr(args, "streaming", False):
        return _streamed_splits(task, args, cache_dir)
    splits = DatasetDict()
    for split, source in open_splits(task, args, wanted).items():
        splits[split] = collect_rows(source.rows(), task, cache_dir / split, source.name)
    if "train" in splits and "validation" not in splits:
        _hold_out(splits, task, args.validation_fraction, seed)
    return splits


def open_splits(task: Task, args: DataArguments, wanted: Sequence[str] = _SPLITS) -> dict[str, Source]:
    """Where the rows of each split come from.

    Raises:
        InputError: about a dataset of the Hub that cannot be used.
    """
    if args.dataset_name:
        return {
            split: Source(f"{args.dataset_name} [{split}]", partial(_hub_rows, task, args, dataset))
            for split, dataset in _hub_splits(args, wanted).items()
        }
    files = _file_splits(args, wanted)
    return {split: Source(", ".join(paths), partial(task.read_rows, paths)) for split, paths in files.items()}


def _hold_out(splits: DatasetDict, task: Task, fraction: float | None, seed: int) -> None:
    """Take the validation data from the training data, unless there is too little of them or nothing is wanted."""
    amount = rows_to_hold_out(
        len(splits["train"]), fraction, "at random" if task.rows_are_independent else "the last ones"
    )
    if amount:
        parts = splits["train"].train_test_split(amount, seed=seed, shuffle=task.rows_are_independent)
        splits["train"], splits["validation"] = parts["train"], parts["test"]


def rows_to_hold_out(rows: int, fraction: float | None, which: str) -> int:
    """How many of the training rows are held out, where no validation data are given.

    Raises:
        InputError: when nothing would be left.
    """
    if fraction is None:
        amount = min(round(rows * _HELD_OUT), MOST_HELD_OUT) if rows >= _FEWEST_ROWS else 0
        if amount:
            logger.warning(
                "no validation data are given: %d of the %d training rows, %s, are held out to choose the best "
                "checkpoint (--validation_fraction 0 trains on all)",
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


def _prepared_splits(task: Task, args: LanguageModelDataArguments, cache_dir: Path) -> DatasetDict:
    """The blocks of prepared data, and the rows that were held out there, unless files are given."""
    splits = DatasetDict()
    splits["train"] = Corpus.prepared(args.prepared, args.mixture, args.packing)
    manifests = {folder: read_manifest(folder) for folder in args.prepared}
    for split, files in (("validation", args.validation_file), ("test", args.test_file)):
        kept = {folder: manifest for folder, manifest in manifests.items() if split in manifest.held_out}
        if files:
            splits[split] = collect_rows(task.read_rows(files), task, cache_dir / split, ", ".join(files))
        elif kept:
            parts = {folder: _held_out_rows(folder, own, split, cache_dir / split) for folder, own in kept.items()}
            if len(parts) > 1:  # documents of the same name are different ones
                parts = {folder: rows.map(partial(_in_folder, folder)) for folder, rows in parts.items()}
            splits[split] = concatenate_datasets(list(parts.values()))
    return splits


def _held_out_rows(folder: str, manifest: Manifest, split: str, cache_dir: Path) -> Dataset:
    """The rows of a split that a preparation held out.

    Raises:
        InputError: when they are not all there.
    """
    path = Path(folder) / held_out_file(split)
    again = "copy it again or prepare the data again"
    try:
        rows = Dataset.from_parquet(str(path), cache_dir=str(cache_dir))
    except FileNotFoundError as error:
        raise InputError(f"--prepared {folder}: {path} is missing; {again}") from error
    except (OSError, pa.ArrowException, DatasetGenerationError) as error:
        raise InputError(f"--prepared {folder}: {path} is damaged ({error.__cause__ or error}); {again}") from error
    if len(rows) != manifest.held_out[split] or not {"text", "document"}.issubset(rows.column_names):
        raise InputError(
            f"--prepared {folder}: {path} is not the file of {manifest.held_out[split]:,} rows of text that was "
            f"prepared; {again}"
        )
    return rows


def _in_folder(folder: str, row: Row) -> Row:
    return {"document": f"{folder}: {row['document']}"}


def _streamed_splits(task: Task, args: LanguageModelDataArguments, cache_dir: Path) -> DatasetDict:
    """The training data as a stream. Without validation data the first rows are held out: a tenth of the first
    10,000."""
    sources = open_splits(task, args)
    train, held = sources.pop("train"), 0
    splits = DatasetDict()
    if "validation" not in sources and args.validation_fraction is None:
        rows = sum(1 for _ in islice(train.rows(), MOST_HELD_OUT * 5))
        held = rows_to_hold_out(rows, None, "the first ones")
        if held:
            sources["validation"] = Source(train.name, lambda: islice(train.rows(), held))
    splits["train"] = TextStream(task, train, held, args)
    for split, source in sources.items():
        splits[split] = collect_rows(source.rows(), task, cache_dir / split, source.name)
    return splits


def _file_splits(args: DataArguments, wanted: Sequence[str]) -> dict[str, list[str]]:
    files = {"train": args.train_file, "validation": args.validation_file, "test": args.test_file}
    return {split: paths for split, paths in files.items() if paths and split in wanted}


def _hub_splits(args: DataArguments, wanted: Sequence[str]) -> dict[str, Dataset]:
    try:
        streaming = getattr(args, "streaming", False)
        loaded = load_dataset(args.dataset_name, args.dataset_config_name, streaming=streaming)
    except Exception as error:  # the library raises many kinds: no such dataset, no network, no such configuration
        raise InputError(f"--dataset_name {args.dataset_name}: {error}") from error
    names = {"train": args.train_split, "validation": args.validation_split, "test": args.test_split}
    needed = names[wanted[0]]
    if needed not in loaded:
        raise InputError(f"{args.dataset_name} has no split {needed!r}; its splits are {', '.join(loaded)}")
    return {split: loaded[names[split]] for split in wanted if names[split] in loaded}


def _hub_rows(task: Task, args: DataArguments, dataset: Dataset) -> Iterator[Row]:
    def named(value: Any, feature: Any) -> Any:
        """The name of a class number, in lists too; -1 means no label."""
        if isinstance(feature, ClassLabel):
            return feature.int2str(value) if value is not None and value >= 0 else ""
        inner = getattr(feature, "feature", None)
        return [named(item, inner) for item in value] if isinstance(inner, ClassLabel) and value is not None else value

    for number, row in enumerate(dataset):
        row = {column: named(value, dataset.features[column]) for column, value in row.items()}
        yield task.select_columns(row_of(row, f"{args.dataset_name} [{dataset.split}] row {number}"))


def collect_rows(rows: Iterator[Row], task: Task, cache_dir: Path, name: str) -> Dataset:
    """Store rows in `cache_dir`, those without text left out; `name` is what messages call them.

    Raises:
        InputError: when none has text.
    """
    left_out: list[str] = []
    has_text = False

    def with_text() -> Iterator[Row]:
        nonlocal has_text
        for row in rows:
            if task.is_empty(row):
                left_out.append(row["origin"])
            else:
                has_text = has_text or any(text.strip() for text in task.texts([row]))
                yield row

    kept = with_text()
    first = next(kept, None)
    if first is None:
        raise InputError(f"{name}: {NO_TEXT}")
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
        raise InputError(f"{name}: {NO_TEXT}")
    if left_out:
        logger.warning("%d rows without text are left out, the first at %s", len(left_out), left_out[0])
    return dataset
