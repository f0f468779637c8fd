"""Tokenising rows in several processes, in their order."""

import os
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import get_context, parent_process
from multiprocessing.connection import wait
from pathlib import Path
from threading import Thread

import numpy as np
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from ...errors import InputError
from ..data_files import Row
from ..tasks.blocks import token_ids

_BATCH_CHARACTERS = 500_000
_TOKENIZER_CHARACTERS = 100_000_000  # from which a new tokenizer learns
_BATCHES_AHEAD = 3  # for each process, so that none waits while the order is kept

_tokenizer: PreTrainedTokenizerBase | None = None  # of a process that tokenises


def tokenised(
    rows: Iterable[Row], tokenizer: PreTrainedTokenizerBase, folder: Path | None = None, processes: int = 1
) -> Iterator[tuple[str, np.ndarray]]:
    """The name of the document and the token ids of each row, in order.

    Args:
        rows: With `text` and `document`.
        tokenizer: The tokenizer, with which a single process works itself.
        folder: Where other processes load it from.
        processes: How many tokenise.
    """
    if processes == 1:
        for names, texts in _batches(rows):
            yield from zip(names, token_ids(texts, tokenizer), strict=True)
        return
    with _pool(folder, processes) as pool:
        ahead: deque[tuple[list[str], Future]] = deque()
        for names, texts in _batches(rows):
            ahead.append((names, pool.submit(_tokenise, texts)))
            if len(ahead) >= _BATCHES_AHEAD * processes:
                yield from _pieces(*ahead.popleft())
        while ahead:
            yield from _pieces(*ahead.popleft())


def first_texts(texts: Iterable[str], share: float = 1.0) -> Iterator[str]:
    """The first 100 MB of texts, or a share of that: a tokenizer learns little more from the rest."""
    left = _TOKENIZER_CHARACTERS * share
    for text in texts:
        yield text
        left -= len(text)
        if left <= 0:
            return


@contextmanager
def _pool(folder: Path, processes: int) -> Iterator[ProcessPoolExecutor]:
    """Processes that are started anew, since a copy of one that has threads may wait for ever; what was not begun is
    dropped when the `with` is left by an error.

    Raises:
        InputError: when one of them is ended from outside, as the system does when memory is short.
    """
    pool = ProcessPoolExecutor(processes, get_context("spawn"), _load, (str(folder),))
    try:
        yield pool
    except BrokenProcessPool as error:
        raise InputError(
            f"one of the {processes} processes that tokenise has ended, perhaps for lack of memory; give a smaller "
            "--num_proc"
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)


def _batches(rows: Iterable[Row]) -> Iterator[tuple[list[str], list[str]]]:
    names, texts, size = [], [], 0
    for row in rows:
        names.append(row["document"])
        texts.append(row["text"])
        size += len(row["text"])
        if size >= _BATCH_CHARACTERS:
            yield names, texts
            names, texts, size = [], [], 0
    if texts:
        yield names, texts


def _load(folder: str) -> None:
    global _tokenizer
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # one thread in each process
    Thread(target=_end_with_parent, daemon=True).start()
    _tokenizer = AutoTokenizer.from_pretrained(folder)


def _end_with_parent() -> None:
    """End this process when its parent was killed, which the pool does not notice."""
    wait([parent_process().sentinel])
    os._exit(1)


def _tokenise(texts: list[str]) -> tuple[np.ndarray, np.ndarray]:
    """All token ids in one array, which is sent faster than many, and the lengths."""
    ids = token_ids(texts, _tokenizer)
    return np.concatenate(ids).astype(np.int32), np.array([len(own) for own in ids])


def _pieces(names: list[str], result: Future) -> Iterator[tuple[str, np.ndarray]]:
    ids, lengths = result.result()
    return zip(names, np.split(ids, lengths.cumsum()[:-1]), strict=True)
