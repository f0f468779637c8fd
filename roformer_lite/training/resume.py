"""The directory of an unfinished training: where it is, whether it fits the command given, where to continue."""

import json
import os
import shutil
import uuid
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from transformers import TrainingArguments

from ..errors import InputError
from ..output_directory import RESULTS_FILE, write_whole_file
from .devices import DEVICES, is_by_deepspeed, processes_of, same_steps, without_devices
from .lock import LOCK_FILE
from .sharded_files import check_nothing_but_data
from .weight_average import AVERAGED_WEIGHTS

RUN_FILE = "run.json"
FINISHED_SEEDS = "seed-*[0-9]"  # directories of models, each with one of several seeds
_FORMAT = 3  # earlier ones noted fewer options
_START_AGAIN = "give the same command to continue it, or --overwrite_output_dir to start again"


def training_directory(output_dir: Path) -> Path:
    """Where the checkpoints are while the model of `output_dir` is being trained: beside it, as a finished model must
    be complete or not there at all."""
    return output_dir.with_name(f"{output_dir.name}.training")


def open_training_directory(
    directory: Path, options: dict[str, Any], overwrite: bool, keep_checkpoints: bool = False
) -> None:
    """Make `directory` ready for a training with `options`, new or continued.

    Args:
        directory: New, or left by an earlier training.
        options: What must be the same for an earlier training to be continued.
        overwrite: Whether to delete an earlier training that had other options. One without a checkpoint, such as one
            that stopped at a mistake in the data, is deleted anyway.
        keep_checkpoints: Noted for `clear_finished_training`.

    Raises:
        InputError: when an unfinished training with other options is there; it names them. Also when other files are,
            and when the disk is full.
    """
    path = directory / RUN_FILE
    options = json.loads(json.dumps(options, default=str))
    run: dict[str, Any] = {"format": _FORMAT, "id": uuid.uuid4().hex, "options": options, "fingerprints": {}}
    if path.is_file():
        try:
            before = _read_run(path)
            difference = _difference(before["options"], options)
        except InputError as error:
            before, difference = run, str(error)
        if difference and not overwrite and _has_progress(directory):
            raise InputError(f"{directory} holds an unfinished training {difference}; {_START_AGAIN}")
        if difference:
            clear_training_directory(directory)
        else:
            run = before
    elif directory.exists() and any(_foreign_files(directory)):
        raise InputError(f"{directory} is needed for the checkpoints, but holds other files")
    directory.mkdir(parents=True, exist_ok=True)
    for folder in directory.glob("checkpoint-*"):
        if not _is_complete(folder, ()):
            shutil.rmtree(folder)
    _write_run(directory, {**run, "keep_checkpoints": keep_checkpoints})


def check_fingerprints(
    directory: Path, fingerprints: Mapping[str, Any], overwrite: bool, forget: Sequence[str]
) -> None:
    """Compare what a training learns from with what the earlier training in `directory` did, and note it if new.

    Args:
        directory: Opened by `open_training_directory`.
        fingerprints: By what they are of, in words.
        overwrite: Whether to delete an earlier training that had others.
        forget: Patterns of what an earlier training without a checkpoint, or one to be deleted, has left.

    Raises:
        InputError: when they are others, naming which.
    """
    run = _read_run(directory / RUN_FILE)
    noted = run["fingerprints"]
    changed = [name for name, value in fingerprints.items() if name in noted and noted[name] != value]
    if changed and not overwrite and _has_progress(directory):
        raise InputError(
            f"{directory} holds an unfinished training with the same options, but since its last checkpoint this has "
            f"changed: {', '.join(changed)}; change it back to continue, or give --overwrite_output_dir to start again"
        )
    if changed:
        for path in (path for pattern in forget for path in directory.glob(pattern)):
            shutil.rmtree(path)
    _write_run(directory, {**run, "fingerprints": {**noted, **fingerprints}})


def run_id(directory: Path) -> str:
    """What `results.json` names a training by."""
    return _read_run(directory / RUN_FILE)["id"]


def note(directory: Path, name: str, value: Any) -> None:
    """Keep with an unfinished training what it has found out and must not find out again; see `noted`."""
    _write_run(directory, {**_read_run(directory / RUN_FILE), name: value})


def noted(directory: Path, name: str) -> Any:
    """What `note` kept in `directory`; None where there is nothing."""
    path = directory / RUN_FILE
    return _read_run(path).get(name) if path.is_file() else None


def clear_finished_training(directory: Path, output_dir: Path, overwrite: bool) -> None:
    """Remove the checkpoints of the very training that made the model in `output_dir`.

    They are there if it was killed before it could remove them. Those that were to be kept are removed only when the
    model is to be replaced: a finished training is not continued.
    """
    try:
        run = _read_run(directory / RUN_FILE)
        finished = json.loads((output_dir / RESULTS_FILE).read_text("utf-8"))["training"]["id"]
    except (InputError, OSError, ValueError, LookupError, TypeError):
        return
    if run["id"] == finished and (overwrite or not run.get("keep_checkpoints")):
        clear_training_directory(directory)


def clear_training_directory(directory: Path) -> None:
    """Remove everything in `directory` except the lock, which must not be taken from who holds it."""
    for path in directory.iterdir() if directory.is_dir() else ():
        if path.name == LOCK_FILE:
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def last_complete_checkpoint(directory: Path, averaged: bool) -> str | None:
    """The newest checkpoint that was written completely, or None.

    The Trainer writes `trainer_state.json` last, and the averaged weights are written after it; a checkpoint without
    them was interrupted by a kill or a full disk.
    """
    needed = [AVERAGED_WEIGHTS] if averaged else []
    found = [folder for folder in directory.glob("checkpoint-*") if _is_complete(folder, needed)]
    return str(max(found, key=_step)) if found else None


def require_checkpoint(checkpoint: str | Path) -> None:
    """Refuse what is no checkpoint at all.

    Raises:
        InputError: for a directory without `trainer_state.json`, and for what is no directory.
    """
    if not os.path.isfile(os.path.join(checkpoint, "trainer_state.json")):
        raise InputError(f"--resume_from_checkpoint {checkpoint}: there is no trainer_state.json, so no checkpoint")


def check_checkpoint(checkpoint: Path, args: TrainingArguments) -> None:
    """Refuse a checkpoint from which training would go on otherwise than it stopped.

    The Trainer takes what is there: without `optimizer.pt` it begins with a new optimizer, for example.

    Raises:
        InputError: naming the file that is missing or damaged.
    """
    require_checkpoint(checkpoint)
    if is_by_deepspeed(args):
        _check_deepspeed(checkpoint, args.world_size)
        return
    processes = processes_of(checkpoint) or args.world_size
    random = [f"rng_state_{index}.pth" for index in range(processes)] if processes > 1 else []
    scaler = ["scaler.pt"] if args.fp16 and torch.cuda.is_available() else []
    others = ["optimizer.pt", "scheduler.pt", *(random or ["rng_state.pth"]), *scaler]
    if args.fsdp or os.environ.get("ACCELERATE_USE_FSDP") == "true":
        for name in ("pytorch_model_fsdp", "optimizer"):
            _check_fsdp(checkpoint, name, processes)
        for name in others[1:]:
            _check_torch_file(checkpoint / name)
        return
    for name in others:
        _check_torch_file(checkpoint / name, " because of --save_only_model" if args.save_only_model else "")
    weights = [*checkpoint.glob("model*.safetensors"), *checkpoint.glob(AVERAGED_WEIGHTS)]
    if not any(path.name != AVERAGED_WEIGHTS for path in weights):
        raise _cannot_continue(f"{checkpoint / 'model.safetensors'} is missing")
    for path in weights:
        try:
            with safe_open(path, framework="pt"):
                pass  # it compares the header with the length of the file
        except (SafetensorError, OSError) as error:
            raise _cannot_continue(f"{path} is damaged ({error})") from error


def _check_fsdp(checkpoint: Path, name: str, processes: int) -> None:
    """The model or the optimizer as FSDP saves it: in one file, or in a directory with a file of each process."""
    parts = checkpoint / f"{name}_0"
    if not parts.is_dir():
        _check_torch_file(checkpoint / f"{name}.bin")
        return
    _check_parts(parts, processes)


def _check_parts(parts: Path, processes: int) -> None:
    """A directory of torch.distributed.checkpoint, to which each process has written."""
    index = parts / ".metadata"
    if not index.is_file():
        raise _cannot_continue(f"{index} is missing")
    for rank in range(processes):
        found = sorted(parts.glob(f"__{rank}_*.distcp"))
        for path in found or [parts / f"__{rank}_0.distcp"]:
            _check_torch_file(path)
    try:
        check_nothing_but_data(parts)
    except ValueError as error:
        raise _cannot_continue(f"{index} is damaged, or what it tells of is not what torch saves ({error})") from error


def _check_deepspeed(checkpoint: Path, processes: int) -> None:
    """The states of all processes in the directory that the file `latest` names."""
    before = processes_of(checkpoint)
    if before not in (None, processes):
        raise InputError(f"{checkpoint} is of {before} processes: with DeepSpeed as many must continue it")
    latest = checkpoint / "latest"
    folder = checkpoint / latest.read_text("utf-8").strip() if latest.is_file() else None
    if folder is None or not folder.is_dir():
        raise _cannot_continue(f"{latest} is missing" if folder is None else f"{folder} is missing")
    states = sorted(folder.glob("*_optim_states.pt"))
    if len(states) < processes:
        raise _cannot_continue(f"{folder} has the optimizer states of {len(states)} processes, not of {processes}")
    for path in [*states, *(sorted(folder.glob("*_model_states.pt")) or [folder / "mp_rank_00_model_states.pt"])]:
        _check_torch_file(path)


def _check_torch_file(path: Path, reason: str = "") -> None:
    if not zipfile.is_zipfile(path):  # as torch saves: what ends too early is none
        raise _cannot_continue(f"{path} is {'damaged' if path.exists() else 'missing'}{reason}")


def check_resumed_options(checkpoint: Path, options: dict[str, Any]) -> None:
    """Refuse to continue from the checkpoint of a training that had other options, where they are known."""
    path = checkpoint.absolute().parent / RUN_FILE
    if path.is_file():
        difference = _difference(_read_run(path)["options"], json.loads(json.dumps(options, default=str)))
        if difference:
            raise InputError(f"--resume_from_checkpoint {checkpoint} is of a training {difference}")


def _cannot_continue(what: str) -> InputError:
    return InputError(
        f"{what}; without it training would not go on as it stopped. Put the file back, remove this checkpoint to "
        "continue from an earlier one, or give --overwrite_output_dir to start again"
    )


def _difference(before: dict[str, Any], now: dict[str, Any]) -> str:
    if same_steps(before, now):
        before, now = without_devices(before), without_devices(now)
    changed = [name for name in {**before, **now} if before.get(name) != now.get(name)]
    words = {name: "the number of devices" if name == DEVICES else f"--{name}" for name in changed}
    details = ", ".join(f"{words[name]} was {before.get(name)} and is {now.get(name)}" for name in changed)
    return f"with other options ({details})" if changed else ""


def _read_run(path: Path) -> dict[str, Any]:
    try:
        run = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"whose {path} cannot be read ({error})") from error
    if not isinstance(run, dict) or run.get("format") != _FORMAT or not {"id", "options", "fingerprints"} <= {*run}:
        raise InputError(
            f"begun by another version of this package, which did not note in {path} all that must stay the same"
        )
    return run


def _write_run(directory: Path, run: dict[str, Any]) -> None:
    write_whole_file(directory / RUN_FILE, json.dumps(run, indent=1, ensure_ascii=False))


def _foreign_files(directory: Path) -> Iterable[Path]:
    ours = (LOCK_FILE, RUN_FILE)
    return (path for path in directory.iterdir() if path.name.removesuffix(".unfinished") not in ours)


def _has_progress(directory: Path) -> bool:
    """Whether something would be lost without the directory: a checkpoint, or one of several seeds."""
    checkpoints = chain(directory.glob("checkpoint-*"), directory.glob("seed-*.training/checkpoint-*"))
    finished = directory.glob(f"{FINISHED_SEEDS}/{RESULTS_FILE}")
    return any(finished) or any(_is_complete(folder, ()) for folder in checkpoints)


def _step(folder: Path) -> int:
    number = folder.name.rpartition("-")[2]
    return int(number) if number.isdecimal() else -1


def _is_complete(folder: Path, needed: Sequence[str]) -> bool:
    try:
        json.loads((folder / "trainer_state.json").read_text("utf-8"))
    except (OSError, ValueError):
        return False
    return _step(folder) >= 0 and all((folder / name).is_file() for name in needed)
