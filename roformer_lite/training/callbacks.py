"""Callbacks for the stock Trainer: a clock with lines of progress, the best checkpoint, averaged
weights, a guard against diverged trainings, and masks that are the same when a training
continues."""

import copy
import math
import sys
import time
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_model, save_model
from torch.optim.swa_utils import get_ema_multi_avg_fn
from transformers import (
    PreTrainedModel,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)
from transformers.trainer_callback import ExportableState

from ..errors import InputError
from .training_directory import last_checkpoint

# A checkpoint contains this file in addition to the weights that are trained.
AVERAGED_WEIGHTS = "averaged_weights.safetensors"


class TrainingClock(TrainerCallback, ExportableState):
    """Counts the seconds of a training, which every checkpoint contains; see `seconds_of`. When the
    Trainer logs a loss or evaluates, a line is printed instead of transformers' progress bars: the
    loss and the remaining time, or the metric that chooses the best checkpoint and the validation
    loss.

    Args:
        seconds: The time until the last checkpoint, for a training that continues.
    """

    def __init__(self, seconds: float = 0.0):
        self.seconds = seconds
        self.begin = time.monotonic()

    def on_train_begin(self, *args: Any, **kwargs: Any) -> None:
        self.begin = time.monotonic()

    @property
    def elapsed(self) -> float:
        """The seconds of the training until now."""
        return self.seconds + time.monotonic() - self.begin

    def state(self) -> dict[str, Any]:
        """The part of `trainer_state.json` that belongs to the clock."""
        return {"args": {"seconds": self.elapsed}, "attributes": {}}

    def on_log(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        logs = kwargs["logs"]
        metric = (args.metric_for_best_model or "loss").removeprefix("eval_")
        shown = {f"eval_{metric}": metric, "loss": "loss", "eval_loss": "validation loss"}
        facts = [f"{shown[name]} {logs[name]:.4g}" for name in shown if name in logs]
        if not facts or not state.is_world_process_zero:
            return
        place = f"Epoch {round(state.epoch or 0.0, 1):g}/{state.num_train_epochs}"
        if "loss" in logs:
            seconds_of_step = self.elapsed / max(state.global_step, 1)
            seconds = math.ceil(seconds_of_step * (state.max_steps - state.global_step))
            facts.append(f"{timedelta(seconds=seconds)} left")
        print(f"{place}: {', '.join(facts)}", file=sys.stderr)


def seconds_of(state: TrainerState) -> float:
    """The time of a training until its last checkpoint."""
    callbacks: Any = state.stateful_callbacks
    return callbacks[TrainingClock.__name__]["args"]["seconds"]


class BestCheckpoint(TrainerCallback):
    """Keeps the best evaluated model as a checkpoint, and saves a last one at the end, so that
    nothing is lost if the final evaluation fails or is killed.

    The Trainer would also regard a model as the best that was evaluated, but not saved. It saves
    the absolute path of a checkpoint, and forgets it if the directory was moved before the training
    continued, so the checkpoint is looked for in the current output directory.
    """

    def on_evaluate(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if args.load_best_model_at_end:
            control.should_save = True

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        best = Path(f"{args.output_dir}/checkpoint-{state.best_global_step}")
        if best.is_dir():
            state.best_model_checkpoint = str(best)

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        saves_at_the_end = args.save_strategy not in ("no", "best")
        if state.global_step >= state.max_steps and not saves_at_the_end:
            control.should_save = True


class WeightAveraging(TrainerCallback):
    """Averages the weights after every step (Polyak averaging with exponential weights, Tarvainen &
    Valpola 2017).

    The average smooths the noise of the last steps, so the learning rate may stay high for longer.
    In step `n` the decay is at most `(1 + n) / (10 + n)`, so that the random initial weights are
    soon forgotten. When training ends, the model gets the averaged weights; with
    `load_best_model_at_end`, these are the averages of the best checkpoint.

    Args:
        decay: Weight of the previous average. The current weights are weighted with the rest.
    """

    def __init__(self, decay: float):
        self.decay = decay
        self.average: Any = None
        self.num_averaged = 0

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self.average = copy.deepcopy(kwargs["model"])
        # The average is updated once per step.
        self.num_averaged = state.global_step
        if self.num_averaged > 0:
            checkpoint = Path(f"{args.output_dir}/checkpoint-{state.global_step}")
            load_model(self.average, checkpoint / AVERAGED_WEIGHTS)

    def on_step_end(self, *args: Any, **kwargs: Any) -> None:
        count = self.num_averaged
        decay = min(self.decay, (1 + count) / (10 + count)) if count else 0.0
        # torch's AveragedModel also copies the buffers, and fails if two of them become one tensor,
        # as the frequencies of dynamic rotary positions do.
        averaged = list(self.average.parameters())
        get_ema_multi_avg_fn(decay)(averaged, list(kwargs["model"].parameters()), count)
        self.num_averaged += 1

    def save(self, checkpoint: Path) -> None:
        """Save the averaged weights in `checkpoint`."""
        save_model(self.average, str(checkpoint / AVERAGED_WEIGHTS))

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if args.load_best_model_at_end and state.best_model_checkpoint:
            checkpoint = Path(state.best_model_checkpoint)
            load_model(self.average, checkpoint / AVERAGED_WEIGHTS)
        self._exchange(kwargs["model"])
        self.average = None

    @contextmanager
    def in_place_of(self, model: PreTrainedModel) -> Iterator[None]:
        """Context in which `model` has the averaged weights, if it is being trained. Afterwards it
        has its own weights again."""
        if self.average is None:
            yield
            return
        self._exchange(model)
        try:
            yield
        finally:
            self._exchange(model)

    def _exchange(self, model: PreTrainedModel) -> None:
        with torch.no_grad():
            for parameter, averaged in zip(
                model.parameters(), self.average.parameters(), strict=True
            ):
                own = parameter.clone()
                parameter.copy_(averaged)
                averaged.copy_(own)


class DivergenceGuard(TrainerCallback):
    """Stops a training whose weights are no longer finite. They are checked at the end, and before
    the training logs, evaluates or saves.

    The Trainer would continue: it omits losses that are not finite from its logs and saves any
    weights. Checking the weights has to wait for the device, so it is not done after every step. A
    loss that is not finite affects the weights in the same step.
    """

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if control.should_log or control.should_evaluate or control.should_save:
            self.on_epoch_end(args, state, control, **kwargs)

    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        with torch.no_grad():
            finite = [torch.isfinite(weight).all() for weight in kwargs["model"].parameters()]
        # All processes have the same weights, so they stop at the same step.
        if not torch.stack(finite).all():
            good = last_checkpoint(Path(str(args.output_dir)))
            kept = "" if good is None else f" The last good checkpoint: {good}."
            raise InputError(
                "the training diverged: the weights are no longer finite after step "
                f"{state.global_step}, and no model was saved.{kept} A lower --learning_rate (now "
                f"{args.learning_rate:g}) usually helps: use it with another --output_dir or with "
                "--overwrite_output_dir"
            )

    # A training that makes no step has no epoch.
    on_train_end = on_epoch_end


class SeededCollator(TrainerCallback):
    """Makes batches with a collator that has a generator, such as the one for masked language
    models.

    The generator is seeded for each batch by the training's seed, the epoch and the examples of the
    batch. Random choices are therefore the same when a training continues in the middle of an
    epoch. The random state of the process would not suffice: batches are prefetched before a
    checkpoint is saved, and when training continues, before that state is restored.

    Args:
        collator: A collator of transformers. It is copied because evaluation uses it as well.
        seed: The seed of the training.
    """

    def __init__(self, collator: Any, seed: int):
        self.collator = copy.copy(collator)
        self.seed = seed
        # The memory is shared because persistent workers must see the epoch change.
        self.epoch = torch.zeros((), dtype=torch.long).share_memory_()

    def on_epoch_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self.epoch.fill_(int(state.epoch or 0))

    def __call__(self, examples: Sequence[dict[str, Any]]) -> dict[str, torch.Tensor]:
        ids = [
            zlib.crc32(np.asarray(example["input_ids"], dtype=np.int64).tobytes())
            for example in examples
        ]
        state = np.random.SeedSequence([self.seed, int(self.epoch), *ids]).generate_state(
            1, np.uint64
        )
        self.collator.generator = torch.Generator().manual_seed(int(state[0]) >> 1)
        return self.collator(examples)
