"""A picture of the labels that a model confuses."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

_MOST = 25  # labels of a picture that can be read
_OTHER = "(other)"
_LONGEST = 24  # characters of a label
_CHINESE_FONTS = re.compile("CJK|YaHei|PingFang|WenQuanYi|SimHei|Hiragino")


def confusion_matrix(true: Sequence[str], predicted: Sequence[str]) -> tuple[np.ndarray, list[str]]:
    """How often each label was answered for each true one.

    Returns:
        The counts `(true, predicted)`, and the labels. With more labels than a picture can show, those of the most
        frequent confusions; all others are counted together, in the last row and column.
    """
    labels = sorted({*true, *predicted})
    numbers = {label: number for number, label in enumerate(labels)}
    counts = np.zeros((len(labels), len(labels)), dtype=np.int64)
    np.add.at(counts, ([numbers[label] for label in true], [numbers[label] for label in predicted]), 1)
    if len(labels) <= _MOST:
        return counts, labels
    kept = sorted(_most_confused(counts, _MOST - 1))
    place = np.full(len(labels), len(kept))
    place[kept] = np.arange(len(kept))
    merged = np.zeros((len(kept) + 1, len(kept) + 1), dtype=np.int64)
    np.add.at(merged, (place[:, None], place[None, :]), counts)
    return merged, [*(labels[number] for number in kept), _OTHER]


def _most_confused(counts: np.ndarray, number: int) -> list[int]:
    """The labels of the largest counts beside the diagonal."""
    mistakes = counts - np.diag(np.diag(counts))
    order = np.argsort(-mistakes, axis=None, kind="stable")
    pairs = zip(*np.unravel_index(order, counts.shape), strict=True)
    kept: dict[int, None] = {}
    for pair in pairs:
        kept.update(dict.fromkeys(map(int, pair)))
        if len(kept) >= number:
            break
    return list(kept)[:number]


def draw_confusion(true: Sequence[str], predicted: Sequence[str], path: Path) -> dict[str, str]:
    """Draw a confusion matrix.

    The colour of a cell is its share of its row, so that a rare label is as visible as a frequent one; the number in
    it is the count. A label with a character that no font of this machine has is drawn as its number, in the order of
    the alphabet.

    Args:
        true, predicted: Labels, one for each decision.
        path: The PNG file to write.

    Returns:
        The labels that are drawn as numbers, by these numbers.
    """
    from matplotlib.figure import Figure  # not pyplot: needs no display and keeps no global state

    counts, labels = confusion_matrix(true, predicted)
    everything = sorted({*true, *predicted})
    fonts = _fonts()
    known = _characters(fonts)
    names = [_name(label, everything, known) for label in labels]
    size = 2.5 + 0.36 * len(labels)
    figure = Figure(figsize=(size + 1.5, size), layout="constrained")
    axes = figure.subplots()
    shares = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    for row, column in zip(*counts.nonzero(), strict=True):
        colour = "white" if shares[row, column] > 0.5 else "black"
        axes.text(column, row, f"{counts[row, column]:,}", ha="center", va="center", color=colour, fontsize=7)
    text: dict[str, Any] = {"fontfamily": fonts, "parse_math": False, "fontsize": 8}
    axes.set_xticks(range(len(labels)), names, rotation=90, **text)
    axes.set_yticks(range(len(labels)), names, **text)
    axes.set_xlabel("predicted")
    axes.set_ylabel("true")
    right = sum(ours == theirs for ours, theirs in zip(predicted, true, strict=True))
    part = f"; {len(labels) - 1} of {len(everything)} labels, those confused most" if len(everything) > _MOST else ""
    axes.set_title(f"{right:,} of {len(true):,} right{part}", fontsize=10)
    figure.savefig(path, dpi=120)
    return {name: label for name, label in zip(names, labels, strict=True) if name.startswith("#") and name != label}


def _fonts() -> list[str]:
    """matplotlib's own font, and after it those of Chinese, Japanese and Korean that are installed."""
    from matplotlib.font_manager import fontManager

    return ["DejaVu Sans", *sorted({font.name for font in fontManager.ttflist if _CHINESE_FONTS.search(font.name)})]


def _characters(fonts: Sequence[str]) -> set[int]:
    from matplotlib.font_manager import findfont, get_font

    return {code for font in fonts for code in get_font(findfont(font)).get_charmap()}


def _name(label: str, everything: Sequence[str], known: set[int]) -> str:
    if not all(ord(character) in known for character in label):
        return f"#{everything.index(label) + 1}"
    return label if len(label) <= _LONGEST else label[: _LONGEST - 1] + "…"
