"""Text files that are either complete or as they were before."""

import os
import platform
import re
import stat
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TextIO

from .errors import InputError
from .output_directory import is_disk_full, is_running

_STREAMS = ("/dev/stdout", "/dev/stderr", "/dev/fd/", "/proc/")  # open already, to whatever file


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
    if os.path.isdir(path):
        raise InputError(f"{name} is a directory; give the name of a file")
    direct = os.path.exists(path) and (not os.path.isfile(path) or str(path).startswith(_STREAMS))
    target = Path(path) if direct else Path(os.path.realpath(path))
    if os.path.exists(target) and not os.access(target, os.W_OK):
        raise InputError(f"{name}: the file is write-protected")
    written = target if direct else target.with_name(_unfinished_name(target, os.getpid()))
    _remove_left_overs(target)
    stream = _opened(written, name)
    try:
        with stream:
            if os.path.exists(target) and not direct:
                written.chmod(stat.S_IMODE(target.stat().st_mode))
            yield stream
        if not direct:
            written.replace(target)
    except BaseException as error:
        disk_full = is_disk_full(error, target.parent)  # checked before space is freed
        if not direct:
            written.unlink(missing_ok=True)
        if disk_full and not isinstance(error, InputError):  # which says so already, of another file
            unchanged = "" if direct else "; what was there before is unchanged"
            raise InputError(f"{name}: no space left on the disk{unchanged}") from error
        raise


def write_texts(texts: dict[Path, str]) -> None:
    """Write several files, all of them or none; the first replaces what was there last.

    Raises:
        InputError: as `complete_file`.
    """
    with ExitStack() as stack:
        for path, text in texts.items():
            stream = stack.enter_context(complete_file(path))
            stream.write(text)
            stream.flush()  # so that a full disk shows before any file is replaced


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
        if found and not is_running(int(found[1])):
            path.unlink(missing_ok=True)
