"""Draws curves of several contenders as SVG, with all panels in one row, or four in two rows."""

import math
from dataclasses import dataclass
from pathlib import Path


@dataclass
class Panel:
    """The curves of one quantity. `curves` contains the points `(x, y)` of each contender."""

    title: str
    x_label: str
    curves: dict[str, list[tuple[float, float]]]
    is_logarithmic: bool = False


def draw(panels: list[Panel], path: Path) -> None:
    """Draw `panels` with a common legend. Equal panels give equal files."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    settings = {"svg.fonttype": "path", "svg.hashsalt": "hf_roformer_lite", "font.size": 8}
    with matplotlib.rc_context(settings):
        rows = 2 if len(panels) == 4 else 1
        columns = len(panels) // rows
        names = list(panels[0].curves)
        legend_columns = min(len(names), 2 * columns)
        legend_rows = math.ceil(len(names) / legend_columns)
        width = 4.4 * columns
        height = 3.2 * rows + 0.2 + 0.2 * legend_rows
        figure, axes = pyplot.subplots(
            rows, columns, figsize=(width, height), squeeze=False, layout="constrained"
        )
        for axis, panel in zip(axes.flat, panels, strict=True):
            for name, points in panel.curves.items():
                axis.plot(
                    *zip(*points, strict=True), marker="o", markersize=3, linewidth=1.2, label=name
                )
            axis.set_title(panel.title, fontsize=9)
            axis.set_xlabel(panel.x_label)
            if panel.is_logarithmic:
                axis.set_xscale("log", base=2)
                axis.set_yscale("log")
            axis.grid(alpha=0.3)
        handles, _ = axes[0][0].get_legend_handles_labels()
        figure.legend(
            handles, names, loc="outside lower center", ncols=legend_columns, frameon=False
        )
        figure.savefig(path, metadata={"Date": None}, facecolor="white")
        pyplot.close(figure)
