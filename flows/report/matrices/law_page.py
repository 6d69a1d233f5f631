"""The page of a ladder: the law of its trainings, what it predicts, and how far off it was."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from flows.report.drawing import charts
from flows.report.drawing.page import Block, Cell, Chart, Figure, Page, Section, Table
from flows.report.reading import cleaned, mapping, number, rows
from storage.artifact import Artifact
from storage.units import duration
from tasks.ablate.laws.law import FARTHEST, Fitted, distinct
from tasks.ablate.scaling import read_law
from tasks.ablate.scaling.report import UNIT

STEPS = 40  # of a line
COMPUTE, SIZE, BEST = "FLOPs", "N", "best size"
TITLES = {  # of the stage's tables by section
    "Law": ["Law"],
    "Predictions": ["Predictions", "Best size"],
    "Error": ["Largest trainings, predicted from the others"],
    "Learning rate": ["Learning rate"],
    "Trainings": ["Ladder", "Diverged"],
}


def page_of_law(name: str, artifact: Artifact) -> Page:
    """The page of a ladder. Raises DamagedArtifact."""
    manifest, fitted = artifact.manifest, read_law(artifact)
    assert manifest is not None
    counts: Mapping[str, Any] = cleaned(dict(manifest.counts))
    error = number(counts.get("held_out_error"))
    sizes = len(distinct([point.size for point in fitted.points]))
    return Page(
        title=name,
        kicker="Gristmill · a scaling law",
        lede=f"{counts.get('summary', '')}.",
        figures=[
            Figure("Trainings", f"{len(fitted.points)}", f"of {sizes} sizes"),
            Figure("Largest", f"{fitted.largest:.3g}", COMPUTE),
            Figure("Error", "unknown" if error is None else f"{error:.1%}", "at the largest compute"),
            Figure("Noise", f"{fitted.noise:.2%}", "of a training around the law"),
            Figure("Made", manifest.created[:10], duration(float(manifest.facts.get("seconds", 0)))),
        ],
        sections=[section for section in _sections(fitted, mapping(counts, "tables")) if section.blocks],
        data={
            "artifact": artifact.location,
            "law": {key: float(value) for key, value in fitted.law._asdict().items()},
            "noise": fitted.noise,
            "points": [point._asdict() for point in fitted.points],
            **counts,
        },
    )


def _sections(fitted: Fitted, tables: Mapping[str, Any]) -> Iterator[Section]:
    for section, titles in TITLES.items():
        blocks: list[Block] = [*_charts(fitted)] if section == "Law" else []
        for title in titles:
            if found := rows(tables.get(title)):
                blocks.append(Table(found, title="" if title == section else title))
        yield Section(section, blocks)


def _charts(fitted: Fitted) -> Iterator[Chart]:
    points = sorted(fitted.points, key=lambda point: point.flops)
    shown: list[Mapping[str, Cell]] = [
        {
            COMPUTE: point.flops,
            SIZE: point.size,
            "tokens": point.tokens,
            UNIT: point.loss,
            "by the law": float(fitted.law.loss(point.size, point.tokens)),
        }
        for point in points
    ]
    lines, band = [], []
    for group in distinct([point.size for point in points]):
        mine = [points[index] for index in group]
        at = np.geomspace(mine[0].flops, 1.2 * mine[-1].flops, STEPS)
        lines += _line(f"N = {mine[0].size:.3g}", COMPUTE, at, fitted.law.loss(mine[0].size, at / 6 / mine[0].size))
    said = "A dot is a training, and each line the law of a size."
    if len(fitted.axes) == 2:
        at = np.geomspace(points[0].flops, FARTHEST * fitted.largest, STEPS)
        lines += _line(BEST, COMPUTE, at, fitted.law.best_loss(at))
        low, high = np.quantile(fitted.draws.best_loss(at[:, None]), [0.025, 0.975], axis=1)
        band = [
            {COMPUTE: float(x), "low": float(one), "high": float(other)}
            for x, one, other in zip(at, low, high, strict=True)
        ]
        said += (
            f" The thick one is that of the best size, with its 95 % interval, up to {FARTHEST:g} times the largest."
        )
    yield charts.scatter("Loss over compute", shown, COMPUTE, UNIT, lines=lines, main=BEST, band=band, said=said)
    if len(fitted.axes) == 2:
        lines = []
        for group in distinct([point.flops for point in points]):
            mine = sorted((points[index] for index in group), key=lambda point: point.size)
            flops = float(np.median([point.flops for point in mine]))
            at = np.geomspace(mine[0].size, mine[-1].size, STEPS)
            lines += _line(f"{flops:.3g} {COMPUTE}", SIZE, at, fitted.law.loss(at, flops / 6 / at))
        said = "Each line is the law of a budget, whose lowest point is the best size."
        yield charts.scatter("Loss over size", shown, SIZE, UNIT, lines=lines, said=said)


def _line(name: str, x: str, at: np.ndarray, losses: np.ndarray) -> list[dict[str, Cell]]:
    return [{"line": name, x: float(one), UNIT: float(loss)} for one, loss in zip(at, losses, strict=True)]
