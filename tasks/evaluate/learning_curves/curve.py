"""A score over the tokens of pretraining, as a table and as a plot, with its standard errors.

It works for any score: bits per byte, an accuracy with a chance level, an expected calibration error. A series is one
line: a task, a source, another run.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from storage.errors import ConfigError
from tasks.stage.display.figures import BLUE, GREY, ORANGE, new_figure, save_figure

COLOURS = (BLUE, ORANGE, "#31a354", "#8f86c9", GREY, "#c51b8a", "#8c6d31", "#17becf")
BAND = 2.0  # standard errors
LOGARITHMIC_ABOVE = 20  # ratio of tokens above which a linear axis would hide the beginning


class Point(NamedTuple):
    """A score after `tokens` tokens, with its standard error, if any."""

    tokens: int
    value: float
    error: float | None = None
    series: str = ""


def curve_table(points: Iterable[Point], measure: str) -> list[dict[str, str]]:
    """A table with a row per number of tokens and a column per series, where scores may be missing. `measure` heads the
    column of a series without a name."""
    points = list(points)
    names = _names(points)
    known = _by_place(points)
    return [
        {"tokens": f"{tokens:,}", **{name or measure: _shown(known.get((name, tokens))) for name in names}}
        for tokens in sorted({point.tokens for point in points})
    ]


def plot_curve(points: Iterable[Point], path: Path, *, title: str, measure: str, chance: float | None = None) -> None:
    """Draw every series with a band of two standard errors, and the chance level, if any.

    The axis of tokens is logarithmic if they span more than a factor of 20. Raises ConfigError without points.
    """
    points = list(points)
    if not points:
        raise ConfigError(f"A curve of {measure} needs at least one point.", "Choose snapshots that were evaluated.")
    known = _by_place(points)
    figure = new_figure(4)
    axes = figure.subplots()
    for number, name in enumerate(_names(points)):
        line = sorted((point for (series, _), point in known.items() if series == name), key=lambda point: point.tokens)
        tokens, values = [point.tokens for point in line], [point.value for point in line]
        colour = COLOURS[number % len(COLOURS)]
        axes.plot(tokens, values, color=colour, marker="o", markersize=4, linewidth=1.5, label=name or measure)
        errors = [BAND * (point.error or 0.0) for point in line]
        low, high = zip(*((v - e, v + e) for v, e in zip(values, errors, strict=True)), strict=True)
        axes.fill_between(tokens, low, high, color=colour, alpha=0.2, linewidth=0)
    if chance is not None:
        axes.axhline(chance, color=GREY, linewidth=1, linestyle="--", label="chance")
    spread = sorted(point.tokens for point in points if point.tokens > 0)
    if spread and spread[-1] > LOGARITHMIC_ABOVE * spread[0]:
        axes.set_xscale("symlog", linthresh=spread[0])  # not plain log, as an untrained model has seen 0 tokens
        axes.set_xlim(left=0 if len(spread) < len(points) else spread[0] * 0.8)
    axes.set(xlabel="tokens seen in pretraining", ylabel=measure, title=title)
    axes.grid(alpha=0.3)
    axes.legend(frameon=False, fontsize=8)
    save_figure(figure, path)


def _names(points: Sequence[Point]) -> list[str]:
    """The series, in order of appearance."""
    return list(dict.fromkeys(point.series for point in points))


def _by_place(points: Sequence[Point]) -> dict[tuple[str, int], Point]:
    """Points by series and tokens. Raises ConfigError for two scores at one place of a curve."""
    known: dict[tuple[str, int], Point] = {}
    for point in points:
        if known.setdefault((point.series, point.tokens), point) != point:
            raise ConfigError(
                f"{point.series or 'The curve'} has two scores after {point.tokens:,} tokens.",
                "Give each run its own series.",
            )
    return known


def _shown(point: Point | None) -> str:
    if point is None:
        return ""
    return f"{point.value:.3f}" if point.error is None else f"{point.value:.3f} ± {point.error:.3f}"
