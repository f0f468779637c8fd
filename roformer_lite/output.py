"""Files and directories that are either complete or as they were before."""

import errno
import json
import os
import re
import shutil
import uuid
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TextIO

from .errors import InputError

# This file is written last, so that a directory with it contains a finished model.
RESULTS_FILE = "results.json"


def check_place(option: str, path: str) -> str:
    """Check that a directory can be created at `path`. It is only created at the end, which may be
    hours later.

    Args:
        option: The option that was given; empty for an argument without an option.
        path: Its value.

    Returns:
        The path, with links followed and `~` replaced.

    Raises:
        InputError: with the option, the path and the reason.
    """
    given = f"--{option} {path}" if option else path
    # Some libraries replace `~` and others do not.
    path = os.path.expanduser(path)
    target = Path(os.path.realpath(path))
    has_name = Path(path).name not in ("", "..") and not path.startswith("~")
    # Unlike pathlib, os.path does not raise an error for names that are too long.
    is_other = os.path.exists(target) and not os.path.isdir(target)
    if not has_name or is_other or os.path.ismount(target):
        raise InputError(
            f"{given} is a file, a mount point or no name; pass the name of a new directory"
        )
    parent = next(parent for parent in target.parents if os.path.exists(parent))
    try:
        # No name that will be needed is longer than this one.
        with TemporaryDirectory(prefix=f".{target.name}.unfinished-", dir=parent):
            pass
    except OSError as error:
        raise InputError(
            f"{given}: no directory can be made in {parent}: {error.strerror}"
        ) from error
    # `Path` removes a slash at the end, with which the path would name the target of the link.
    return str(target) if os.path.islink(Path(path)) else path


def new_directory(path: str) -> Path:
    """The directory `path`, which does not exist yet or is empty.

    Raises:
        InputError: if it contains something, or if no directory can be made there.
    """
    out = Path(check_place("", path))
    if out.exists() and any(out.iterdir()):
        raise InputError(f"{out} exists already; choose a new directory")
    return out


def check_output_dir(target: Path, overwrite: bool) -> None:
    """Raise an error if writing a model to the directory `target` would lose something.

    Args:
        target: The directory, which `check_place` has accepted.
        overwrite: Whether a finished model may be replaced.

    Raises:
        InputError: if `target` contains other files, or a model that may not be replaced.
    """
    if not os.path.exists(target) or not any(target.iterdir()):
        return
    if not _has_model(target):
        raise InputError(
            f"--output_dir {target} holds other files, which would be lost; choose a new directory"
        )
    if not overwrite:
        raise InputError(
            f"--output_dir {target} holds a finished model; choose a new directory, or replace it "
            "with --overwrite_output_dir"
        )


def _has_model(directory: Path) -> bool:
    return all((directory / file).is_file() for file in (RESULTS_FILE, "config.json"))


def complete_directory(target: Path, overwrite: bool = False) -> AbstractContextManager[Path]:
    """A new directory to be filled inside the `with`. At the end it takes the place of `target`,
    which stays as it was if anything fails.

    Args:
        target, overwrite: As for `check_output_dir`.

    Raises:
        InputError: if `target` cannot be replaced, for example because something else was written
            there in the meantime.
    """
    # This imports torch, which `--help` does without.
    from hf_roformer_lite.conversion.checkpoint_files import whole_directory

    return whole_directory(
        target,
        may_replace=_has_model if overwrite else None,
        kind=InputError,
    )


@contextmanager
def complete_file(path: str | Path, option: str = "") -> Iterator[TextIO]:
    """Open a UTF-8 file to be written inside the `with`; at the end it replaces `path`, which stays
    as it was if anything fails.

    It is written next to `path`, which may be read in the meantime. A link is followed, and an
    existing file keeps its permissions.

    Args:
        path: The file.
        option: The option that was given, for messages.

    Raises:
        InputError: at once if nothing can be written there.
    """
    name = f"{option} {path}".strip()
    target = Path(os.path.realpath(path))
    if os.path.exists(path) and not os.path.isfile(path):
        raise InputError(f"{name} is a directory or a device; pass the name of a file")
    if os.path.exists(target) and not os.access(target, os.W_OK):
        raise InputError(f"{name}: the file is write-protected")
    # Another command may write the same file at the same time.
    written = target.with_name(f".{target.name}.unfinished-{uuid.uuid4().hex[:8]}")
    try:
        file = written.open("w", encoding="utf-8")
    except OSError as error:
        raise InputError(f"{name} cannot be written: {error.strerror}") from error
    try:
        with file:
            if target.exists():
                shutil.copymode(target, written)
            yield file
            # Without this, a crash of the machine after the rename could leave an empty file.
            file.flush()
            os.fsync(file.fileno())
        written.replace(target)
    finally:
        written.unlink(missing_ok=True)


def write_json(path: Path, content: Any) -> None:
    """Write a JSON file. Numbers that are not finite raise a `ValueError`."""
    text = json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False)
    path.write_text(text + "\n", "utf-8")


def is_disk_full(error: BaseException | None) -> bool:
    """Whether `error` or one of its causes means that a disk is full, or that a quota or `ulimit
    -f` is exceeded.

    Libraries in Rust, such as safetensors, have errors without `errno`, whose messages end with its
    number. Those of `torch.save` speak of streams and of positions in a file.
    """
    full = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    numbers = "|".join(map(str, full))
    in_libraries = re.compile(rf"\(os error ({numbers})\)$|unexpected pos|iostream error")
    while error is not None:
        if getattr(error, "errno", None) in full or in_libraries.search(str(error)):
            return True
        error = error.__cause__
    return False
