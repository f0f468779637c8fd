"""The directory of an unfinished training. One process locks it, and the training can be
continued."""

import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import fields
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from transformers import TrainingArguments

from ..errors import InputError
from ..options.common import PublishingOptions
from ..options.run import HUB_NAMES, Run
from ..output import RESULTS_FILE, check_output_dir, complete_file
from ..saved.saved_model import naming, read_object

LOCK_FILE = "lock"
# The options and the files of the training, which may not change before it continues.
DESCRIPTION_FILE = "description.json"
# The value of an option that has its default, in messages.
NOT_GIVEN = "not given"
# This is the last file that the Trainer writes into a checkpoint.
STATE_FILE = "trainer_state.json"
# Options that the description leaves out. (Test files are described by their content.)
NOT_COMPARED = {"test_file", "output_dir", "keep_checkpoints"}
# The test files and the options of the card, which do not affect the training. They may change, but
# with several seeds only until the first of them is finished.
OF_THE_END = {"--test_file", *(f"--{option.name}" for option in fields(PublishingOptions))}


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
                a finished model or an unfinished training with other options or files.
                `overwrite_output_dir` allows discarding models and trainings; a training without a
                checkpoint is always discarded.
        """
        data = self.path / f"data-{args.process_index}"
        with ExitStack() as held:
            with args.main_process_first(local=False):
                if args.should_save:
                    held.enter_context(self.held())
                elif not self.path.exists():
                    raise InputError(
                        f"--output_dir: {self.path} must be on a disk that all machines share"
                    )
            shutil.rmtree(data, ignore_errors=True)
            held.callback(shutil.rmtree, data, ignore_errors=True)
            yield data

    @contextmanager
    def held(self) -> Iterator[None]:
        """Context of the one process that prepares and locks the directory; see `opened`."""
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
                "wait until that process ends, or choose another directory"
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
        """Keep an unfinished training if this run continues it; otherwise leave only a description
        of this run."""
        path = self.path / DESCRIPTION_FILE
        names = {found.name for found in self.path.iterdir()}
        unfinished = {found.name for found in self.path.glob(f".{DESCRIPTION_FILE}.unfinished*")}
        if not path.is_file() and names - unfinished - {LOCK_FILE}:
            raise InputError(f"{self.path} is needed for the checkpoints, but holds other files")
        continues = path.is_file() and self.has_progress()
        now = self._description()
        difference = self._difference(read_object(path), now) if continues else ""
        if difference and not self.run.training.overwrite_output_dir:
            raise InputError(
                f"{self.path} holds an unfinished training that differs ({difference}); "
                "repeat the same command to continue it, pass --overwrite_output_dir true to "
                "start again, or choose another --output_dir"
            )
        if difference or not continues:
            self.clear()
        with complete_file(path) as stream:
            json.dump(now, stream)

    def _description(self) -> dict[str, Any]:
        """The options of this run, and a hash of each file that the training and the test read, by
        its path from this directory."""
        data = self.run.data
        options = self.run.content()
        models = [Path(options[name]) for name in HUB_NAMES if name in options]
        arguments = options.pop("training_arguments", {})
        files = [
            *(data.train_file or ()),
            *(data.validation_file or ()),
            *(path for model in models for path in model.rglob("*") if path.is_file()),
        ]
        found = {f"--{name}": options[name] for name in options if name not in NOT_COMPARED}
        found |= {f"--training_arguments {name}": value for name, value in arguments.items()}
        found |= dict(map(self._stamp, files))
        for name, stamp in map(self._stamp, data.test_file or ()):
            found[f"--test_file {name}"] = stamp
        return found

    def _stamp(self, path: str | Path) -> tuple[str, str]:
        """The name of a file, and a hash of its content, which a copy has, too."""
        name = os.path.relpath(os.path.realpath(path), os.path.realpath(self.path))
        with naming(path), open(path, "rb") as file:
            return name, f"SHA-256 {hashlib.file_digest(file, 'sha256').hexdigest()}"

    def _difference(self, before: dict[str, Any], now: dict[str, Any]) -> str:
        """The options and files of this run that differ from those of the one that was begun here;
        empty if there are none."""
        has_ended = any(self.path.glob(f"seed-*/{RESULTS_FILE}"))
        return ", ".join(
            f"{name} was {before.get(name, NOT_GIVEN)} and is {now.get(name, NOT_GIVEN)}"
            for name in {**before, **now}
            if before.get(name) != now.get(name)
            and (has_ended or name.split()[0] not in OF_THE_END)
        )

    def has_progress(self) -> bool:
        """Whether the directory contains a checkpoint, or the model of one of several seeds."""
        return any(self._last_files())

    def _last_files(self) -> Iterator[Path]:
        """For each checkpoint, and for the model of each seed, the file that is written last."""
        yield from self.path.glob(f"**/checkpoint-*/{STATE_FILE}")
        yield from self.path.glob(f"seed-*/{RESULTS_FILE}")

    def clear(self) -> None:
        """Remove everything in the directory except the lock, which its holder needs."""
        if not self.path.is_dir():
            return
        # If the process is killed in between, nothing incomplete must look complete, and the
        # description must still say to which training the remaining files belong.
        for path in list(self._last_files()):
            path.unlink()
        for path in sorted(self.path.iterdir(), key=lambda path: path.name == DESCRIPTION_FILE):
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            elif path.name != LOCK_FILE:
                path.unlink(missing_ok=True)


def last_checkpoint(folder: Path) -> str | None:
    """The newest complete checkpoint in `folder`, or None. A process that is killed may leave an
    incomplete one."""
    states = folder.glob(f"checkpoint-*[0-9]/{STATE_FILE}")
    written = [str(path.parent) for path in states if path.read_text("utf-8").endswith("}\n")]
    return max(written, key=step_of, default=None)


def step_of(checkpoint: str) -> int:
    """The number of the step after which a checkpoint was saved."""
    return int(checkpoint.rpartition("-")[2])
