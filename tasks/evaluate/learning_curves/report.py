"""The curves of an evaluation: bits per byte and each benchmark over the tokens of pretraining."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tasks.evaluate.learning_curves.curve import Point, curve_table, plot_curve
from tasks.evaluate.learning_curves.snapshots import is_snapshot
from tasks.stage.display.pages import markdown_table
from tasks.stage.output import Output
from tasks.training.chain import BASE

BITS = "bits per byte"


def write_curves(
    scores: Mapping[str, Any], language: Mapping[str, Any], tokens: Mapping[str, int | None], out: Output
) -> None:
    """Write along.md, bits_per_byte.png and benchmarks.png for the snapshots and the base itself. `tokens` are those
    that each model has seen. A model with an unknown number is left out."""
    known = {
        name: seen
        for name, seen in tokens.items()
        if seen is not None and name in scores["models"] and (is_snapshot(name) or name == BASE)
    }
    bits = [
        Point(seen, language[name]["bits_per_byte"], language[name]["bits_per_byte_stderr"], BITS)
        for name, seen in known.items()
    ]
    benchmarks = [*_benchmarks(scores, known)]
    rows = curve_table([*bits, *benchmarks], BITS)
    (out.path / "along.md").write_text(
        f"# Along training\n\n± is one standard error.\n\n{markdown_table(rows)}\n", encoding="utf-8"
    )
    out.table("Along training", rows)
    if bits:
        plot_curve(bits, out.path / "bits_per_byte.png", title="Along training", measure=BITS)
    if benchmarks:
        plot_curve(benchmarks, out.path / "benchmarks.png", title="Along training", measure="score")


def _benchmarks(scores: Mapping[str, Any], tokens: Mapping[str, int]) -> Iterator[Point]:
    for name, seen in tokens.items():
        for task, score in scores["models"][name]["tasks"].items():
            yield Point(seen, score["value"], score["stderr"], f"{task}, {score['metric']}")
