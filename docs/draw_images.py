"""Draw the pictures of the README and of these pages that no trained model is needed for.

python docs/draw_images.py [DIRECTORY]

`where_a_token_goes.svg` and `documents.svg` are drawings of the mechanism. `padding_free.svg` and
`speed.svg` show the figures in the tables of `speed.md`, which `python -m benchmarks padding_free`
and `python -m benchmarks trainers` measure.
The pictures of attention and positions come from `tutorials/look_inside.py`.
"""

import re
import sys
from pathlib import Path

import matplotlib

matplotlib.use("agg")
from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch, Rectangle

DOCS = Path(__file__).resolve().parent
SPEED_PAGE = DOCS / "speed.md"
sys.path.insert(0, str(DOCS.parent))
from benchmarks.padding_free import speed_up_figure  # noqa: E402

TEXTS = (("a", "fine", "film"), ("good", "dog"), ("the", "cat", "sat", "on", "it"))
COLOURS = ("#f5b971", "#8fd19e", "#7fb3e6")
# The documents of the second drawing, A and B in one sequence and C in another: their tokens in the
# decoder and in the encoder.
TARGETS = {"A": 3, "B": 2, "C": 4}
SOURCES = {"A": 5, "B": 3, "C": 2}
COLOUR_OF = dict(zip(TARGETS, COLOURS, strict=True))
PADDING, INK, FAINT = "#ececec", "#222222", "#777777"


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


def _arrow(axes: Axes, start: float, end: float, y: float = 5.1, text: str = "") -> None:
    """An arrow to the right, with a text below it."""
    style = {"arrowstyle": "-|>", "color": INK, "linewidth": 1.6}
    axes.annotate("", (end, y), (start, y), arrowprops=style)
    middle = (start + end) / 2
    axes.text(middle, y - 0.3, text, ha="center", va="top", fontsize=8.5, color=INK)


def _grid(axes: Axes, left: float, words: bool) -> None:
    """The batch as a rectangle of three rows, padded to the longest."""
    for row, (tokens, colour) in enumerate(zip(TEXTS, COLOURS, strict=True)):
        cells = [(colour, token if words else "") for token in tokens]
        padding = (PADDING, "[PAD]" if words else "0")
        cells += [padding] * (5 - len(tokens))
        for column, (colour_of_cell, text) in enumerate(cells):
            _cell(axes, left + 0.95 * column, 6.2 - 1.3 * row, 0.95, 1.0, colour_of_cell, text)


def where_a_token_goes() -> Figure:
    """A batch, its flat sequence within a layer, and the batch again."""
    figure, axes = pyplot.subplots(figsize=(15, 5.4), layout="constrained", facecolor="white")
    axes.set(xlim=(0, 30), ylim=(-0.6, 10.4))
    axes.axis("off")
    texts = zip(TEXTS, COLOURS, strict=True)
    documents = sorted(texts, key=lambda text: len(text[0]), reverse=True)

    _heading(axes, 2.7, "a batch", "(B, L) = (3, 5)", "15 positions, 5 of them padding")
    _grid(axes, left=0.3, words=True)
    _arrow(axes, 5.3, 8.0, text="embeddings,\npositions, masks:\nof the batch")

    _heading(axes, 9.3, "collect tokens", "(1, N, hidden), N = 10", "the longest document first")
    words = [(word, colour) for tokens, colour in documents for word in tokens]
    for place, (word, colour) in enumerate(words):
        _cell(axes, 8.2, 7.65 - 0.7 * place, 2.2, 0.7, colour, word)
    _arrow(axes, 10.65, 12.0)

    _heading(
        axes, 15.9, "layer", "(1, N, hidden) → (1, N, hidden)", "no scores between two documents"
    )
    axes.add_patch(
        FancyBboxPatch(
            (12.4, 1.35), 7.0, 7.1, boxstyle="round,pad=0.15", facecolor="#fafafa", edgecolor=FAINT
        )
    )
    for y, text in ((7.45, "norm, projections, rotation"), (1.55, "norm, feed-forward")):
        axes.add_patch(Rectangle((12.7, y), 6.4, 0.85, facecolor="#d9d2e9", edgecolor="white"))
        axes.text(
            15.9, y + 0.42, f"{text}: all N tokens at once", ha="center", va="center", fontsize=8.5
        )
    axes.text(15.9, 6.55, "attention: document by document", ha="center", fontsize=8.5, color=INK)
    for left, (tokens, colour) in zip((13.05, 16.05, 17.95), documents, strict=True):
        for row in range(len(tokens)):
            for column in range(len(tokens)):
                _cell(axes, left + 0.55 * column, 5.55 - 0.55 * row, 0.55, 0.55, colour)
    _arrow(axes, 19.7, 21.0)

    _heading(axes, 23.6, "restore the batch", "(B, L, hidden)", "zeros at padding")
    _grid(axes, left=21.2, words=False)
    _arrow(axes, 26.2, 29.2, text="last norm,\npooling, head:\nof the batch")

    corners = ((23.6, 0.2), (23.6, -0.1), (9.3, -0.1), (9.3, 0.2))
    axes.plot(*zip(*corners[:3], strict=True), color=FAINT, linewidth=1.2)
    style = {"arrowstyle": "-|>", "color": FAINT, "linewidth": 1.2}
    axes.annotate("", corners[3], corners[2], arrowprops=style)
    text = "the next layer takes the flat sequence that is already there"
    axes.text(15.9, 0.05, text, ha="center", va="bottom", fontsize=8.5, color=FAINT)
    return figure


def _frame(axes: Axes, left: float, top: float, width: float, height: float) -> None:
    style = {"facecolor": "none", "edgecolor": FAINT, "linewidth": 0.8}
    # The edges of cells do not cover a frame that is drawn above them.
    axes.add_patch(Rectangle((left, top - height), width, height, zorder=2, **style))


def _block(
    axes: Axes, corner: tuple[float, float], name: str, keys: int, is_causal: bool, size: float = 1
) -> None:
    """The scores of one document, whose upper left corner is at `corner`."""
    left, top = corner
    for query in range(TARGETS[name]):
        for key in range(min(query + 1, keys) if is_causal else keys):
            _cell(axes, left + size * key, top - size * (query + 1), size, size, COLOUR_OF[name])


def _flat_scores(axes: Axes, left: float, title: str, sources: dict[str, int]) -> None:
    """The scores of the flat sequence: a block for each document, the longest first."""
    is_causal = sources is TARGETS
    num_keys = sum(sources.values())
    symbol = "N" if is_causal else "M"
    _frame(axes, left, 9, num_keys, 9)
    x = left
    y = 9.0
    for name in sorted(TARGETS, key=TARGETS.__getitem__, reverse=True):
        _block(axes, (x, y), name, sources[name], is_causal)
        axes.text(left - 0.4, y - TARGETS[name] / 2, name, ha="center", va="center", fontsize=10)
        axes.text(x + sources[name] / 2, 9.2, name, ha="center", va="bottom", fontsize=10)
        x += sources[name]
        y -= TARGETS[name]
    middle = left + num_keys / 2
    axes.text(middle, 11.0, title, ha="center", va="bottom", fontsize=11, color=INK, weight="bold")
    shape = f"N = 9 queries, {symbol} = {num_keys} keys"
    axes.text(middle, 10.9, shape, ha="center", va="top", fontsize=9, family="monospace")


def documents() -> Figure:
    """Documents read off a causal mask; the blocks of self-attention and of cross-attention."""
    figure, axes = pyplot.subplots(figsize=(13, 5), layout="constrained", facecolor="white")
    axes.set(xlim=(-4, 34), ylim=(-1.4, 12))
    axes.set_aspect("equal")
    axes.axis("off")
    size = 0.8

    axes.text(2, 11.0, "the causal mask", ha="center", va="bottom", fontsize=11, weight="bold")
    axes.text(
        2, 10.9, "(B, L, L) = (2, 5, 5)", ha="center", va="top", fontsize=9, family="monospace"
    )
    for top, text in ((9, "sequence 1:\nA and B"), (4, "sequence 2:\nC and\npadding")):
        _frame(axes, 0, top, 5 * size, 5 * size)
        axes.text(-0.3, top - 2.5 * size, text, ha="right", va="center", fontsize=9)
    _block(axes, (0, 9), "A", 3, is_causal=True, size=size)
    _block(axes, (3 * size, 9 - 3 * size), "B", 2, is_causal=True, size=size)
    _block(axes, (0, 4), "C", 4, is_causal=True, size=size)
    axes.text(2.5 * size, 9 - 3.5 * size, "×", ha="center", va="center", fontsize=13)
    text = "× B begins where a token\ndoes not see the one before it"
    axes.text(2, -0.2, text, ha="center", va="top", fontsize=8.5, color=FAINT)
    _arrow(axes, 5.2, 7.6, y=4.5)

    _flat_scores(axes, 9.2, "self-attention of the flat sequence", TARGETS)
    text = "one block for each document,\nthe longest first"
    axes.text(13.7, -0.2, text, ha="center", va="top", fontsize=8.5, color=FAINT)
    _flat_scores(axes, 22, "cross-attention", SOURCES)
    text = "the sources in the order of the\ndecoder's documents"
    axes.text(27, -0.2, text, ha="center", va="top", fontsize=8.5, color=FAINT)
    return figure


def padding_free() -> Figure:
    """The speed-ups of the training step in the first table of `speed.md`."""
    row = re.compile(r"^\| (.*?) \| ([\d.]+)× \| ([\d.]+)× \|", re.MULTILINE)
    rows = row.findall(SPEED_PAGE.read_text("utf-8"))
    return speed_up_figure(
        {
            "shuffled batches": {name: float(shuffled) for name, shuffled, _ in rows},
            "batches grouped by length": {name: float(grouped) for name, _, grouped in rows},
        },
        work="a training step",
    )


def speed() -> Figure:
    """The speed-ups of whole trainings in the second table of `speed.md`."""
    row = re.compile(r"^\| ([^|]+) \| (?:\d+ \| )?([\d.]+)× \|$", re.MULTILINE)
    rows = row.findall(SPEED_PAGE.read_text("utf-8"))
    speed_ups = {name.replace("`", ""): float(speed_up) for name, speed_up in rows}
    return speed_up_figure({"shuffled texts": speed_ups}, work="the whole run")


DRAWINGS = {
    "where_a_token_goes": where_a_token_goes,
    "documents": documents,
    "padding_free": padding_free,
    "speed": speed,
}


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
