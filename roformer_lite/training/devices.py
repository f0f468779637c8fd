"""The number of devices that a training runs on, and continuing it on another number."""

import json
import os
from pathlib import Path
from typing import Any

from accelerate import PartialState
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments, set_seed
from transformers.trainer_callback import ExportableState

DEVICES = "number_of_devices"  # among the options that a training is known by
_ROWS = "per_device_train_batch_size"
_TASKS = ("mlm", "causal", "seq2seq", "classify", "tag")  # whose loss is a sum over the rows of a step, however shared
# Batches of these are made for a number of devices.
_FOR_A_NUMBER = ("packing", "max_tokens_per_batch", "streaming", "prepared")


def devices_of(args: TrainingArguments) -> int:
    """How many devices share the rows of a step."""
    return args.world_size * max(1, args.n_gpu)


def is_by_deepspeed(args: TrainingArguments) -> bool:
    """Whether DeepSpeed trains: by an option, or by `accelerate launch`, which sets the variable."""
    return bool(args.deepspeed) or os.environ.get("ACCELERATE_USE_DEEPSPEED", "false").lower() == "true"


class ProcessCount(TrainerCallback, ExportableState):
    """Notes in every checkpoint how many processes wrote it, when all of them have.

    A training that another number of processes continues begins with new random states: those that there are belong to
    processes that learnt other rows.
    """

    def __init__(self):
        self.processes = 1
        self.is_training = self.needs_seed = False

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        is_continued = state.global_step > 0
        self.needs_seed = is_continued and _noted_in(state.stateful_callbacks) not in (None, args.world_size)
        self.processes, self.is_training = args.world_size, True

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if self.needs_seed:
            set_seed(args.seed + state.global_step)
            self.needs_seed = False

    def state(self) -> dict[str, Any]:
        """What `trainer_state.json` keeps. That file says that a checkpoint is whole: the process that writes it waits
        here for the others, which come to `on_save`."""
        if self.is_training:
            PartialState().wait_for_everyone()
        return {"args": {}, "attributes": {"processes": self.processes}}

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if not args.should_save:
            PartialState().wait_for_everyone()

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self.is_training = False


def processes_of(checkpoint: str | Path) -> int | None:
    """How many processes wrote a checkpoint, or None where that is not noted."""
    state = json.loads((Path(checkpoint) / "trainer_state.json").read_text("utf-8"))
    return _noted_in(state.get("stateful_callbacks") or {})


def _noted_in(callbacks: Any) -> int | None:
    noted = callbacks.get(ProcessCount.__name__)
    return noted["attributes"]["processes"] if isinstance(noted, dict) else None


def same_steps(before: dict[str, Any], now: dict[str, Any]) -> bool:
    """Whether trainings with these options learn the same rows in each step, though on other numbers of devices.

    That is so where a step takes the next rows of one order: 16 rows on each of 2 devices, or 32 on one.
    """
    for options in (before, now):
        is_of_rows = options.get("task") in _TASKS and options.get("train_sampling_strategy") == "random"
        if not is_of_rows or any(options.get(name) for name in _FOR_A_NUMBER):
            return False
    if before.get(DEVICES) == now.get(DEVICES) or not all(
        isinstance(options.get(name), int) for options in (before, now) for name in (DEVICES, _ROWS)
    ):
        return False
    return before[DEVICES] * before[_ROWS] == now[DEVICES] * now[_ROWS]


def without_devices(options: dict[str, Any]) -> dict[str, Any]:
    """`options` without the number of devices and the rows that each has."""
    return {name: value for name, value in options.items() if name not in (DEVICES, _ROWS)}
