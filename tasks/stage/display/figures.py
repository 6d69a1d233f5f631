"""Figures as PNG files whose bytes depend only on the numbers: no date, no version of the library.

They are transparent, with text in a grey that is legible on white and on nearly black: the same file appears in the
Prefect UI, which is dark, and in a model card, which usually isn't.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

GREY = "#85898f"  # 3.5 to 1 on white, 4.9 to 1 on the UI's background
BLUE, PALE, ORANGE = "#3d85c6", "#9cc4e8", "#e6761f"


def new_figure(height: float) -> Figure:
    """An empty figure 7 inches wide and `height` inches high."""
    # The object interface: pyplot would keep global state and look for a display
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, height), dpi=100, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def save_figure(figure: Figure, path: Path, dpi: int = 100) -> None:
    """Write a figure in the project's colours."""
    for axes in figure.axes:
        _colour(axes)
    figure.savefig(path, format="png", dpi=dpi, transparent=True, metadata={"Software": None})


def _colour(axes: Axes) -> None:
    axes.tick_params(which="both", colors=GREY)
    for spine in axes.spines.values():
        spine.set_edgecolor(GREY)
    legend = axes.get_legend()
    texts = [axes.title, axes.xaxis.label, axes.yaxis.label, *axes.texts, *(legend.get_texts() if legend else [])]
    for text in texts:
        text.set_color(GREY)


def plot_funnel(left: Mapping[str, int], path: Path, *, title: str, unit: str) -> None:
    """Draw how many each step removes, from top to bottom, with the number and its share of the first count.

    `left` is the count after each step, the first of which removed nothing. Bars of what is left would look alike."""
    first, *steps = left
    whole, counts = left[first], [left[first], *(left[step] for step in steps)]
    taken = [before - after for before, after in itertools.pairwise(counts)]
    figure = new_figure(1 + 0.24 * max(1, len(steps)))
    axes = figure.subplots()
    bars = axes.barh(steps, taken, color=BLUE)
    axes.bar_label(bars, [f"{count:,} ({count / max(1, whole):.1%})" for count in taken], padding=4, fontsize=8)
    axes.invert_yaxis()
    axes.margins(x=0.18)
    axes.set(xlabel=f"{unit} removed, of {whole:,}; {counts[-1]:,} left", title=title)
    axes.tick_params(labelsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    save_figure(figure, path)
