"""Files and directories that are either complete or as they were before."""

import errno
import hashlib
import json
import os
import shutil
import stat
import sys
import uuid
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TextIO

from filelock import FileLock, Timeout

from .errors import InputError

RESULTS_FILE = "results.json"  # written last: a directory that has it holds a finished model
CHECKSUMS_FILE = "checksums.json"
_FULL_BELOW = 2**16  # free bytes
_STREAMS = ("/dev/stdout", "/dev/stderr", "/dev/fd/", "/proc/")  # open already, to whatever file


def check_place(option: str, path: str) -> str:
    """The directory `path`, with links followed, after the place has been tried: a finished
    directory is renamed into it at the end of hours, so that the directory around it must allow
    that.

    Args:
        option: The option that named it; empty where the path is an argument without one.
        path: The directory.

    Raises:
        InputError: naming option, path and reason.
    """
    given, target = f"--{option} {path}" if option else path, Path(os.path.realpath(path))
    if Path(path).name in ("", ".."):
        raise InputError(
            f"{given} names no new directory; give it a name, such as {Path(path) / 'model'}"
        )
    if os.path.islink(path) and not target.exists():
        raise InputError(f"{given} is a link to {os.readlink(path)}, which does not exist")
    # pathlib raises at names that are too long
    if os.path.exists(target) and not os.path.isdir(target):
        raise InputError(f"{given} is a file; give the name of a directory")
    if os.path.ismount(target):
        raise InputError(
            f"{given} is a mount point, which cannot be replaced; give a directory in it"
        )
    parent = next(parent for parent in target.parents if os.path.exists(parent))
    if not parent.is_dir():
        raise InputError(f"{given}: {parent} is not a directory")
    try:
        # The name is as long as any that will be needed.
        with TemporaryDirectory(prefix=f".{target.name}.unfinished-", dir=parent):
            pass
    except OSError as error:
        raise InputError(
            f"{given}: no directory can be made in {parent}: {error.strerror}"
        ) from error
    return str(target) if os.path.islink(path) else path


def new_directory(path: str) -> Path:
    """The directory `path`, which can be made, and is not there yet or empty.

    Raises:
        InputError: when something is there, or no directory can be made there.
    """
    out = Path(check_place("", path))
    if out.exists() and any(out.iterdir()):
        raise InputError(f"{out} exists already; choose a new directory")
    return out


def check_output_dir(
    target: Path,
    overwrite: bool,
    signs: tuple[str, ...] = (RESULTS_FILE, "config.json"),
    holds: str = "a finished model",
) -> None:
    """Refuse to write to the directory `target` when something would be lost.

    Args:
        target: The directory; `check_place` has accepted it.
        overwrite: Whether what an earlier command has written there may be replaced.
        signs: Files by which that is known.
        holds: What it is, for the message.

    Raises:
        InputError: when `target` is a directory of anything else, or one that `overwrite` does not
            allow to replace.
    """
    if not target.parent.is_dir():
        return
    with _locked(target):
        _clear(_unfinished(target))
        previous = _previous(target)
        # killed between the two renames of `complete_directory`
        if previous.exists() and not target.exists():
            previous.rename(target)
        _clear(previous)
    if not os.path.exists(target) or not any(target.iterdir()):
        return
    if not all((target / file).is_file() for file in signs):
        raise InputError(
            f"--output_dir {target} holds other files, which would be lost; choose a new directory"
        )
    if not overwrite:
        raise InputError(
            f"--output_dir {target} holds {holds}; choose a new directory, or replace it with --overwrite_output_dir"
        )


@contextmanager
def complete_directory(
    target: Path,
    saving: str = "the model",
    overwrite: bool = False,
    signs: tuple[str, ...] = (RESULTS_FILE, "config.json"),
) -> Iterator[Path]:
    """A new directory beside `target`, to be filled inside the `with`; it then takes the place of
    `target`.

    If anything fails, the new directory is removed, and `target` stays as it was. What others have
    written to `target` in the meantime is never replaced, and files that were added to what is
    replaced are kept beside it.

    Args:
        target: The directory.
        saving: What is in it, for messages.
        overwrite, signs: As for `check_output_dir`, whose question is asked again before `target`
            is replaced.

    Raises:
        InputError: when the disk is full, when another command is writing to `target`, and when
            something else has come there in the meantime; it says where the finished directory is.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    unfinished, previous = _unfinished(target), _previous(target)
    with _locked(target):
        _clear(unfinished)
        yield from _completed(target, unfinished, previous, saving, overwrite, signs)


def _completed(
    target: Path,
    unfinished: Path,
    previous: Path,
    saving: str,
    overwrite: bool,
    signs: tuple[str, ...],
) -> Iterator[Path]:
    try:
        unfinished.mkdir()
        yield unfinished
        is_ours = overwrite and all((target / file).is_file() for file in signs)
        if target.is_dir() and any(target.iterdir()) and not is_ours:
            kept = target.with_name(f"{target.name}.finished-{uuid.uuid4().hex[:8]}")
            unfinished.rename(kept)
            raise InputError(
                f"{target}: something else was written there in the meantime, and stays; {saving} is in {kept}"
            )
        if target.exists():
            _clear(previous)
            target.rename(previous)
        try:
            unfinished.rename(target)
        except OSError:
            if previous.exists():
                previous.rename(target)
            raise
        if is_ours:
            _keep_added_files(previous, target, signs)
        _clear(previous)
    except BaseException as error:
        disk_full = is_disk_full(error, target.parent)  # checked before space is freed
        shutil.rmtree(unfinished, ignore_errors=True)
        if disk_full:
            name = getattr(error, "filename", None) or target
            raise InputError(
                f"{name}: no space left on the disk while saving {saving}; nothing was changed in {target}. Free some "
                "space and give the same command again"
            ) from error
        raise


@contextmanager
def complete_file(path: str | Path, option: str = "") -> Iterator[TextIO]:
    """A UTF-8 file to write inside the `with`; at the end it replaces `path`, which stays as it was
    if anything fails.

    It is written beside `path`, which may be read in the meantime. A link is followed, an existing
    file keeps its permissions, and what is no regular file, such as /dev/stdout or a pipe, is
    written directly.

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
    written = target if direct else _unfinished(target)
    try:
        stream = written.open("w", encoding="utf-8")
    except OSError as error:
        raise InputError(f"{name} cannot be written: {error.strerror}") from error
    try:
        with stream:
            if os.path.exists(target) and not direct:
                written.chmod(stat.S_IMODE(target.stat().st_mode))
            yield stream
            if not direct:
                stream.flush()
                # before the rename, or a crash of the machine could leave an empty file
                os.fsync(stream.fileno())
        if not direct:
            written.replace(target)
    except BaseException as error:
        disk_full = is_disk_full(error, target.parent)
        if not direct:
            written.unlink(missing_ok=True)
        # The error says so already, of another file.
        if disk_full and not isinstance(error, InputError):
            unchanged = "" if direct else "; what was there before is unchanged"
            raise InputError(f"{name}: no space left on the disk{unchanged}") from error
        raise


def write_whole_file(path: Path, text: str) -> None:
    """Write a file that is there completely or, after a kill or on a full disk, as it was before.

    Raises:
        InputError: when it cannot be written.
    """
    with complete_file(path) as stream:
        stream.write(text)


def note_files(folder: Path) -> None:
    """Note what all files in `folder` hold; a bit of a weight or a token that changes is a number
    as good as any."""
    files = sorted(
        path for path in folder.rglob("*") if path.is_file() and path.name != CHECKSUMS_FILE
    )
    checksums = {path.relative_to(folder).as_posix(): _checksum(path) for path in files}
    write_whole_file(folder / CHECKSUMS_FILE, json.dumps(checksums, indent=1))


def check_files(folder: Path, *names: str) -> None:
    """Refuse, with an `InputError` that names it, a file in `folder` that is no longer as
    `note_files` has noted it; of all that are noted, or of `names` alone. Where nothing is noted
    all are right."""
    if not os.path.lexists(folder / CHECKSUMS_FILE):
        return
    try:
        noted = json.loads((folder / CHECKSUMS_FILE).read_text("utf-8"))
        changed = [name for name in names or noted if _checksum(folder / name) != noted[name]]
    except OSError as error:
        changed = [f"{os.path.relpath(error.filename, folder)} ({error.strerror})"]
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        changed = [CHECKSUMS_FILE]
    if changed:
        raise InputError(
            f"{folder / changed[0]} is not as it was written; remove {folder}, and it is made again"
        )


def _checksum(path: Path) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as stream:
        while part := stream.read(2**20):
            digest.update(part)
    return digest.hexdigest()


def is_disk_full(error: BaseException | None, directory: Path) -> bool:
    """Whether `error`, or one of its causes, is that the disk of `directory` is full (or a quota,
    or `ulimit -f`).

    Some report it only in the text of the error, and torch not at all; so the free space is
    checked, too.
    """
    full = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    while not directory.exists():
        directory = directory.absolute().parent
    while error is not None:
        told = str(error)
        if getattr(error, "errno", None) in full or any(
            f"os error {code})" in told or f"[Errno {code}]" in told for code in full
        ):
            return True
        if (
            isinstance(error, (RuntimeError, OSError))
            and shutil.disk_usage(directory).free < _FULL_BELOW
        ):
            return True
        error = error.__cause__
    return False


def require_space(directory: Path, size: int) -> None:
    """Raise the `OSError` of a full disk now, where the `size` bytes that will be written into
    `directory` have no room. For writers that end the whole process when they find out themselves,
    as torch's writer of archives does."""
    if not hasattr(os, "posix_fallocate"):
        return
    placeholder = directory / ".space"
    try:
        with placeholder.open("wb") as stream:
            os.posix_fallocate(stream.fileno(), 0, size)
    finally:
        placeholder.unlink(missing_ok=True)


@contextmanager
def exclusive(path: Path, taken: str, unwritable: str) -> Iterator[None]:
    """Inside the `with`, no other process is in one for the same file `path`. The lock is the
    operating system's, and ends with the process, however that ends.

    Args:
        path: The file of the lock, whose directory is made, and which is removed at the end.
        taken: The message where another process holds it.
        unwritable: The message where it can't be made, before the reason.

    Raises:
        InputError: with one of the two.
    """
    lock = FileLock(path, timeout=0)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    # not found: the other process removes the directory just now
    except (Timeout, FileNotFoundError) as error:
        raise InputError(taken) from error
    except OSError as error:
        raise InputError(f"{unwritable}: {error.strerror or error}") from error
    try:
        yield
    finally:
        # while it is held: who has opened it already sees that it lost its name
        path.unlink(missing_ok=True)
        lock.release()


def _locked(target: Path) -> AbstractContextManager[None]:
    """Inside the `with`, other commands that write to `target` are refused."""
    taken = f"{target}: another command is writing there; wait for it, or choose another"
    return exclusive(
        target.with_name(f".{target.name}.lock"),
        taken,
        f"{target}: {target.parent} cannot be written",
    )


def _keep_added_files(previous: Path, target: Path, signs: tuple[str, ...]) -> None:
    """Move what a person has added to the replaced directory `previous` beside `target`: what the
    new directory does not have, and what came later than the last file of the command that had
    written the old one."""
    written = max((previous / file).stat().st_ctime for file in signs)
    added = [
        path
        for path in previous.iterdir()
        if path.stat().st_ctime > written and not (target / path.name).exists()
    ]
    if added:
        kept = target.with_name(f"{target.name}.added-{uuid.uuid4().hex[:8]}")
        kept.mkdir()
        for path in added:
            path.rename(kept / path.name)
        print(
            f"{kept}: {len(added)} files that were added to the replaced {target}", file=sys.stderr
        )


def _clear(path: Path) -> None:
    """Remove what a process that was killed has left."""
    if os.path.isdir(path):  # False, too, where the name is too long
        shutil.rmtree(path, ignore_errors=True)


def _unfinished(target: Path) -> Path:
    return target.with_name(f".{target.name}.unfinished")


def _previous(target: Path) -> Path:
    return target.with_name(f".{target.name}.previous")
