"""Whether a directory can be written where the user wants it, found out before the work that is to fill it."""

import os
from pathlib import Path
from tempfile import TemporaryDirectory

from .errors import InputError


def check_place(option: str, path: str) -> str:
    """The directory `path`, with a link to a directory followed, after the place has been tried.

    A finished directory is renamed into its place. This therefore refuses what no directory can replace, and makes a
    directory beside it with a name as long as any that will be needed, to see that the system allows it.

    Args:
        option: The option that named it; empty where the path is an argument without one.
        path: The directory.

    Raises:
        InputError: naming option, path and reason.
    """
    given = f"--{option} {path}" if option else path
    target = Path(path)
    if os.path.islink(target):
        if not os.path.exists(target):
            raise InputError(f"{given} is a link to {os.readlink(target)}, which does not exist")
        target = Path(os.path.realpath(target))
    if target.name in ("", ".", ".."):
        raise InputError(f"{given} names no new directory; give it a name, such as {target / 'model'}")
    if os.path.ismount(target):
        raise InputError(f"{given} is a mount point, which cannot be replaced; give a directory in it")
    parent = target.absolute().parent
    while not os.path.lexists(parent):
        parent = parent.parent
    if not parent.is_dir():
        raise InputError(f"{given}: {parent} is not a directory")
    try:
        with TemporaryDirectory(prefix=f".{target.name}.unfinished-", dir=parent):
            pass
    except OSError as error:
        raise InputError(f"{given}: no directory can be made in {parent}: {error.strerror}") from error
    return str(target)


def new_directory(out: str) -> Path:
    """`out` as a path; an `InputError` when it cannot be made, or exists and is anything but an empty directory."""
    place = Path(check_place("", out))
    if place.exists() and (not place.is_dir() or any(place.iterdir())):
        raise InputError(f"{place} exists already; choose a new directory")
    return place
