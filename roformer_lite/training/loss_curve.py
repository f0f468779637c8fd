"""A plot of the loss over the training."""

from pathlib import Path


def draw_loss_curve(history: list[dict[str, float]], path: Path, chosen_step: int | None = None) -> None:
    """Plot training and validation loss against the step.

    Args:
        history: `log_history` of a `TrainerState`.
        path: The PNG file to write.
        chosen_step: The step of the checkpoint that is kept, marked by a line.
    """
    from matplotlib.figure import Figure  # not pyplot: needs no display and keeps no global state

    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    for key, label in (("loss", "training"), ("eval_loss", "validation")):
        points = [(entry["step"], entry[key]) for entry in history if key in entry]
        if points:
            axes.plot(*zip(*points, strict=True), label=label, marker="." if len(points) < 30 else None)
    if chosen_step is not None:
        axes.axvline(chosen_step, linestyle="--", color="gray", label="the model that is kept")
    axes.set_xlabel("step")
    axes.set_ylabel("loss")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=120)
