"""Curves of losses and other measures as PNG files."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tasks.stage.display.figures import BLUE, GREY, ORANGE, PALE, new_figure, save_figure

SMOOTHED_ABOVE = 100  # rows
SEVERAL = 2  # rewards: one is the curve of the sum


def plot_loss(
    rows: Sequence[Mapping[str, Any]],
    path: Path,
    *,
    title: str,
    unit: str = "loss (nats a token)",
    measure: str = "loss",
) -> None:
    """Draw `loss` or another measure over `step`, and the same of validations, from the rows that have them."""
    figure = new_figure(4)
    axes = figure.subplots()
    _draw(axes, rows, measure)
    axes.set(xlabel="step", ylabel=unit, title=title)
    axes.legend(frameon=False)
    save_figure(figure, path)


def plot_measures(rows: Sequence[Mapping[str, Any]], path: Path, *, title: str, measures: Sequence[str]) -> None:
    """Draw those of the measures that the rows have, each in its own axes, two in a line."""
    known = [name for name in measures if any(name in row for row in rows)]
    figure = new_figure(1.9 * math.ceil(len(known) / 2))
    grid = figure.subplots(math.ceil(len(known) / 2), 2, squeeze=False, sharex=True)
    for axes, name in zip(grid.flat, known, strict=False):
        _draw(axes, rows, name)
        axes.set_title(name.replace("_", " "), fontsize="medium")
    for axes in grid.flat[len(known) :]:
        axes.set_axis_off()
    figure.suptitle(title, color=GREY)
    save_figure(figure, path)


def _draw(axes: Any, rows: Sequence[Mapping[str, Any]], measure: str) -> None:
    trained = [row for row in rows if measure in row]
    steps, values = [row["step"] for row in trained], [row[measure] for row in trained]
    smooth = len(trained) > SMOOTHED_ABOVE
    axes.plot(steps, values, color=PALE if smooth else BLUE, linewidth=1, label=None if smooth else "training")
    if smooth:
        axes.plot(steps, _smoothed(values), color=BLUE, linewidth=1.5, label="training, smoothed")
    held_out = f"validation_{measure}"
    validated = [row for row in rows if held_out in row]
    if validated:
        axes.plot(
            [row["step"] for row in validated],
            [row[held_out] for row in validated],
            color=ORANGE,
            marker="o",
            markersize=4,
            linewidth=1.5,
            label="validation",
        )
    axes.grid(alpha=0.3)


def plot_parts(rows: Sequence[Mapping[str, Any]], path: Path, measures: Iterable[str]) -> None:
    """Draw the rewards among the measures, as `_reward` ends their names, and those of validations as dashes, if there
    are several."""
    parts = [name for name in measures if name.endswith("_reward") and any(name in row for row in rows)]
    if len(parts) < SEVERAL:
        return
    figure = new_figure(4)
    axes = figure.subplots()
    for number, name in enumerate(parts):
        for measure, dashes, label in ((name, "-", name.removesuffix("_reward")), (f"validation_{name}", "--", None)):
            points = [(row["step"], row[measure]) for row in rows if measure in row]
            steps, values = zip(*points, strict=True) if points else ((), ())
            shown = _smoothed(values) if len(points) > SMOOTHED_ABOVE else values
            axes.plot(steps, shown, dashes, color=f"C{number}", linewidth=1.5, label=label)
    axes.set(xlabel="step", ylabel="reward, before its weight", title="rewards (dashed: held out)")
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    save_figure(figure, path)


def _smoothed(values: Sequence[float], memory: float = 0.95) -> list[float]:
    """Exponential moving average, corrected for its start (Kingma & Ba 2014, §3)."""
    average, weight, result = 0.0, 0.0, []
    for value in values:
        average = memory * average + (1 - memory) * value
        weight = memory * weight + (1 - memory)
        result.append(average / weight)
    return result
