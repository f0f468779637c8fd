"""How long a training has taken, interruptions left out, and a learning rate that follows the time limit."""

import time
from typing import Any

import torch
from accelerate.utils import broadcast
from torch.optim.lr_scheduler import LambdaLR
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_callback import ExportableState

from ..errors import InputError


class TrainingClock(TrainerCallback, ExportableState):
    """Counts the seconds of a training, saves them with every checkpoint, and stops the training at a time limit.

    Args:
        limit: Seconds, or None for no limit. The training stops after the first step that ends later.
        command_started: When the command began that the training is a part of, by `time.monotonic`. Default: now.
    """

    def __init__(self, limit: float | None = None, command_started: float | None = None):
        self.limit = limit
        self.elapsed = 0.0
        self.earlier_commands = 0.0  # what the commands before this one took, up to the checkpoint it continues from
        self.warmup_elapsed = 0.0  # how much of it was warm-up, for `follow_the_clock`
        self._last_tick = time.monotonic()
        self._command_started = self._last_tick if command_started is None else command_started

    def state(self) -> dict[str, Any]:
        """What `trainer_state.json` keeps of the clock."""
        commands = self.earlier_commands + time.monotonic() - self._command_started
        times = {"elapsed": self.elapsed, "warmup_elapsed": self.warmup_elapsed, "commands": commands}
        return {"args": {}, "attributes": times}

    @property
    def is_over(self) -> bool:
        """Whether the limit is reached."""
        return self.limit is not None and self.elapsed >= self.limit

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        saved = state.stateful_callbacks.setdefault(type(self).__name__, self.state())
        self.elapsed = saved["attributes"]["elapsed"]
        self.warmup_elapsed = saved["attributes"]["warmup_elapsed"]
        if state.global_step:  # continued: `saved` is from the checkpoint, not of this very clock
            self.earlier_commands = saved["attributes"].get("commands", self.elapsed)
        self._last_tick = time.monotonic()

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self._tick(args)
        if self.is_over:
            control.should_training_stop = True
            control.should_save = True  # so that a kill during the final evaluation loses no training

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self._tick(args)

    def _tick(self, args: TrainingArguments) -> None:
        now = time.monotonic()
        self.elapsed, self._last_tick = self.elapsed + now - self._last_tick, now
        if args.world_size > 1:  # the clock of the first process counts: all must stop at the same step
            self.elapsed = broadcast(torch.tensor(self.elapsed, device=args.device)).item()


def follow_the_clock(scheduler: LambdaLR, clock: TrainingClock, args: TrainingArguments, total_steps: int) -> None:
    """Make a stock scheduler reach its end when `clock.limit` is reached, if that is before the last step.

    A stock schedule is a function of the step. When the fraction of the time that has passed is larger than the
    fraction of the steps, the function is evaluated at a correspondingly later step. The schedule therefore ends with
    the time or with the steps, whichever ends first. A warm-up given as a number of steps keeps that number; one given
    as a fraction of the training becomes a fraction of the time.

    Raises:
        InputError: for a schedule that is not a function of the step (reduce_lr_on_plateau, greedy).
    """
    if not isinstance(scheduler, LambdaLR):
        raise InputError(
            f"--time_limit_minutes can't be combined with lr_scheduler_type={args.lr_scheduler_type.value}"
        )
    curve, warmup_steps = scheduler.lr_lambdas[0], int(args.warmup_steps) if args.warmup_steps >= 1 else 0

    def clocked(step: int) -> float:
        if step <= warmup_steps:
            clock.warmup_elapsed = clock.elapsed
            return curve(step)
        passed = (clock.elapsed - clock.warmup_elapsed) / max(clock.limit - clock.warmup_elapsed, 1e-9)
        return curve(max(step, warmup_steps + min(passed, 1.0) * (total_steps - warmup_steps)))

    scheduler.lr_lambdas = [clocked] * len(scheduler.lr_lambdas)
