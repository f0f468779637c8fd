"""One training at a time in an output directory."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from ..errors import InputError

LOCK_FILE = "lock"


@contextmanager
def training_lock(directory: Path, output_dir: Path) -> Iterator[None]:
    """Hold the directory of a training's checkpoints for this process, inside the `with`.

    The lock is the operating system's, on a file in the directory. It ends with the process, however that ends.

    Args:
        directory: Made if it is not there, and removed at the end if nothing else is in it.
        output_dir: Where the model will be saved, for messages.

    Raises:
        InputError: when another process holds the directory, or it cannot be made.
    """
    lock = FileLock(directory / LOCK_FILE, timeout=0)
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _cannot_be_written(directory, output_dir, error) from error
    try:
        lock.acquire()
    except (Timeout, FileNotFoundError) as error:  # not found: the other process removes its directory just now
        raise InputError(
            f"--output_dir {output_dir}: another process trains into it (it holds {directory / LOCK_FILE}); wait "
            "until it has ended, or choose another directory"
        ) from error
    except OSError as error:
        raise _cannot_be_written(directory, output_dir, error) from error
    try:
        yield
    finally:
        # Removed while it is held: a process that has opened the file already sees that it lost its name.
        (directory / LOCK_FILE).unlink(missing_ok=True)
        lock.release()
        with suppress(OSError):
            directory.rmdir()  # unless there is something in it


def _cannot_be_written(directory: Path, output_dir: Path, error: OSError) -> InputError:
    return InputError(
        f"--output_dir {output_dir}: {directory} is needed for the checkpoints, but cannot be written: "
        f"{error.strerror or error}"
    )
