"""Pictures of confusion matrices and of the reliability of scores."""

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np

# A picture with more labels would be illegible.
MAX_LABELS = 25
# Longer labels are cut.
MAX_CHARACTERS = 24
_CHINESE_FONTS = re.compile("CJK|YaHei|PingFang|WenQuanYi|SimHei|Hiragino")


def most_confused(true: Sequence[str], predicted: Sequence[str]) -> list[str]:
    """The labels that a picture can show, in alphabetical order: those of the most frequent
    confusions, and others if there is room."""
    pairs = Counter(zip(true, predicted, strict=True))
    confused = [pair for pair, _ in pairs.most_common() if pair[0] != pair[1]]
    labels = dict.fromkeys(label for pair in confused for label in pair)
    labels |= dict.fromkeys(sorted({*true, *predicted}))
    return sorted(list(labels)[:MAX_LABELS])


def draw_confusion(true: Sequence[str], predicted: Sequence[str], path: Path) -> None:
    """Draw a confusion matrix of the labels that are confused most.

    A cell is the share of the shown rows with this true label, so that a rare label is as visible as
    a frequent one.

    Args:
        true, predicted: The labels of each row.
        path: The PNG file to write.
    """
    # Unlike pyplot, this needs no display and keeps no global state.
    from matplotlib.figure import Figure
    from sklearn.metrics import ConfusionMatrixDisplay, accuracy_score

    labels = most_confused(true, predicted)
    size = 2.5 + 0.36 * len(labels)
    figure = Figure(figsize=(size + 1.5, size), layout="constrained")
    shown = ConfusionMatrixDisplay.from_predictions(
        true,
        predicted,
        labels=labels,
        display_labels=list(map(_cut, labels)),
        normalize="true",
        values_format=".0%",
        ax=figure.subplots(),
        cmap="Blues",
        colorbar=False,
        xticks_rotation="vertical",
        text_kw={"fontsize": 6},
    )
    axes = shown.ax_
    fonts = _fonts()
    for text in (*axes.get_xticklabels(), *axes.get_yticklabels()):
        text.set(fontfamily=fonts, parse_math=False, fontsize=8)
    right = accuracy_score(true, predicted, normalize=False)
    axes.set_title(f"{int(right):,} of {len(true):,} correct", fontsize=10)
    axes.set(xlabel="predicted", ylabel="true")
    figure.savefig(path, dpi=120)


def draw_reliability(scores: np.ndarray, right: np.ndarray, path: Path) -> None:
    """Draw the accuracy of the predictions against their mean confidence, for ten bins of the same
    size, or fewer if many scores are equal. Both are equal on the diagonal.

    Args:
        scores: The score of each prediction from 0 to 1, `(rows,)`.
        right: Whether each prediction is right, `(rows,)`.
        path: The PNG file to write.
    """
    from matplotlib.figure import Figure
    from sklearn.calibration import CalibrationDisplay

    figure = Figure(figsize=(4, 4), layout="constrained")
    shown = CalibrationDisplay.from_predictions(
        right.astype(int), scores.clip(0, 1), n_bins=10, strategy="quantile", ax=figure.subplots()
    )
    # Markers at 0 and 1 stay clear of the frame.
    shown.ax_.set(xlabel="confidence", ylabel="accuracy", xlim=(-0.05, 1.05), ylim=(-0.05, 1.05))
    title = f"predictions: {len(scores):,}, bins of equal size: {len(shown.prob_pred)}"
    shown.ax_.set_title(title, fontsize=10)
    shown.ax_.get_legend().remove()
    figure.savefig(path, dpi=120)


def _fonts() -> list[str]:
    """matplotlib's own font, followed by the installed fonts for Chinese, Japanese and Korean."""
    from matplotlib.font_manager import fontManager

    installed = {font.name for font in fontManager.ttflist}
    return ["DejaVu Sans", *sorted(filter(_CHINESE_FONTS.search, installed))]


def _cut(label: str) -> str:
    return label if len(label) <= MAX_CHARACTERS else f"{label[: MAX_CHARACTERS - 1]}…"
