"""The directory of an unfinished training: where it is, whether it fits the command given, where to continue."""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..errors import InputError
from .weight_average import AVERAGED_WEIGHTS

RUN_FILE = "run.json"


def training_directory(output_dir: Path) -> Path:
    """Where the checkpoints are while the model of `output_dir` is being trained: beside it, as a finished model must
    be complete or not there at all."""
    return output_dir.with_name(f"{output_dir.name}.training")


def open_training_directory(directory: Path, options: dict[str, Any], overwrite: bool) -> None:
    """Make `directory` ready for a training with `options`, new or continued.

    Args:
        directory: New, or left by an earlier training.
        options: What must be the same for an earlier training to be continued.
        overwrite: Whether to delete an earlier training that had other options. One without a checkpoint, such as one
            that stopped at a mistake in the data, is deleted anyway.

    Raises:
        InputError: when an unfinished training with other options is there; it names them. Also when other files are.
    """
    path = directory / RUN_FILE
    options = json.loads(json.dumps(options, default=str))
    if path.is_file():
        before = json.loads(path.read_text("utf-8"))
        changed = [name for name in {**before, **options} if before.get(name) != options.get(name)]
        if changed and not overwrite and any(_is_complete(folder, ()) for folder in directory.glob("checkpoint-*")):
            details = ", ".join(f"--{name} was {before.get(name)} and is {options.get(name)}" for name in changed)
            raise InputError(
                f"{directory} holds an unfinished training with other options ({details}); give the same command to "
                "continue it, or --overwrite_output_dir to start again"
            )
        if changed:
            shutil.rmtree(directory)
    elif directory.exists() and any(directory.iterdir()):
        raise InputError(f"{directory} is needed for the checkpoints, but holds other files")
    directory.mkdir(parents=True, exist_ok=True)
    for folder in directory.glob("checkpoint-*"):
        if not _is_complete(folder, ()):
            shutil.rmtree(folder)
    path.write_text(json.dumps(options, indent=1, ensure_ascii=False), "utf-8")


def last_complete_checkpoint(directory: Path, averaged: bool) -> str | None:
    """The newest checkpoint that was written completely, or None.

    The Trainer writes `trainer_state.json` last, and the averaged weights are written after it; a checkpoint without
    them was interrupted by a kill or a full disk.
    """
    needed = [AVERAGED_WEIGHTS] if averaged else []
    found = [folder for folder in directory.glob("checkpoint-*") if _is_complete(folder, needed)]
    return str(max(found, key=_step)) if found else None


def _step(folder: Path) -> int:
    number = folder.name.rpartition("-")[2]
    return int(number) if number.isdecimal() else -1


def _is_complete(folder: Path, needed: Sequence[str]) -> bool:
    try:
        json.loads((folder / "trainer_state.json").read_text("utf-8"))
    except (OSError, ValueError):
        return False
    return _step(folder) >= 0 and all((folder / name).is_file() for name in needed)
