"""The picture of the reliability of scores."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from .report import Outcome


def draw_reliability(outcomes: Sequence[Outcome], path: Path) -> None:
    """Draw the accuracy of the predictions against their mean confidence, for ten bins of the same
    size, or fewer if many scores are equal. Both are equal on the diagonal. Nothing is drawn if the
    predictions have no scores.

    Args:
        outcomes: The predictions.
        path: The PNG file to write.
    """
    # Unlike pyplot, this needs no display and keeps no global state.
    from matplotlib.figure import Figure
    from sklearn.calibration import CalibrationDisplay

    scored = [outcome.score for outcome in outcomes if outcome.score is not None]
    if not scored:
        return
    # A sum of probabilities may be rounded to more than 1.
    scores = np.clip(scored, 0, 1)
    right = [outcome.severity == 0 for outcome in outcomes]
    figure = Figure(figsize=(4, 4), layout="constrained")
    shown = CalibrationDisplay.from_predictions(
        right, scores, n_bins=10, strategy="quantile", ax=figure.subplots()
    )
    # Markers at 0 and 1 stay clear of the frame.
    shown.ax_.set(xlabel="confidence", ylabel="accuracy", xlim=(-0.05, 1.05), ylim=(-0.05, 1.05))
    title = f"predictions: {len(scores):,}, bins: {len(shown.prob_pred)}"
    shown.ax_.set_title(title, fontsize=10)
    shown.ax_.get_legend().remove()
    figure.savefig(path, dpi=120)
