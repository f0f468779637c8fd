"""The number of devices that a training runs on, and continuing it on another number."""

import json
from pathlib import Path
from typing import Any

from transformers import TrainerCallback, TrainingArguments
from transformers.trainer_callback import ExportableState

DEVICES = "number_of_devices"  # among the options that a training is known by
_OF_A_STEP = (DEVICES, "per_device_train_batch_size", "gradient_accumulation_steps")


def devices_of(args: TrainingArguments) -> int:
    """How many devices share the rows of a step."""
    return args.world_size * max(1, args.n_gpu)


class ProcessCount(TrainerCallback, ExportableState):
    """Notes in every checkpoint how many processes wrote it."""

    def __init__(self, args: TrainingArguments):
        self.processes = args.world_size

    def state(self) -> dict[str, Any]:
        """What `trainer_state.json` keeps."""
        return {"args": {}, "attributes": {"processes": self.processes}}


def processes_of(checkpoint: str | Path) -> int | None:
    """How many processes wrote a checkpoint, or None where that is not noted."""
    state = json.loads((Path(checkpoint) / "trainer_state.json").read_text("utf-8"))
    noted = (state.get("stateful_callbacks") or {}).get(ProcessCount.__name__)
    return noted["attributes"]["processes"] if isinstance(noted, dict) else None


def same_steps(before: dict[str, Any], now: dict[str, Any]) -> bool:
    """Whether trainings with these options learn the same rows in each step, though on other numbers of devices.

    That is so where a step takes the next rows of one order: 16 rows on each of 2 devices, or 32 on one. Batches that
    are filled up to a number of tokens, and streams, are made for a number of devices.
    """
    for options in (before, now):
        of_their_own = any(options.get(name) for name in ("packing", "max_tokens_per_batch", "streaming"))
        if of_their_own or options.get("train_sampling_strategy", "random") != "random":
            return False
    return _rows_of_a_step(before) == _rows_of_a_step(now) is not None


def without_step(options: dict[str, Any]) -> dict[str, Any]:
    """`options` without those that make up the rows of a step."""
    return {name: value for name, value in options.items() if name not in _OF_A_STEP}


def _rows_of_a_step(options: dict[str, Any]) -> int | None:
    product = 1
    for name in _OF_A_STEP:
        if not isinstance(options.get(name), int):
            return None
        product *= options[name]
    return product
