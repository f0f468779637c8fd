"""The directory of an unfinished training: held by one process, and continued by the same run."""

import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout
from transformers import TrainingArguments

from ..errors import InputError
from ..output import RESULTS_FILE, check_output_dir, is_disk_full
from ..run import RUN_FILE, Run, read_run_file

LOCK_FILE = "lock"
STATE_FILE = "trainer_state.json"  # the last file that the Trainer writes into a checkpoint


class TrainingDirectory:
    """Where the checkpoints are while a model is trained. It stands next to the directory of the
    finished model, which must be complete or absent.

    Args:
        run: The run that trains.
    """

    def __init__(self, run: Run):
        self.run = run
        self.path = run.checkpoints

    @contextmanager
    def opened(self, args: TrainingArguments) -> Iterator[Path]:
        """Inside the `with`, the directory is ready for the run, new or continued, and no other
        command trains into it; an empty directory for the data of this process is yielded. A run
        that is refused before it has made any progress leaves nothing behind. A full disk is
        reported in a sentence.

        Args:
            args: The arguments of the training. All processes of a training enter; the one that
                saves prepares the directory.

        Raises:
            InputError: when another process holds the directory, it can't be made, a finished model
                is in the way, or an unfinished training whose options or files differ.
                `overwrite_output_dir` allows to discard models and trainings; a training without a
                checkpoint is discarded in any case.
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
            except Exception as error:
                if isinstance(error, InputError) or not is_disk_full(error, self.path):
                    raise
                raise InputError(
                    f"{self.path}: no space left on the disk for data and checkpoints; free some space and give the "
                    "same command again, training then continues from the last complete checkpoint"
                ) from error

    @contextmanager
    def _held(self) -> Iterator[None]:
        with self._locked():
            check_output_dir(self.run.output_dir, self.run.training.overwrite_output_dir)
            self._make_ready()
            try:
                yield
            except Exception:
                if not self.has_progress():
                    self.clear()
                raise

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Inside the `with`, no other process is in one for the same directory. The lock is the
        operating system's, and ends with the process, however that ends."""
        given = f"--output_dir {self.run.output_dir}"
        path = self.path / LOCK_FILE
        lock = FileLock(path, timeout=0)
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            lock.acquire()
        except (Timeout, FileNotFoundError) as error:
            # The directory is not found where the other process removes it at this moment.
            raise InputError(
                f"{given}: another process trains into it (it holds {path}); wait until it has ended, or choose "
                "another directory"
            ) from error
        except OSError as error:
            raise InputError(
                f"{given}: {self.path} is needed for the checkpoints, but cannot be written: "
                f"{error.strerror or error}"
            ) from error
        try:
            yield
        finally:
            # The file is removed while the lock is held. A process that has opened it already
            # finds that it has lost its name.
            path.unlink(missing_ok=True)
            lock.release()
            with suppress(OSError):
                self.path.rmdir()  # fails where there is something in it

    def _make_ready(self) -> None:
        """Leave in the directory what this run continues, or its `run.yaml` alone."""
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
                    f"{self.path} holds an unfinished training that differs ({difference}); give the same command to "
                    "continue it, --overwrite_output_dir to start again, or another --output_dir"
                )
        self.clear()
        self.run.save(self.path)

    def _difference(self) -> str:
        """How the run differs from the one that was begun here; empty where it is the same."""
        run_file = self.path / RUN_FILE
        try:
            before = read_run_file(run_file)
        except InputError as error:
            return str(error)
        found = [self.run.difference(before)]
        # Test data only measure. They may change until the first of several seeds is finished.
        data = self.run.data
        files = [*(data.train_file or ()), *(data.validation_file or ())]
        if any(self.path.glob(f"seed-*/{RESULTS_FILE}")):
            files += data.test_file or ()
            if _real_paths(data.test_file) != _real_paths(before.get("test_file")):
                found.append("--test_file is another one")
        began = run_file.stat().st_mtime
        found += [f"{path} has changed" for path in files if Path(path).stat().st_mtime > began]
        return ", ".join(filter(None, found))

    def has_progress(self) -> bool:
        """Whether something would be lost without the directory: a checkpoint, or the model of one
        of several seeds."""
        checkpoints = self.path.glob(f"**/checkpoint-*/{STATE_FILE}")
        seeds = self.path.glob(f"seed-*/{RESULTS_FILE}")
        return any(checkpoints) or any(seeds)

    def clear(self) -> None:
        """Remove everything in it except the lock, which its holder needs."""
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
    """The newest checkpoint in `folder` that was written completely, or None. A process that is
    killed leaves an incomplete one."""
    written = [path.parent for path in folder.glob(f"checkpoint-*[0-9]/{STATE_FILE}")]
    return max(map(str, written), key=step_of, default=None)


def step_of(checkpoint: str) -> int:
    """The number of the step after which a checkpoint was saved."""
    return int(checkpoint.rpartition("-")[2])
