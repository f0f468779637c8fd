"""An exponential moving average of the weights, updated during training and saved with the checkpoints."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch.optim.swa_utils import AveragedModel
from transformers import PreTrainedModel, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from ..errors import InputError
from .training_directory import AVERAGED_WEIGHTS


class WeightAveraging(TrainerCallback):
    """Averages the weights after every step (Polyak averaging with exponential weights, Tarvainen & Valpola 2017).

    The average smooths the noise of the last steps, so the learning rate may stay high for longer. In step `n` the
    decay is at most `(1 + n) / (10 + n)`, so that the random initial weights are soon forgotten. When training ends,
    the model gets the averaged weights, those of the best checkpoint with `load_best_model_at_end`.

    Args:
        decay: Weight of the previous average; the new weights have the rest.
        resume_from: Checkpoint directory to load the average from.
    """

    def __init__(self, decay: float, resume_from: str | None = None):
        self.decay, self.resume_from = decay, resume_from
        self.average: AveragedModel | None = None

    def _update(self, averaged: list[torch.Tensor], current: list[torch.Tensor], count: torch.Tensor) -> None:
        decay = min(self.decay, (1 + int(count)) / (10 + int(count)))
        with torch.no_grad():
            for ours, theirs in zip(averaged, current, strict=True):
                ours.lerp_(theirs, 1 - decay)

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, model: PreTrainedModel, **kwargs
    ) -> None:
        self.average = AveragedModel(model, multi_avg_fn=self._update)
        if self.resume_from:
            self._load(Path(self.resume_from))

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, model: PreTrainedModel, **kwargs
    ) -> None:
        self.average.update_parameters(model)

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs) -> None:
        if args.should_save:
            folder = Path(args.output_dir) / f"checkpoint-{state.global_step}"
            tensors = {name: value.contiguous() for name, value in self.average.module.named_parameters()}
            unfinished = folder / f"{AVERAGED_WEIGHTS}.unfinished"
            save_file(tensors, unfinished)
            unfinished.rename(folder / AVERAGED_WEIGHTS)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, model: PreTrainedModel, **kwargs
    ) -> None:
        if args.load_best_model_at_end and state.best_model_checkpoint:
            self._load(Path(state.best_model_checkpoint))
        with torch.no_grad():
            for parameter, averaged in zip(model.parameters(), self.average.module.parameters(), strict=True):
                parameter.copy_(averaged)
        self.average = None

    def _load(self, checkpoint: Path) -> None:
        path = checkpoint / AVERAGED_WEIGHTS
        if not path.is_file():
            raise InputError(f"{checkpoint} has no {AVERAGED_WEIGHTS}: it was not written with --ema_decay")
        tensors = load_file(path)
        with torch.no_grad():
            for name, averaged in self.average.module.named_parameters():
                averaged.copy_(tensors[name])
        steps = TrainerState.load_from_json(str(checkpoint / "trainer_state.json")).global_step
        self.average.n_averaged.fill_(steps)  # one update in each step

    @contextmanager
    def in_place_of(self, model: PreTrainedModel) -> Iterator[None]:
        """Inside the `with`, `model` has the averaged weights, if there are any yet; afterwards, its own again."""
        if self.average is None or int(self.average.n_averaged) == 0:
            yield
            return
        self._exchange(model)
        try:
            yield
        finally:
            self._exchange(model)

    def _exchange(self, model: PreTrainedModel) -> None:
        with torch.no_grad():
            for parameter, averaged in zip(model.parameters(), self.average.module.parameters(), strict=True):
                own = parameter.clone()
                parameter.copy_(averaged)
                averaged.copy_(own)
