"""Preparing text for language models: tokenised once, in parallel, into shards that any number of trainings read."""

import logging
import shutil
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np
from datasets import disable_progress_bars
from transformers import PreTrainedTokenizerBase

from hf_roformer_lite.version import __version__

from ...errors import InputError
from ...output_directory import complete_directory
from ..data_files import Row
from ..fingerprint import tokenizer_fingerprint
from ..model_and_tokenizer import set_up_tokenizer, train_tokenizer
from ..pretrained import pretrained_tokenizer
from ..source import Source
from ..splits import MOST_HELD_OUT, NO_TEXT, collect_rows, open_splits, rows_to_hold_out
from ..tasks.blocks import BlockCutter
from ..tasks.language_model import LanguageModelTask
from ..tokenizer_arguments import TokenizerArguments
from .hold_out import hold_out
from .manifest import TOKENIZER_FOLDER, Manifest, held_out_file
from .prepare_arguments import PrepareArguments
from .shards import ShardWriter
from .tokenising import first_texts, tokenised

logger = logging.getLogger(__name__)


def prepare(task: LanguageModelTask, asked: TokenizerArguments, options: PrepareArguments) -> Manifest:
    """Tokenise the training data of `task` into `options.output_dir`, which appears when all of it is there.

    Args:
        task: Masked or causal language modelling, with the options of the data.
        asked: Which tokenizer.
        options: Where to, and in how many processes.

    Returns:
        What the directory says of itself.

    Raises:
        InputError: about data and tokenizer, and when the disk is full.
    """
    disable_progress_bars()
    started = time.monotonic()
    sources = open_splits(task, task.args)
    if not any(row["text"].strip() for row in sources["train"].rows()):  # reads on to the first
        raise InputError(f"{sources['train'].name}: {NO_TEXT}")
    with complete_directory(Path(options.output_dir), "the prepared data") as folder:
        tokenizer = _tokenizer(task, asked, folder / TOKENIZER_FOLDER)
        fingerprint = tokenizer_fingerprint(tokenizer)
        train, held = _Counted(task, sources["train"].name), deque[Row]()
        rows = train.without_empty(sources["train"].rows())
        if "validation" not in sources:
            rows = _hold_out(task, rows, sources["train"], held)
        writer = ShardWriter(folder, round(options.shard_size * 1e6))
        pieces = tokenised(train.counted(rows), tokenizer, folder / TOKENIZER_FOLDER, options.processes)
        blocks = BlockCutter.of(tokenizer, task.args.block_size, task.is_causal).blocks(pieces)
        writer.write(_with_words(blocks, tokenizer.all_special_ids, train.name))
        train.report()
        others = {split: source for split, source in sources.items() if split != "train"}
        if held:
            others["validation"] = Source(f"{train.name}, held out", lambda: iter(held))
        manifest = Manifest(
            task=task.name,
            block_size=task.args.block_size,
            tokenizer=fingerprint,
            digest=writer.digest,
            documents=train.documents,
            text_bytes=train.text_bytes,
            blocks=writer.blocks,
            tokens=writer.tokens,
            shards=writer.shards,
            held_out={split: _save_rows(task, source, split, folder) for split, source in others.items()},
            options={**asdict(task.args), **asdict(asked), **asdict(options)},
            version=__version__,
        )
        manifest.write(folder)
    _print_summary(manifest, options.output_dir, time.monotonic() - started)
    return manifest


def _tokenizer(task: LanguageModelTask, asked: TokenizerArguments, folder: Path) -> PreTrainedTokenizerBase:
    """The tokenizer given, or a new one, as it is loaded from `folder`, where it is saved."""
    if asked.tokenizer:
        tokenizer = pretrained_tokenizer(asked.tokenizer)
    else:
        tokenizer = train_tokenizer(_tokenizer_texts(task), asked)
    set_up_tokenizer(tokenizer, task).save_pretrained(folder)
    return set_up_tokenizer(pretrained_tokenizer(str(folder)), task)


def _tokenizer_texts(task: LanguageModelTask) -> Iterator[str]:
    """Text from the beginning of each file."""
    files = task.args.train_file
    parts = [task.read_rows([path]) for path in files] if files else [open_splits(task, task.args)["train"].rows()]
    for rows in parts:
        yield from first_texts(task.texts(rows), 1 / len(parts))


class _Counted:
    """Counts rows and documents of a split while they are read once."""

    def __init__(self, task: LanguageModelTask, name: str):
        self.task, self.name = task, name
        self.documents, self.text_bytes, self.empty = 0, 0, 0

    def without_empty(self, rows: Iterable[Row]) -> Iterator[Row]:
        for row in rows:
            if self.task.is_empty(row):
                self.empty += 1
            else:
                yield row

    def counted(self, rows: Iterable[Row]) -> Iterator[Row]:
        document = None
        for row in rows:
            self.documents += row["document"] != document
            self.text_bytes += len(row["text"].encode())
            document = row["document"]
            yield row

    def report(self) -> None:
        """Say how many rows were left out."""
        if self.empty:
            logger.warning("%d rows without text are left out", self.empty)


def _hold_out(task: LanguageModelTask, rows: Iterator[Row], source: Source, held: deque[Row]) -> Iterator[Row]:
    fraction, most = task.args.validation_fraction, MOST_HELD_OUT
    if fraction is not None:  # how many rows that is shows only when they have been counted
        most = rows_to_hold_out(sum(not task.is_empty(row) for row in source.rows()), fraction, "")
    return hold_out(rows, held, most, lambda number: rows_to_hold_out(number, fraction, "the last ones"))


def _with_words(blocks: Iterable[np.ndarray], special: Sequence[int], name: str) -> Iterator[np.ndarray]:
    """The blocks.

    Raises:
        InputError: when there is none with a token that is no special one.
    """
    has_words = False
    for block in blocks:
        has_words = has_words or not np.isin(block, special).all()
        yield block
    if not has_words:
        raise InputError(f"{name}: the tokenizer finds no word, so nothing can be predicted")


def _save_rows(task: LanguageModelTask, source: Source, split: str, folder: Path) -> int:
    """Save the rows of a split that is measured, as text; returns how many they are."""
    cache = folder / f"{split}.cache"
    rows = collect_rows(source.rows(), task, cache, source.name)
    rows.to_parquet(folder / held_out_file(split))
    shutil.rmtree(cache)
    return len(rows)


def _print_summary(manifest: Manifest, folder: str, seconds: float) -> None:
    print(
        f"{_counted(manifest.documents, 'document')}, {manifest.text_bytes / 1e6:,.1f} MB of text: "
        f"{_counted(manifest.tokens, 'token')} in {_counted(manifest.blocks, 'block')} and "
        f"{_counted(len(manifest.shards), 'shard')}, in {seconds:.1f} seconds "
        f"({manifest.text_bytes / 1e6 / seconds:.1f} MB/s): {folder}"
    )
    print(f"Train with it: roformer-lite train {manifest.task} --prepared {folder} --output_dir …")


def _counted(number: int, name: str) -> str:
    return f"{number:,} {name}{'s' * (number != 1)}"
