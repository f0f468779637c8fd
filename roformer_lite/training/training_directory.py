"""The directory of an unfinished training. One process locks it, and the training can be
continued."""

import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout
from transformers import TrainingArguments

from ..errors import InputError
from ..options.run import RUN_FILE, Run, read_run_file
from ..output import RESULTS_FILE, check_output_dir, is_disk_full

LOCK_FILE = "lock"
# This is the last file that the Trainer writes into a checkpoint.
STATE_FILE = "trainer_state.json"


class TrainingDirectory:
    """The directory of the checkpoints while a model is trained. It is next to the directory of the
    finished model, which is either complete or absent.

    Args:
        run: The training run.
    """

    def __init__(self, run: Run):
        self.run = run
        self.path = run.checkpoints

    @contextmanager
    def opened(self, args: TrainingArguments) -> Iterator[Path]:
        """Context in which the directory is prepared for a new or continued run and locked against
        other commands. If the run fails before it has made any progress, nothing is left behind.

        Args:
            args: The arguments of the training. All of its processes enter the context; the one
                that saves prepares the directory.

        Yields:
            An empty directory for the data of this process.

        Raises:
            InputError: if another process holds the directory, if it can't be created, if there is
                a finished model or an unfinished training with other options or files, or if the
                disk becomes full. `overwrite_output_dir` allows discarding models and trainings; a
                training without a checkpoint is always discarded.
        """
        data = self.path / f"data-{args.process_index}"
        with ExitStack() as held:
            with args.main_process_first(local=False, desc="preparing the output directory"):
                if args.should_save:
                    held.enter_context(self._held())
                elif not self.path.exists():
                    raise InputError(
                        f"--output_dir: {self.path} must be on a disk that all machines share"
                    )
            shutil.rmtree(data, ignore_errors=True)
            held.callback(shutil.rmtree, data, ignore_errors=True)
            try:
                yield data
            # Libraries have various errors for a full disk. All other errors pass unchanged.
            except Exception as error:
                if isinstance(error, InputError) or not is_disk_full(error, self.path):
                    raise
                raise InputError(
                    f"{self.path}: no space left on the disk for data and checkpoints; free some "
                    "space and run the same command again, which continues from the last complete "
                    "checkpoint"
                ) from error

    @contextmanager
    def _held(self) -> Iterator[None]:
        with self._locked():
            check_output_dir(self.run.output_dir, self.run.training.overwrite_output_dir)
            self._make_ready()
            try:
                yield
            # Whatever the error is, it passes on after the directory is cleared.
            except Exception:
                if not self.has_progress():
                    self.clear()
                raise

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Context that only one process can enter for the same directory. The operating system
        releases the lock when the process ends, even if it is killed."""
        given = f"--output_dir {self.run.output_dir}"
        path = self.path / LOCK_FILE
        lock = FileLock(path, timeout=0)
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            lock.acquire()
        except (Timeout, FileNotFoundError) as error:
            # The directory is not found if the other process has just removed it.
            raise InputError(
                f"{given}: another process is training in this directory (it holds {path}); "
                "wait until that process has ended, or choose another directory"
            ) from error
        except OSError as error:
            raise InputError(
                f"{given}: {self.path} is needed for the checkpoints, but cannot be written: "
                f"{error.strerror or error}"
            ) from error
        try:
            yield
        finally:
            # The file is removed while the lock is held. A process that has already opened it then
            # notices that the file no longer has a name.
            path.unlink(missing_ok=True)
            lock.release()
            with suppress(OSError):
                # This fails if the directory is not empty.
                self.path.rmdir()

    def _make_ready(self) -> None:
        """Keep an unfinished training if this run continues it; otherwise leave only `run.yaml`."""
        has_run = (self.path / RUN_FILE).is_file()
        names = {path.name for path in self.path.iterdir()}
        if not has_run and names - {LOCK_FILE, f".{RUN_FILE}.unfinished"}:
            raise InputError(f"{self.path} is needed for the checkpoints, but holds other files")
        if has_run and self.has_progress():
            difference = self._difference()
            if not difference:
                return
            if not self.run.training.overwrite_output_dir:
                raise InputError(
                    f"{self.path} holds an unfinished training that differs ({difference}); "
                    "repeat the same command to continue it, pass --overwrite_output_dir true to "
                    "start again, or choose another --output_dir"
                )
        self.clear()
        self.run.save(self.path)

    def _difference(self) -> str:
        """The difference between this run and the one that was begun here; empty if there is
        none."""
        run_file = self.path / RUN_FILE
        try:
            before = read_run_file(run_file)
        except InputError as error:
            return str(error)
        found = [self.run.difference(before)]
        # Test data do not affect the training, so they may change until the first of several seeds
        # is finished.
        data = self.run.data
        files = [*(data.train_file or ()), *(data.validation_file or ())]
        if any(self.path.glob(f"seed-*/{RESULTS_FILE}")):
            files += data.test_file or ()
            if _real_paths(data.test_file) != _real_paths(before.get("test_file")):
                found.append("--test_file names other files")
        began = run_file.stat().st_mtime
        found += [f"{path} has changed" for path in files if Path(path).stat().st_mtime > began]
        return ", ".join(filter(None, found))

    def has_progress(self) -> bool:
        """Whether the directory contains a checkpoint, or the model of one of several seeds."""
        checkpoints = self.path.glob(f"**/checkpoint-*/{STATE_FILE}")
        seeds = self.path.glob(f"seed-*/{RESULTS_FILE}")
        return any(checkpoints) or any(seeds)

    def clear(self) -> None:
        """Remove everything in the directory except the lock, which its holder needs."""
        if not self.path.is_dir():
            return
        for path in self.path.iterdir():
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            elif path.name != LOCK_FILE:
                path.unlink(missing_ok=True)


def _real_paths(paths: list[str] | None) -> list[Path]:
    return [Path(path).resolve() for path in paths or []]


def last_checkpoint(folder: Path) -> str | None:
    """The newest complete checkpoint in `folder`, or None. A process that is killed may leave an
    incomplete one."""
    written = [path.parent for path in folder.glob(f"checkpoint-*[0-9]/{STATE_FILE}")]
    return max(map(str, written), key=step_of, default=None)


def step_of(checkpoint: str) -> int:
    """The number of the step after which a checkpoint was saved."""
    return int(checkpoint.rpartition("-")[2])
