"""The texts that a tokenizer is trained on: the lines of files, or what a caller has in memory."""

import gzip
import os
import zlib
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any


def not_empty(items: Iterable[str] | Iterable[list[str]]) -> Iterator[str]:
    """The texts, from a flat iterable or one of lists, without the blank ones; `ValueError` if none is left."""
    texts = filter(_is_text, chain.from_iterable(x if isinstance(x, list | tuple) else [x] for x in items))
    first = next(texts, None)
    if first is None:
        raise ValueError("nothing to train on: the source holds no text")
    return chain([first], texts)


def _is_text(item: Any) -> bool:
    if not isinstance(item, str):
        raise TypeError(f"the source of texts holds {item!r}, a {type(item).__name__} and not a str")
    return bool(item.strip())


def read_texts(source: str | os.PathLike | Iterable[str] | Iterable[os.PathLike]) -> Iterable[Any]:
    """The lines of a file or of a list of files; any other source is itself the texts.

    Raises:
        FileNotFoundError: when a path is no file.
        ValueError: while reading, for a line that is not UTF-8 and for a damaged gzip file.
    """
    if isinstance(source, str | os.PathLike):
        source = [Path(source)]
    if not (isinstance(source, list | tuple) and source and _is_path(source[0])):
        return source
    for path in source:
        if not os.path.isfile(path):
            raise FileNotFoundError(f"no such file to train on: {path}")
    return chain.from_iterable(_read_lines(Path(path)) for path in source)


def _is_path(item: Any) -> bool:
    return isinstance(item, os.PathLike) or os.path.isfile(item) or str(item).endswith((".txt", ".gz"))


def _read_lines(path: Path) -> Iterator[str]:
    number = 0
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                yield line.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}, line {number}, byte {error.start + 1}: not UTF-8 ({error.reason})") from error
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(f"{path}: not a whole gzip file ({error})") from error
