"""Time: how long a training took over all its interruptions, and a learning rate that follows the clock."""

import time
from typing import Any

import torch
from accelerate.utils import broadcast
from torch.optim.lr_scheduler import LambdaLR
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_callback import ExportableState

from ..errors import InputError


class TrainingClock(TrainerCallback, ExportableState):
    """Counts the seconds of a training, saves them with every checkpoint, and ends it when a limit is reached.

    Args:
        limit: Seconds, or None. The training stops after the first step that ends later.
    """

    def __init__(self, limit: float | None = None):
        self.limit = limit
        self.elapsed = 0.0
        self.warmup_elapsed = 0.0  # of which in the warm-up, kept for `follow_the_clock`
        self._last_tick = time.monotonic()

    def state(self) -> dict[str, Any]:
        """What `trainer_state.json` holds of the clock."""
        return {"args": {}, "attributes": {"elapsed": self.elapsed, "warmup_elapsed": self.warmup_elapsed}}

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
        self._last_tick = time.monotonic()

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self._tick(args)
        if self.is_over:
            control.should_training_stop = True
            control.should_save = True  # a kill during the final evaluation then costs no training

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self._tick(args)

    def _tick(self, args: TrainingArguments) -> None:
        now = time.monotonic()
        self.elapsed, self._last_tick = self.elapsed + now - self._last_tick, now
        if args.world_size > 1:  # everybody follows the first process: all must stop at the same step
            self.elapsed = broadcast(torch.tensor(self.elapsed, device=args.device)).item()


def follow_the_clock(scheduler: LambdaLR, clock: TrainingClock, args: TrainingArguments, total_steps: int) -> None:
    """Make a stock scheduler end when `clock.limit` is reached, if that is before the last step.

    The stock curve is a function of the step. It is read further on whenever more of the time than of the steps is
    gone, so that it ends with whichever ends first. A warm-up given in steps keeps its steps; one given as a share of
    the training is stretched with it.

    Raises:
        InputError: for a schedule that is no function of the step (reduce_lr_on_plateau, greedy).
    """
    if not isinstance(scheduler, LambdaLR):
        raise InputError(
            f"--time_limit_minutes cannot be used with --lr_scheduler_type {args.lr_scheduler_type.value}"
        )
    curve, warmup_steps = scheduler.lr_lambdas[0], int(args.warmup_steps) if args.warmup_steps >= 1 else 0

    def clocked(step: int) -> float:
        if step <= warmup_steps:
            clock.warmup_elapsed = clock.elapsed
            return curve(step)
        gone = (clock.elapsed - clock.warmup_elapsed) / max(clock.limit - clock.warmup_elapsed, 1e-9)
        return curve(max(step, warmup_steps + min(gone, 1.0) * (total_steps - warmup_steps)))

    scheduler.lr_lambdas = [clocked] * len(scheduler.lr_lambdas)
