"""The directory of an unfinished training: held by one process, and continued by the same run on the same data."""

import hashlib
import json
import shutil
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from datasets import Dataset

from ..errors import InputError
from ..output import RESULTS_FILE, check_output_dir, exclusive, write_whole_file
from .run import RUN_FILE, Run, read_run_file

LOCK_FILE, STATE_FILE = "lock", "state.json"
AVERAGED_WEIGHTS = "averaged_weights.safetensors"
_OURS = (LOCK_FILE, *(f"{name}{end}" for name in (RUN_FILE, STATE_FILE) for end in ("", ".unfinished")))


class TrainingDirectory:
    """Where the checkpoints are while a model is being trained: beside it, as a finished model must be complete or not
    there at all.

    Args:
        output_dir: Where the model will be.
    """

    def __init__(self, output_dir: Path):
        self.output_dir = output_dir
        self.path = output_dir.with_name(f"{output_dir.name}.training")
        self.unmeasured = self.path / "trained-model"  # of a training whose measurement failed

    @classmethod
    def at(cls, path: Path) -> "TrainingDirectory":
        """The one whose checkpoints are in `path`."""
        return cls(path.with_name(path.name.removesuffix(".training")))

    @contextmanager
    def opened(self, run: Run, devices: int) -> Iterator[None]:
        """Inside the `with`, the directory is ready for `run`, new or continued, and no other process trains into it.
        A run that is refused before it has made any progress leaves nothing behind.

        Args:
            run: Compared with the one that an earlier command has left there. Other options are refused unless it
                says `overwrite_output_dir`, or there is no checkpoint, which could be lost.
            devices: How many share the rows of a step.

        Raises:
            InputError: when another process holds the directory, it can't be made, an unfinished training with other
                options is there, naming them, or other files are.
        """
        with self._held():
            self._open(run, devices)
            try:
                yield
            except Exception:
                if not self.has_progress():
                    self.clear()
                raise

    @contextmanager
    def _held(self) -> Iterator[None]:
        taken = (
            f"--output_dir {self.output_dir}: another process trains into it (it holds {self.path / LOCK_FILE}); "
            "wait until it has ended, or choose another directory"
        )
        needed = f"--output_dir {self.output_dir}: {self.path} is needed for the checkpoints, but cannot be written"
        try:
            with exclusive(self.path / LOCK_FILE, taken, needed):
                yield
        finally:
            with suppress(OSError):
                self.path.rmdir()  # unless there is something in it, such as another's lock

    def _open(self, run: Run, devices: int) -> None:
        self._clear_what_is_finished(run)
        check_output_dir(self.output_dir, run.training.overwrite_output_dir)
        found = [path.name for path in self.path.iterdir() if path.name not in _OURS]
        if (self.path / STATE_FILE).is_file() and (self.path / RUN_FILE).is_file():
            difference = self._difference(run, devices)
            if not difference:
                return self.note(is_kept=run.training.keep_checkpoints)
            if self.has_progress() and not run.training.overwrite_output_dir:
                raise InputError(
                    f"{self.path} holds an unfinished training with other options ({difference}); give the same "
                    "command to continue it, or --overwrite_output_dir to start again"
                )
        elif found:
            raise InputError(f"{self.path} is needed for the checkpoints, but holds other files")
        self.clear()
        run.save(self.path)
        self.note(id=uuid.uuid4().hex, devices=devices, data={}, is_kept=run.training.keep_checkpoints)

    def check_data(self, hashes: Mapping[str, str], overwrite: bool) -> None:
        """Compare the data with those of the earlier training, and note them.

        Args:
            hashes: Of each split.
            overwrite: Whether to start again where they have changed.

        Raises:
            InputError: naming the splits that have changed.
        """
        before = self.state()["data"]
        changed = [split for split in hashes if split in before and before[split] != hashes[split]]
        if changed and self.has_progress() and not overwrite:
            raise InputError(
                f"{self.path} holds an unfinished training of the same run, but since then the data have changed: "
                f"{', '.join(changed)}; change them back to continue, or give --overwrite_output_dir to start again"
            )
        for pattern in ("checkpoint-*", "tokenizer*", "seed-*[0-9]") if changed else ():
            for path in self.path.glob(pattern):
                shutil.rmtree(path)
        self.note(data={**before, **hashes})

    def state(self) -> dict[str, Any]:
        """What was noted."""
        return json.loads((self.path / STATE_FILE).read_text("utf-8"))

    def note(self, **values: Any) -> None:
        """Keep what a training has found out and must not find out again."""
        path = self.path / STATE_FILE
        before = self.state() if path.is_file() else {}
        write_whole_file(path, json.dumps({**before, **values}))

    def last_checkpoint(self, averaged: bool = False) -> str | None:
        """The newest checkpoint that was written completely, or None. The Trainer writes `trainer_state.json` last,
        and averaged weights are written after it."""
        folders = {int(path.name.rpartition("-")[2]): path for path in self.path.glob("checkpoint-*[0-9]")}
        for step in sorted(folders, reverse=True):
            if is_complete(folders[step]) and (not averaged or (folders[step] / AVERAGED_WEIGHTS).is_file()):
                return str(folders[step])
        return None

    def has_progress(self) -> bool:
        """Whether something would be lost without the directory: a checkpoint, a trained model that could not be
        measured, or one of several seeds."""
        checkpoints = any(map(is_complete, self.path.glob("**/checkpoint-*")))
        trained = any(self.path.glob(f"**/{self.unmeasured.name}"))  # also those of single seeds
        return checkpoints or trained or any(self.path.glob(f"seed-*/{RESULTS_FILE}"))

    def clear(self) -> None:
        """Remove what is in it, except the lock, which must not be taken from who holds it."""
        for path in self.path.iterdir() if self.path.is_dir() else ():
            if path.name != LOCK_FILE:
                shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)

    def _difference(self, run: Run, devices: int) -> str:
        try:
            state = self.state()
            difference = run.difference(read_run_file(self.path / RUN_FILE))
        except (InputError, ValueError) as error:
            return str(error)
        if not difference and state["devices"] != devices:
            return f"the number of devices was {state['devices']} and is {devices}"
        return difference

    def _clear_what_is_finished(self, run: Run) -> None:
        """Remove the checkpoints of the very training that made the model in `output_dir`: it was killed before it
        could. Those that were to be kept are removed only when the model is replaced."""
        try:
            finished = json.loads((self.output_dir / RESULTS_FILE).read_text("utf-8"))["training"]["id"]
            state = self.state()
        except (OSError, ValueError, LookupError, TypeError):
            return
        if state.get("id") == finished and (run.training.overwrite_output_dir or not state.get("is_kept")):
            self.clear()


def is_complete(checkpoint: Path) -> bool:
    """Whether all of a checkpoint was written."""
    try:
        return isinstance(json.loads((checkpoint / "trainer_state.json").read_text("utf-8")), dict)
    except (OSError, ValueError):
        return False


def rows_hash(rows: Dataset) -> str:
    """A hash of all rows in their order, of what they say and not of the lines they come from."""
    digest = hashlib.blake2b(digest_size=16)
    columns = [name for name in rows.column_names if name != "origin"]
    for batch in rows.select_columns(columns).iter(batch_size=1000):
        digest.update(json.dumps(batch, sort_keys=True, default=str).encode())
    return digest.hexdigest()
