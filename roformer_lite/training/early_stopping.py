"""Stops a training that no longer gets better on the validation data, and says what happened."""

from collections.abc import Sequence
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments


class EarlyStopping(TrainerCallback):
    """Stops after `patience` evaluations without a better figure (`metric_for_best_model`).

    transformers' own callback counts in an attribute, which a resumed training loses. Here the figures that are
    counted are those of the log, which every checkpoint holds.
    """

    def __init__(self, patience: int):
        self.patience = patience

    def on_evaluate(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        figures = [value for _, value in validation_figures(state.log_history, args.metric_for_best_model)]
        if figures and len(figures) - 1 - best_place(figures, args.greater_is_better) >= self.patience:
            control.should_training_stop = True


def validation_figures(history: Sequence[dict[str, float]], metric: str) -> list[tuple[dict[str, float], float]]:
    """The entries of a log that hold `metric`, with its value."""
    name = f"eval_{metric.removeprefix('eval_')}"
    return [(entry, entry[name]) for entry in history if name in entry]


def best_place(figures: Sequence[float], greater_is_better: bool) -> int:
    """Where the best figure is; the first of equal ones."""
    return figures.index(max(figures) if greater_is_better else min(figures))


def what_happened(history: Sequence[dict[str, float]], metric: str, greater_is_better: bool, epochs: float) -> str:
    """A sentence on a training whose best checkpoint was kept, for the summary and the card.

    Args:
        history: `log_history` of a `TrainerState`.
        metric: By which the best checkpoint was chosen.
        greater_is_better: Whether a greater figure is a better one.
        epochs: How many were asked for.
    """
    measured = validation_figures(history, metric)
    if not measured:
        return ""
    best, figure = measured[best_place([value for _, value in measured], greater_is_better)]
    name = metric.removeprefix("eval_").replace("_", " ")
    text = f"The model of epoch {best['epoch']:.4g}, step {best['step']:,}, is kept: its validation {name} is best"
    text += f", {figure:.4g}."
    last = measured[-1][0]
    if last["epoch"] < epochs - 0.5:
        text += f" Training stopped after epoch {last['epoch']:.4g}, as it no longer helped."
    losses = validation_figures(history, "loss")
    lowest = losses[best_place([loss for _, loss in losses], False)][0] if losses else None
    if losses and lowest is not losses[-1][0]:
        text += f" The validation loss has risen since epoch {lowest['epoch']:.4g}."
    elif best is last:
        text += " It was still getting better: a longer training may help."
    return text
