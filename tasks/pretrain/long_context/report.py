"""The report of a longer context: loss by position and hidden numbers found, before the training and after."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tasks.pretrain.spec import TrainSpec
from tasks.stage.display.figures import BLUE, ORANGE, new_figure, save_figure
from tasks.stage.output import Output

FIGURE = "long_context.png"


def report_long_context(spec: TrainSpec, measured: Mapping[str, Mapping[str, Any]], out: Output) -> None:
    """Report what `LongContextChange` measured as tables, counts and a figure. Warns where held-out text is too short
    to measure."""
    edges, lengths = measured["edges"]["after"], measured["lengths"]["after"]
    positions = {when: _bits(rows) for when, rows in measured["positions"].items()}
    if positions["after"]:
        spans = [f"{first:,} to {last - 1:,}" for first, last in itertools.pairwise(edges)]
        rows = zip(spans, positions["before"], positions["after"], strict=True)
        table = [{"positions": span, "before": f"{one:.3f}", "after": f"{other:.3f}"} for span, one, other in rows]
        out.table("Loss by position, bits per token", table)
    else:
        out.warn(f"the loss by position wasn't measured: no held-out document has more than {spec.context:,} tokens")
    found, depths = measured["found"], measured["depths"]["after"]
    table = [
        {"tokens": f"{length:,}"}
        | {f"{depth:.0%}": f"{one:.0%} → {other:.0%}" for depth, one, other in zip(depths, *shares, strict=True)}
        for length, *shares in zip(lengths, found["before"], found["after"], strict=True)
    ]
    if table:
        out.table("Hidden numbers found, by length and depth", table)
    else:
        out.warn("hidden numbers weren't asked for: held-out text is too short")
    out.count(
        long_context={
            "edges": edges,
            "bits_per_token": {when: [round(bits, 6) for bits in row] for when, row in positions.items()},
            "lengths": lengths,
            "depths": depths,
            "found": dict(found),
        }
    )
    if table and positions["after"]:
        plot_long_context(edges, positions, lengths, depths, found, out.path / FIGURE)


def _bits(rows: list[list[float]]) -> list[float]:
    return [nats / tokens / math.log(2) for nats, tokens in rows]


def plot_long_context(
    edges: list[int],
    positions: Mapping[str, list[float]],
    lengths: list[int],
    depths: list[float],
    found: Mapping[str, list[list[float]]],
    path: Path,
) -> None:
    """Draw the loss by position over two maps of the numbers that were found, before and after."""
    figure = new_figure(6)
    figures = figure.subplot_mosaic([["loss", "loss"], ["before", "after"]])
    middles = [(first + last) / 2 for first, last in itertools.pairwise(edges)]
    for when, colour in (("before", ORANGE), ("after", BLUE)):
        figures["loss"].plot(middles, positions[when], color=colour, marker="o", markersize=4, label=when)
        shown = figures[when]
        shown.imshow(found[when], cmap="Blues", vmin=0, vmax=1, aspect="auto")
        shown.set(xlabel="depth", ylabel="tokens", title=f"numbers found {when}")
        shown.set_xticks(range(len(depths)), [f"{depth:.0%}" for depth in depths])
        shown.set_yticks(range(len(lengths)), [f"{length:,}" for length in lengths])
        for row, shares in enumerate(found[when]):
            for column, share in enumerate(shares):
                shown.text(column, row, f"{share:.0%}", ha="center", va="center", fontsize=8)
    figures["loss"].set(xlabel="position", ylabel="bits per token", title="held-out documents by position")
    figures["loss"].grid(alpha=0.3)
    figures["loss"].legend(frameon=False)
    save_figure(figure, path)
