"""Stops a training whose weights or losses are no longer numbers, before that reaches a checkpoint."""

import math
from pathlib import Path

import torch
from accelerate.utils import reduce
from torch import nn
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from ..errors import InputError
from .training_directory import TrainingDirectory

_SKIPPED_IN_FP16 = 10  # losses in a row; while it looks for its scale, fp16 skips steps that overflow


class DivergenceGuard(TrainerCallback):
    """Ends a diverged training with a message before it logs, evaluates or saves, and when it ends.

    The Trainer would go on: it leaves losses that are not finite out of its logs, and saves whatever the weights are.
    The weights are looked at in those steps only, because looking at all of them waits for the device.
    """

    def __init__(self, averaged: bool = False):
        self.averaged = averaged  # whether checkpoints have averaged weights
        self._bad_losses: torch.Tensor | None = None  # how many of the last losses, in a row, were not finite

    def see_loss(self, loss: torch.Tensor) -> None:
        """Take note of a loss, without waiting for the device."""
        before = torch.zeros((), device=loss.device) if self._bad_losses is None else self._bad_losses
        self._bad_losses = torch.where(torch.isfinite(loss.detach()).all(), 0.0, before + 1)

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, model: nn.Module, **kwargs
    ) -> None:
        if control.should_log or control.should_evaluate or control.should_save:
            self._check(args, state, model)

    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, model: nn.Module, **kwargs
    ) -> None:
        self._check(args, state, model)  # every training ends with an epoch, perhaps an incomplete one

    def _check(self, args: TrainingArguments, state: TrainerState, model: nn.Module) -> None:
        weights = not weights_are_finite(model)
        allowed = _SKIPPED_IN_FP16 if args.fp16 else 1
        losses = self._bad_losses is not None and self._bad_losses.item() >= allowed
        found = torch.tensor([weights, losses], dtype=torch.float, device=args.device)
        if args.world_size > 1:  # all processes must stop at the same step
            found = reduce(found, reduction="sum")
        weights, losses = (found > 0).tolist()
        if weights or losses:
            what = "the weights are" if weights else "the loss is"
            raise InputError(
                f"the training diverged: {what} no longer finite after step {state.global_step}. "
                f"{_advice(args, self.averaged)}"
            )


def weights_are_finite(model: nn.Module) -> bool:
    """Whether there is neither a NaN nor an infinity among the parameters."""
    with torch.no_grad():
        finite = [torch.isfinite(_local(parameter)).all() for parameter in model.parameters()]
    return not finite or bool(torch.stack(finite).all())


def check_metrics(metrics: dict[str, float], split: str, args: TrainingArguments, averaged: bool = False) -> None:
    """Refuse to finish a model whose final metrics are not numbers: nothing could be said about it.

    Raises:
        InputError: naming the metrics.
    """
    bad = [f"{name} {value}" for name, value in metrics.items() if not math.isfinite(value)]
    if bad:
        raise InputError(
            f"the training diverged: on the {split} data, {', '.join(bad)} instead of a number. "
            f"{_advice(args, averaged)}"
        )


def _advice(args: TrainingArguments, averaged: bool) -> str:
    good = TrainingDirectory.at(Path(args.output_dir)).last_checkpoint(averaged)
    kept = f"The last good checkpoint is {good}" if good else "There is no checkpoint from before that"
    start = f", from scratch or from --model_name_or_path {good}" if good else ""
    return (
        f"{kept}; no model was saved. Usually a lower --learning_rate (now {args.learning_rate:g}) helps: train with "
        f"it into another --output_dir{start}, or with --overwrite_output_dir"
    )


def _local(parameter: torch.Tensor) -> torch.Tensor:
    return parameter.to_local() if hasattr(parameter, "to_local") else parameter  # this process's part of a DTensor
