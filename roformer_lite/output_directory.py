"""Directories that are either complete or not there at all."""

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from glob import escape
from pathlib import Path

from .errors import InputError

RESULTS_FILE = "results.json"  # written last: a directory that has it holds a finished model
_FULL_BELOW = 2**16  # free bytes


def is_disk_full(error: BaseException | None, directory: Path) -> bool:
    """Whether `error`, or one of its causes, is that the disk of `directory` is full (or a quota, or `ulimit -f`).

    safetensors tells it only in the text of the error, and torch not at all; therefore the free space is checked too.
    """
    full = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    while error is not None:
        if getattr(error, "errno", None) in full or any(f"os error {code}" in str(error) for code in full):
            return True
        if isinstance(error, (RuntimeError, OSError)) and _free_bytes(directory) < _FULL_BELOW:
            return True
        error = error.__cause__
    return False


def _free_bytes(directory: Path) -> int:
    while not directory.exists():
        directory = directory.absolute().parent
    return shutil.disk_usage(directory).free


def require_space(directory: Path, size: int) -> None:
    """Raise the `OSError` of a full disk now, where the `size` bytes that will be written into `directory` have no
    room. For writers that end the whole process when they find out themselves, as torch's writer of archives does."""
    if not hasattr(os, "posix_fallocate"):
        return
    placeholder = directory / ".space"
    try:
        with placeholder.open("wb") as stream:
            os.posix_fallocate(stream.fileno(), 0, size)
    finally:
        placeholder.unlink(missing_ok=True)


def write_whole_file(path: Path, text: str) -> None:
    """Write a file that is there completely or, after a kill or on a full disk, as it was before.

    Raises:
        InputError: when it cannot be written.
    """
    unfinished = path.with_name(f"{path.name}.unfinished")
    try:
        with unfinished.open("w", encoding="utf-8") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())  # before the rename, or a crash of the machine could leave an empty file
        unfinished.replace(path)
    except OSError as error:
        with suppress(OSError):
            unfinished.unlink()
        raise InputError(
            f"{path} cannot be written: {error.strerror or error}; what was in it before is unchanged"
        ) from error


def check_output_dir(target: Path, overwrite: bool) -> None:
    """Refuse to write a model to `target` when something would be lost.

    Raises:
        InputError: when `target` is a file, a directory with anything but a finished model, or a finished model that
            `overwrite` does not allow to replace.
    """
    remove_left_overs(target)
    previous = _previous(target)
    if previous.exists() and not target.exists():  # killed between the two renames of `complete_directory`
        previous.rename(target)
    shutil.rmtree(previous, ignore_errors=True)
    if not target.exists() or (target.is_dir() and not any(target.iterdir())):
        return
    if not (target / RESULTS_FILE).is_file() or not (target / "config.json").is_file():
        raise InputError(f"--output_dir {target} holds other files, which would be lost; choose a new directory")
    if not overwrite:
        raise InputError(
            f"--output_dir {target} holds a finished model; replace it with --overwrite_output_dir, or choose a new "
            "directory"
        )


@contextmanager
def complete_directory(target: Path, saving: str = "the model") -> Iterator[Path]:
    """A new directory beside `target`, to be filled inside the `with`; it then replaces `target`.

    If anything fails, the new directory is removed, and `target` stays as it was.

    Args:
        target: The directory.
        saving: What is in it, for the message about a full disk.

    Raises:
        InputError: when the disk is full.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    remove_left_overs(target)
    unfinished = unfinished_path(target)
    try:
        unfinished.mkdir()
        yield unfinished
        previous = _previous(target)
        if target.exists():
            shutil.rmtree(previous, ignore_errors=True)
            target.rename(previous)
        try:
            unfinished.rename(target)
        except OSError:
            if previous.exists():
                previous.rename(target)
            raise
        shutil.rmtree(previous, ignore_errors=True)
    except BaseException as error:
        disk_full = is_disk_full(error, target.parent)  # checked before space is freed
        shutil.rmtree(unfinished, ignore_errors=True)
        if disk_full:
            name = getattr(error, "filename", None)
            raise InputError(
                f"{name or target}: no space left on the disk while saving {saving}; nothing was changed in "
                f"{target}. Free some space and give the same command again"
            ) from error
        raise


def unfinished_path(target: Path) -> Path:
    """Where this process prepares what will be `target`."""
    return target.with_name(f".{target.name}.unfinished-{os.getpid()}")


def remove_left_overs(target: Path) -> None:
    """Remove what processes that were killed had prepared beside `target`."""
    for path in target.parent.glob(f".{escape(target.name)}.unfinished-*"):
        number = path.name.rpartition("-")[2]
        # This process has nothing unfinished yet: in a container every command may get the same number.
        is_other = number.isdecimal() and int(number) != os.getpid() and is_running(int(number))
        if not is_other:
            shutil.rmtree(path, ignore_errors=True)


def is_running(process: int) -> bool:
    """Whether a process with this number runs on this machine."""
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:
        return True  # another user's
    return True


def _previous(target: Path) -> Path:
    return target.with_name(f".{target.name}.previous")
