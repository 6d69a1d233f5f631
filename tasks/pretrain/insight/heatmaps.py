"""Heatmaps of layers by steps, one per measure: at which depth, and when, does something go wrong?"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tasks.stage.display.figures import new_figure, save_figure
from tasks.stage.display.pages import MAX_PLOT_BYTES

PANELS = {
    "rms": "RMS of the output, log10",
    "gradient_norm": "norm of the gradient, log10",
    "update_ratio": "update / weights, log10",
    "entropy": "attention entropy, nats",
}
MAX_STEPS = 100  # columns: with more records every n-th is drawn
ROW, PANEL = 0.12, 3.0  # inches per layer, and per panel at most, so that a deep model's picture stays small


def plot_heatmaps(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Draw the rows of insight.jsonl. Measures that no row has are left out."""
    from matplotlib import colormaps

    rows = rows[:: -(-len(rows) // MAX_STEPS)]
    panels = {name: _layers(rows, name) for name in PANELS}
    panels = {name: layers for name, layers in panels.items() if layers}
    heights = [0.6 + min(PANEL, ROW * len(layers)) for layers in panels.values()]
    figure = new_figure(0.8 + sum(heights))
    grid = figure.subplots(len(panels), 1, squeeze=False, sharex=True, height_ratios=heights)[:, 0]
    colours = colormaps["viridis"].resampled(24)  # fewer colours make a smaller file
    for axes, (name, layers) in zip(grid, panels.items(), strict=True):
        values = [[_value(row, layer, name) for row in rows] for layer in layers]
        image = axes.imshow(values, aspect="auto", interpolation="nearest", cmap=colours)
        axes.set_title(PANELS[name], fontsize=9)
        stride = -(-len(layers) * ROW // PANEL)
        axes.set_yticks(range(0, len(layers), int(stride)), layers[:: int(stride)], fontsize=6)
        figure.colorbar(image, ax=axes)
    shown = range(0, len(rows), -(-len(rows) // 8))
    grid[-1].set_xticks(shown, [rows[number]["step"] for number in shown], fontsize=7)
    grid[-1].set_xlabel("step")
    for dpi in (100, 60):  # coarser where it would be too large to be shown
        save_figure(figure, path, dpi)
        if path.stat().st_size <= MAX_PLOT_BYTES:
            break


def plot_loads(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Draw the share of each expert by step, a panel for each router: rows of insight.jsonl that have them."""
    rows = rows[:: -(-len(rows) // MAX_STEPS)]
    routers = list(rows[-1]["routers"])
    figure = new_figure(0.8 + PANEL / 2 * len(routers))
    grid = figure.subplots(len(routers), 1, squeeze=False, sharex=True)[:, 0]
    for axes, name in zip(grid, routers, strict=True):
        loads = [row["routers"][name]["load"] for row in rows]
        axes.stackplot([row["step"] for row in rows], *zip(*loads, strict=True))
        axes.set_title(f"{name}, share of each expert", fontsize=9)
        axes.set_ylim(0, 1)
    grid[-1].set_xlabel("step")
    for dpi in (100, 60):
        save_figure(figure, path, dpi)
        if path.stat().st_size <= MAX_PLOT_BYTES:
            break


def _layers(rows: Sequence[Mapping[str, Any]], name: str) -> list[str]:
    newest = rows[-1]["layers"].items()
    return [layer for layer, stats in newest if name in stats and not layer.endswith("_norm")]


def _value(row: Mapping[str, Any], layer: str, name: str) -> float:
    value = row["layers"].get(layer, {}).get(name)
    if value is None:
        return math.nan
    if name == "entropy":
        return float(value)
    return math.log10(value) if value > 0 else math.nan
