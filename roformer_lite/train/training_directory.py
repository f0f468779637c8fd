"""The directory of an unfinished training: held by one process, and continued by the same run on
the same data."""

import hashlib
import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from accelerate.utils import wait_for_everyone
from datasets import Dataset, DatasetDict, IterableDataset
from transformers import TrainerCallback, TrainerState, TrainingArguments

from ..errors import InputError
from ..output import (
    RESULTS_FILE,
    check_files,
    check_output_dir,
    exclusive,
    is_disk_full,
    note_files,
    write_whole_file,
)
from ..saved_model import read_object
from ..tasks.task_arguments import TaskArguments
from .run import RUN_FILE, Run, read_run_file

LOCK_FILE, STATE_FILE = "lock", "state.json"
_OURS = (LOCK_FILE, RUN_FILE, STATE_FILE)  # files that a killed command may leave `.unfinished`
AVERAGED_WEIGHTS = "averaged_weights.safetensors"


class TrainingDirectory:
    """Where the checkpoints are while a model is being trained: beside it, as a finished model must
    be complete or not there at all.

    Args:
        run: Of the training.
    """

    def __init__(self, run: Run):
        self.run, self.path = run, run.checkpoints
        self._state = self.path / STATE_FILE

    @contextmanager
    def opened(self, args: TrainingArguments) -> Iterator[Path]:
        """Inside the `with`, the directory is ready for the run, new or continued, and no other
        command trains into it; an empty directory for the data of this process is yielded. A run
        that is refused before it has made any progress leaves nothing behind. A full disk is
        reported in a sentence.

        Args:
            args: Of the training. All processes of a training enter; the one that saves prepares
                the directory.

        Raises:
            InputError: when another process holds the directory, it can't be made, a finished model
                is in the way, or an unfinished training with other options, naming them, or other
                files. `overwrite_output_dir` allows to discard models and trainings; a training
                without a checkpoint is discarded in any case.
        """
        data = self.path / f"data-{args.process_index}"
        with ExitStack() as held:
            with args.main_process_first(local=False, desc="preparing the output directory"):
                if args.should_save:
                    held.enter_context(self._held(devices=args.world_size * max(1, args.n_gpu)))
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
    def _held(self, devices: int) -> Iterator[None]:
        given, overwrite = (
            f"--output_dir {self.run.output_dir}",
            self.run.training.overwrite_output_dir,
        )
        taken = (
            f"{given}: another process trains into it (it holds {self.path / LOCK_FILE}); wait until it has ended, or "
            "choose another directory"
        )
        needed = f"{given}: {self.path} is needed for the checkpoints, but cannot be written"
        with _removed_if_empty(self.path), exclusive(self.path / LOCK_FILE, taken, needed):
            check_output_dir(self.run.output_dir, overwrite)
            is_new, difference = (
                not ((self.path / RUN_FILE).is_file() and self._state.is_file()),
                "",
            )
            if not is_new:
                try:
                    difference = self.run.difference(read_run_file(self.path / RUN_FILE))
                    before = self.state()["devices"]
                    if before != devices:
                        difference += f"the number of devices was {before} and is {devices}"
                except (TypeError, ValueError) as error:  # what was written is damaged
                    difference = str(error)
                if difference and self.has_progress() and not overwrite:
                    raise InputError(
                        f"{self.path} holds an unfinished training with other options ({difference}); give the same "
                        "command to continue it, or --overwrite_output_dir to start again"
                    )
            elif any(
                path.name.removesuffix(".unfinished") not in _OURS for path in self.path.iterdir()
            ):
                raise InputError(
                    f"{self.path} is needed for the checkpoints, but holds other files"
                )
            if is_new or difference:
                self.clear()
                self.run.save(self.path)
                write_whole_file(self._state, json.dumps({"devices": devices, "data": {}}))
            try:
                yield
            except Exception:
                if not self.has_progress():
                    self.clear()
                raise

    def check_data(self, hashes: Mapping[str, str]) -> None:
        """Compare the data with those of the earlier training, and note them. Test data only
        measure; they may change until the first of several seeds is finished.

        Args:
            hashes: Of each split.

        Raises:
            InputError: naming the splits that have changed, unless `overwrite_output_dir` allows to
                start again.
        """
        before, has_finished_seeds = (
            self.state()["data"],
            any(self.path.glob(f"seed-*/{RESULTS_FILE}")),
        )
        compared = [
            split for split in hashes if split in before and (split != "test" or has_finished_seeds)
        ]
        changed = [split for split in compared if before[split] != hashes[split]]
        if changed and self.has_progress() and not self.run.training.overwrite_output_dir:
            raise InputError(
                f"{self.path} holds an unfinished training of the same run, but since then the data have changed: "
                f"{', '.join(changed)}; change them back to continue, or give --overwrite_output_dir to start again"
            )
        for pattern in ("checkpoint-*", "tokenizer*", "seed-*[0-9]") if changed else ():
            for path in self.path.glob(pattern):
                shutil.rmtree(path)
        self.note(data={**before, **hashes})

    def state(self) -> dict[str, Any]:
        """What was noted; `InputError` where it is damaged."""
        state = read_object(self._state)
        kinds = {"bf16": bool} | {name: type(value) for name, value in state.items()}
        if kinds != {"bf16": bool, "devices": int, "data": dict}:
            raise InputError(f"{self._state} is damaged: {state}")
        return state

    def note(self, **values: Any) -> None:
        """Keep what a training has found out and must not find out again."""
        before = self.state()
        if before | values != before:
            write_whole_file(self._state, json.dumps(before | values))

    def has_progress(self) -> bool:
        """Whether something would be lost without the directory: a checkpoint, or the model of one
        of several seeds."""
        return any(map(_is_complete, self.path.glob("**/checkpoint-*"))) or any(
            self.path.glob(f"seed-*/{RESULTS_FILE}")
        )

    def clear(self) -> None:
        """Remove what is in it, except the lock, which must not be taken from who holds it."""
        for path in self.path.iterdir() if self.path.is_dir() else ():
            if path.name != LOCK_FILE:
                shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(
                    missing_ok=True
                )


@contextmanager
def _removed_if_empty(folder: Path) -> Iterator[None]:
    try:
        yield
    finally:
        with suppress(OSError):
            folder.rmdir()  # unless there is something in it, such as another's lock


def last_checkpoint(folder: Path, averaged: bool = False) -> str | None:
    """The newest checkpoint in `folder` that was written completely, or None. The Trainer writes
    `trainer_state.json` last, and averaged weights are written after it."""
    numbers = (
        (path.name.removeprefix("checkpoint-"), path) for path in folder.glob("checkpoint-*[0-9]")
    )
    checkpoints = {int(number): path for number, path in numbers if number.isdecimal()}
    for step in sorted(checkpoints, reverse=True):
        path = checkpoints[step]
        if _is_complete(path) and (not averaged or (path / AVERAGED_WEIGHTS).is_file()):
            return str(path)
    return None


class CheckedCheckpoints(TrainerCallback):
    """Writes the checksums of every checkpoint, and looks at those of the one that a training
    continues from."""

    best: str | None = None  # which the Trainer forgets where the directory has been moved

    def check(self, checkpoint: Path) -> None:
        """Refuse, with an `InputError` that names it, a file of a checkpoint, or of the best one
        before it, that has changed."""
        check_files(checkpoint)
        if noted := read_object(checkpoint / "trainer_state.json").get("best_model_checkpoint"):
            best = checkpoint.with_name(Path(noted).name)
            try:
                read_object(best / "trainer_state.json")
                check_files(best)
            except InputError as error:
                raise InputError(
                    f"{error}; it was the best checkpoint: remove the later ones, too"
                ) from error
            self.best = str(best)

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: Any, **kwargs: Any
    ) -> None:
        state.best_model_checkpoint = self.best or state.best_model_checkpoint

    def on_save(
        self, args: TrainingArguments, state: TrainerState, control: Any, **kwargs: Any
    ) -> None:
        wait_for_everyone()  # each process writes its random state
        if args.should_save:
            note_files(Path(args.output_dir) / f"checkpoint-{state.global_step}")


def _is_complete(checkpoint: Path) -> bool:
    """Whether all of a checkpoint was written."""
    try:
        return bool(read_object(checkpoint / "trainer_state.json"))
    except InputError:
        return False


def hashes_of(rows: DatasetDict, data: TaskArguments) -> dict[str, str]:
    """A hash of each split. A stream is not read as a whole; names, sizes and dates of its files
    stand for it."""
    hashes = {split: _rows_hash(rows[split]) for split in rows if split != "train"}
    if isinstance(rows["train"], IterableDataset):
        files = sorted(map(Path, data.train_file or ()))
        return hashes | {
            "train": str(
                [(str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in files]
            )
        }
    return hashes | {"train": _rows_hash(rows["train"])}


def _rows_hash(rows: Dataset) -> str:
    """A hash of all rows in their order, of what they say and not of the lines they come from."""
    digest = hashlib.blake2b(digest_size=16)
    columns = [name for name in rows.column_names if name != "origin"]
    for batch in rows.select_columns(columns).iter(batch_size=1000):
        digest.update(json.dumps(batch, sort_keys=True, default=str).encode())
    return digest.hexdigest()
