"""Figures as PNG files whose bytes depend on the numbers alone: no date, no version of the library."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def new_figure(height: float) -> Figure:
    """An empty figure 7 inches wide and `height` inches high."""
    # The object interface: pyplot would keep global state and look for a display
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, height), dpi=100, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def plot_funnel(left: Mapping[str, int], path: Path, *, title: str, unit: str) -> None:
    """Draw what is left after each step, from top to bottom."""
    figure = new_figure(1 + 0.22 * len(left))
    axes = figure.subplots()
    axes.barh(list(left), list(left.values()), color="#2171b5")
    axes.invert_yaxis()
    axes.set(xlabel=unit, title=title)
    axes.tick_params(labelsize=8)
    figure.savefig(path, format="png", metadata={"Software": None})
