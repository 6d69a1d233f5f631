"""The page of a proposed mixture: the share of each source, what the law predicts of it, and the runs behind it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel

from flows.report.drawing import charts
from flows.report.drawing.page import Block, Cell, Figure, Page, Section, Table
from flows.report.reading import cleaned, mapping, rows, saved
from storage.artifact import Artifact
from storage.units import duration
from tasks.ablate.mix.stage import MIX

SHARE, TARGET = "share", "bits per byte of the target"
LAWS, SHARES, PREDICTED = "Laws", "Proposed shares", "Predicted bits per byte"


class _Run(BaseModel):
    mixture: dict[str, float]
    target: float
    losses: dict[str, float]


class _Law(BaseModel):
    law: str
    spearman: float
    rmse: float


class Mixture(BaseModel):
    """mix.json of `mix`."""

    natural: dict[str, float]
    proposed: dict[str, float]
    interval: dict[str, tuple[float, float]]
    weights: dict[str, float]
    laws: list[_Law]
    swarm: list[_Run]


def page_of_mixture(name: str, artifact: Artifact) -> Page:
    """The page of a proposed mixture. Raises DamagedArtifact."""
    found, manifest = saved(artifact, MIX, Mixture), artifact.manifest
    assert manifest is not None
    counts: Mapping[str, Any] = cleaned(dict(manifest.counts))
    best = min(found.laws, key=lambda law: law.law != counts.get("law"))
    return Page(
        title=name,
        kicker="Gristmill · a mixture",
        lede=f"{counts.get('summary', '')}.",
        figures=[
            Figure(
                "Sources", f"{len(found.natural)}", f"{sum(share > 0 for share in found.proposed.values())} proposed"
            ),
            Figure("Runs", f"{len(found.swarm)}", "other mixtures"),
            Figure("Law", best.law, f"Spearman {best.spearman:.2f} for unseen runs"),
            Figure("Made", manifest.created[:10], duration(float(manifest.facts.get("seconds", 0)))),
        ],
        sections=[section for section in _sections(found, mapping(counts, "tables")) if section.blocks],
        data={"artifact": artifact.location, **found.model_dump(mode="json"), **counts},
    )


def _sections(found: Mixture, tables: Mapping[str, Any]) -> Iterator[Section]:
    proposed: list[Mapping[str, Cell]] = [
        {
            "source": name,
            SHARE: found.proposed.get(name, 0.0),
            "low": found.interval[name][0],
            "high": found.interval[name][1],
            "natural": natural,
            "of": "proposed",
        }
        for name, natural in found.natural.items()
    ]
    said = "The proposed share of each source with its 95 % interval. A tick is its natural share."
    drawn = charts.intervals("Shares", proposed, "source", SHARE, "of", said=said, reference="natural", shown=".1%")
    yield Section("Shares", [drawn, *_tables(tables, SHARES, title="")])
    yield Section("Prediction", _tables(tables, PREDICTED))
    yield Section("Law", _tables(tables, LAWS, title="Errors for runs that a law wasn't fitted to"))
    yield Section("Runs", [*_runs(found)])


def _tables(tables: Mapping[str, Any], name: str, title: str | None = None) -> list[Block]:
    return [Table(found, title=name if title is None else title) for found in [rows(tables.get(name))] if found]


def _runs(found: Mixture) -> Iterator[Block]:
    """The target over the share of each source."""
    for name, natural in found.natural.items():
        dots: list[Mapping[str, Cell]] = [
            {"run": number, SHARE: run.mixture.get(name, 0.0), TARGET: run.target}
            for number, run in enumerate(found.swarm)
        ]
        rules = {"natural": natural, "proposed": found.proposed.get(name, 0.0)}
        yield charts.scatter(name, dots, SHARE, TARGET, rules=rules, logarithmic=False, height=180)
