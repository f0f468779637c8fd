"""Text files that are either complete or as they were before."""

import os
import platform
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from .errors import InputError
from .output_directory import is_disk_full


@contextmanager
def complete_file(path: str | Path, option: str = "") -> Iterator[TextIO]:
    """A UTF-8 file to write inside the `with`; at the end it replaces `path`, which stays as it was if anything fails.

    It is written beside `path`, which may be read in the meantime. A link is followed, an existing file keeps its
    permissions, and what is no regular file, such as /dev/stdout or a pipe, is written directly.

    Args:
        path: The file.
        option: The option that named it, for messages.

    Raises:
        InputError: at once when nothing can be written there, and at the end when the disk is full.
    """
    name = f"{option} {path}".strip()
    target = Path(os.path.realpath(path))
    if target.is_dir():
        raise InputError(f"{name} is a directory; give the name of a file")
    if target.exists() and not target.is_file():
        with _opened(target, name) as stream:
            yield stream
        return
    if target.exists() and not os.access(target, os.W_OK):
        raise InputError(f"{name}: the file is write-protected")
    unfinished = target.with_name(_unfinished_name(target, os.getpid()))
    _remove_left_overs(target)
    stream = _opened(unfinished, name)
    try:
        with stream:
            if target.exists():
                unfinished.chmod(stat.S_IMODE(target.stat().st_mode))
            yield stream
        unfinished.replace(target)
    except BaseException as error:
        disk_full = is_disk_full(error, target.parent)  # checked before space is freed
        unfinished.unlink(missing_ok=True)
        if disk_full:
            raise InputError(f"{name}: no space left on the disk; what was there before is unchanged") from error
        raise


def write_text(path: Path, text: str) -> None:
    """Write a whole file at once, as `complete_file` does."""
    with complete_file(path) as stream:
        stream.write(text)


def _opened(path: Path, name: str) -> TextIO:
    try:
        return path.open("w", encoding="utf-8")
    except OSError as error:
        raise InputError(f"{name} cannot be written: {error.strerror}") from error


def _unfinished_name(target: Path, process: int) -> str:
    """Host and process make the name unique, also where several machines share a disk."""
    return f".{target.name}.unfinished-{platform.node()}-{process}"


def _remove_left_overs(target: Path) -> None:
    """Remove what processes of this machine left that were killed while they wrote `target`."""
    pattern = re.compile(re.escape(_unfinished_name(target, 0)[:-1]) + r"(\d+)")
    for path in target.parent.iterdir() if target.parent.is_dir() else ():
        found = pattern.fullmatch(path.name)
        if found and not _is_running(int(found[1])):
            path.unlink(missing_ok=True)


def _is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:  # of another user
        return True
    return True
