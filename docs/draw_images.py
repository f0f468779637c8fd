"""Draw the pictures of the README and of these pages that no trained model is needed for.

python docs/draw_images.py [DIRECTORY]

`where_a_token_goes.svg` is a drawing; `speed.svg` shows the results of `benchmarks/results/cpu`.
The pictures of attention and positions come from `tutorials/look_inside.py`.
"""

import json
import sys
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("agg")
from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch, Patch, Rectangle

DOCS = Path(__file__).resolve().parent
RESULTS = DOCS.parent / "benchmarks" / "results" / "cpu"

TEXTS = (("the", "cat", "sat", "on", "it"), ("a", "fine", "film"), ("good", "dog"))
COLOURS = ("#7fb3e6", "#f5b971", "#8fd19e")
PADDING, INK, FAINT = "#ececec", "#222222", "#777777"

OURS = "ours"
# besides those of transformers
NOT_MODELS = (OURS, "floor", "ours, all layers local", "torch", "x-transformers")

# Rows of the speed picture: what it says, and the fields of the result that it shows.
RACES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("encoder, small, 16×256", {"task": "encoder", "size": "small", "seq": 256, "lengths": "real"}),
    (
        "masked LM step, mini, 16×128, vocabulary 30,522",
        {"task": "mlm", "lengths": "real", "vocab_size": 30522},
    ),
    (
        "seq2seq step, mini, 32×96, vocabulary 8,192",
        {"task": "seq2seq", "seq": 96, "vocab_size": 8192},
    ),
    ("encoder, small, 8×128", {"task": "encoder", "size": "small", "seq": 128, "lengths": "full"}),
    ("encoder, tiny, 16×128", {"task": "encoder", "size": "tiny", "lengths": "full"}),
    (
        "masked LM step, mini, 16×128, vocabulary 30,522",
        {"task": "mlm", "size": "mini", "lengths": "full", "vocab_size": 30522},
    ),
    (
        "seq2seq step, mini, 16×64, vocabulary 8,192",
        {"task": "seq2seq", "size": "mini", "lengths": "full", "vocab_size": 8192},
    ),
    ("1×8192 tokens, sliding windows of 128", {"task": "local-layers"}),
    ("RoFormer's own weights, 1×4096 tokens", {"task": "roformer-weights"}),
)


def _cell(
    axes: Axes, x: float, y: float, width: float, height: float, colour: str, text: str = ""
) -> None:
    axes.add_patch(
        Rectangle((x, y), width, height, facecolor=colour, edgecolor="white", linewidth=1.5)
    )
    axes.text(x + width / 2, y + height / 2, text, ha="center", va="center", fontsize=8, color=INK)


def _heading(axes: Axes, x: float, title: str, shape: str, below: str) -> None:
    axes.text(x, 9.35, title, ha="center", va="bottom", fontsize=11, color=INK, weight="bold")
    axes.text(x, 9.2, shape, ha="center", va="top", fontsize=10, color=INK, family="monospace")
    axes.text(x, 0.55, below, ha="center", va="center", fontsize=8.5, color=FAINT)


def _arrow(axes: Axes, start: float, end: float, y: float = 5.1) -> None:
    axes.annotate(
        "", (end, y), (start, y), arrowprops={"arrowstyle": "-|>", "color": INK, "linewidth": 1.6}
    )


def _grid(axes: Axes, left: float, words: bool) -> None:
    """The batch as a rectangle of three rows, padded to the longest."""
    for row, (tokens, colour) in enumerate(zip(TEXTS, COLOURS, strict=True)):
        for column in range(5):
            is_real = column < len(tokens)
            text = (tokens[column] if words else "") if is_real else ("[PAD]" if words else "0")
            _cell(
                axes,
                left + 0.95 * column,
                6.2 - 1.3 * row,
                0.95,
                1.0,
                colour if is_real else PADDING,
                text,
            )


def where_a_token_goes() -> Figure:
    """Padded ids, the real tokens alone, the layers, and the padded layout restored."""
    figure, axes = pyplot.subplots(figsize=(13, 5.2), layout="constrained", facecolor="white")
    axes.set(xlim=(0, 26), ylim=(0, 10.4))
    axes.axis("off")

    _heading(axes, 2.7, "a padded batch", "(B, L) = (3, 5)", "15 places, 5 of them padding")
    _grid(axes, 0.3, words=True)
    _arrow(axes, 5.3, 7.2)

    _heading(
        axes, 8.6, "real tokens only", "(1, N, hidden), N = 10", "found once a batch:  padding.py"
    )
    colours = [colour for tokens, colour in zip(TEXTS, COLOURS, strict=True) for _ in tokens]
    for place, (word, colour) in enumerate(
        zip([word for text in TEXTS for word in text], colours, strict=True)
    ):
        _cell(axes, 7.5, 7.65 - 0.7 * place, 2.2, 0.7, colour, word)
    _arrow(axes, 9.95, 11.3)

    _heading(
        axes, 15.2, "every layer", "(1, N, hidden) → (1, N, hidden)", "modeling_roformer_lite.py"
    )
    axes.add_patch(
        FancyBboxPatch(
            (11.7, 1.35), 7.0, 7.1, boxstyle="round,pad=0.15", facecolor="#fafafa", edgecolor=FAINT
        )
    )
    for y, text in ((7.45, "norm, projections, rotation"), (1.55, "norm, feed-forward")):
        axes.add_patch(Rectangle((12.0, y), 6.4, 0.85, facecolor="#d9d2e9", edgecolor="white"))
        axes.text(
            15.2, y + 0.42, f"{text}: all N tokens at once", ha="center", va="center", fontsize=8.5
        )
    axes.text(
        15.2,
        6.55,
        "attention: by document (attention_functions.py)",
        ha="center",
        fontsize=8.5,
        color=INK,
    )
    for left, tokens, colour in zip((12.35, 15.35, 17.25), TEXTS, COLOURS, strict=True):
        for row in range(len(tokens)):
            for column in range(len(tokens)):
                _cell(axes, left + 0.55 * column, 5.55 - 0.55 * row, 0.55, 0.55, colour)
    _arrow(axes, 18.95, 20.4)

    _heading(
        axes, 23.2, "restored for the caller", "(B, L, hidden)", "zeros at padding:  padding.py"
    )
    _grid(axes, 20.75, words=False)
    return figure


def find_result(fields: dict[str, Any]) -> dict[str, Any]:
    """The one float32 result of `benchmarks/results/cpu` that has these fields."""
    results = [json.loads(path.read_text("utf-8")) for path in sorted(RESULTS.glob("*.json"))]
    fields = {"dtype": "float32", **fields}
    found = [
        result
        for result in results
        if all(result.get(name) == value for name, value in fields.items())
    ]
    if len(found) != 1:
        raise ValueError(f"{len(found)} results have {fields}; it must be one")
    return found[0]


def fastest_peer(result: dict[str, Any]) -> tuple[str, float]:
    """The fastest model of transformers in a result, and how many times as long as ours it
    takes."""
    peers = {
        name: row["times_ours"]
        for name, row in result["contenders"].items()
        if name not in NOT_MODELS
    }
    name = min(peers, key=peers.__getitem__)
    return name, peers[name]


def speed() -> Figure:
    """How many times as fast as the fastest model of transformers: a bar for each kind of work."""
    figure, axes = pyplot.subplots(figsize=(10, 4.0), layout="constrained", facecolor="white")
    for place, (_, fields) in enumerate(RACES):
        result = find_result(fields)
        peer, times = fastest_peer(result)
        axes.barh(
            place, times, color="#4a8ac6" if result["lengths"] == "real" else "#c3cfdb", height=0.7
        )
        axes.text(times + 0.04, place, f"{times:.2f} × {peer}", va="center", fontsize=9, color=INK)
    axes.set_yticks(range(len(RACES)), [label for label, _ in RACES], fontsize=9)
    axes.invert_yaxis()
    axes.set_xlim(0, 4.6)
    axes.axvline(1, color=INK, linewidth=1)
    axes.set_xlabel(
        "times as fast as the fastest model of transformers (1: the same speed)", fontsize=9
    )
    axes.set_title(
        "Version 0.1: real tokens a second on two CPU cores, float32", fontsize=11, loc="left"
    )
    axes.spines[["top", "right"]].set_visible(False)
    legend = [
        Patch(color="#4a8ac6", label="real lengths, with padding"),
        Patch(color="#c3cfdb", label="full rows"),
    ]
    axes.legend(handles=legend, loc="center right", fontsize=9, frameon=False)
    return figure


DRAWINGS = {"where_a_token_goes": where_a_token_goes, "speed": speed}


def main(directory: Path) -> None:
    # Letters as outlines look the same everywhere; without a date the file changes only with the
    # drawing.
    matplotlib.rcParams |= {
        "svg.fonttype": "path",
        "svg.hashsalt": "hf_roformer_lite",
        "font.family": "DejaVu Sans",
    }
    directory.mkdir(parents=True, exist_ok=True)
    for name, draw in DRAWINGS.items():
        figure = draw()
        figure.savefig(directory / f"{name}.svg", metadata={"Date": None}, facecolor="white")
        pyplot.close(figure)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else DOCS / "images")
