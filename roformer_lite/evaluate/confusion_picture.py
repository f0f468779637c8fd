"""Pictures of confusion matrices and of the reliability of scores."""

import operator
import re
from collections import Counter
from collections.abc import Sequence
from itertools import chain
from pathlib import Path

import numpy as np

# A picture with more labels would be illegible.
MAX_LABELS = 25
_OTHER = "(other)"
# Longer labels are cut.
MAX_CHARACTERS = 24
_CHINESE_FONTS = re.compile("CJK|YaHei|PingFang|WenQuanYi|SimHei|Hiragino")


def confusion_counts(true: Sequence[str], predicted: Sequence[str]) -> tuple[np.ndarray, list[str]]:
    """Count the predicted labels for each true label.

    Returns:
        The counts `(true, predicted)`, and the labels. If there are more labels than a picture can
        show, these are the most confused ones, and all others share the last row and column.
    """
    from sklearn.metrics import confusion_matrix

    labels = sorted({*true, *predicted})
    if len(labels) > MAX_LABELS:
        pairs = zip(true, predicted, strict=True)
        confused = Counter(pair for pair in pairs if pair[0] != pair[1]).most_common()
        first = dict.fromkeys(chain.from_iterable(pair for pair, _ in confused))
        # Labels that are never confused take the places that remain.
        kept = set([*first, *labels][: MAX_LABELS - 1])
        true = [label if label in kept else _OTHER for label in true]
        predicted = [label if label in kept else _OTHER for label in predicted]
        labels = [*sorted(kept), _OTHER]
    return confusion_matrix(true, predicted, labels=labels), labels


def draw_confusion(true: Sequence[str], predicted: Sequence[str], path: Path) -> None:
    """Draw a confusion matrix.

    The number in a cell is the count. Its colour is the share of its row, so that a rare label is
    as visible as a frequent one.

    Args:
        true, predicted: The labels of each row.
        path: The PNG file to write.
    """
    # Unlike pyplot, this needs no display and keeps no global state.
    from matplotlib.figure import Figure
    from sklearn.metrics import ConfusionMatrixDisplay

    counts, labels = confusion_counts(true, predicted)
    size = 2.5 + 0.36 * len(labels)
    figure = Figure(figsize=(size + 1.5, size), layout="constrained")
    shown = ConfusionMatrixDisplay(
        counts / np.maximum(counts.sum(1, keepdims=True), 1),
        display_labels=[label[:MAX_CHARACTERS] for label in labels],
    )
    shown.plot(
        ax=figure.subplots(),
        cmap="Blues",
        colorbar=False,
        xticks_rotation="vertical",
        text_kw={"fontsize": 7},
        im_kw={"vmin": 0, "vmax": 1},
    )
    for text, count in zip(shown.text_.flat, counts.flat, strict=True):
        text.set_text(f"{count:,}" if count else "")
    axes = shown.ax_
    axes.set(xlabel="predicted", ylabel="true")
    fonts = _fonts()
    for text in (*axes.get_xticklabels(), *axes.get_yticklabels()):
        text.set(fontfamily=fonts, parse_math=False, fontsize=8)
    right = sum(map(operator.eq, predicted, true))
    title = f"{right:,} of {len(true):,} right"
    num_labels = len({*true, *predicted})
    if num_labels > MAX_LABELS:
        title += f"; {len(labels) - 1} of {num_labels} labels, those confused most"
    axes.set_title(title, fontsize=10)
    figure.savefig(path, dpi=120)


def draw_reliability(scores: np.ndarray, right: np.ndarray, path: Path) -> None:
    """Draw the fraction of right predictions against their mean score, for ten groups of the same
    size. Both are equal on the diagonal.

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
    shown.ax_.set(
        xlabel="score of the answer",
        ylabel="fraction that is right",
        xlim=(0, 1.02),
        ylim=(0, 1.02),
    )
    shown.ax_.get_legend().remove()
    figure.savefig(path, dpi=120)


def _fonts() -> list[str]:
    """matplotlib's own font, followed by the installed fonts for Chinese, Japanese and Korean."""
    from matplotlib.font_manager import fontManager

    installed = {font.name for font in fontManager.ttflist}
    return ["DejaVu Sans", *sorted(filter(_CHINESE_FONTS.search, installed))]
