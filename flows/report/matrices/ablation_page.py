"""The page of a matrix of runs: what each arm changes, by every measure, and how sure that is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from pydantic import BaseModel

from flows.report.drawing import charts
from flows.report.drawing.page import Block, Cell, Figure, Page, Section, Table, Text
from flows.report.model_sections import signed
from flows.report.reading import saved
from storage.artifact import Artifact
from storage.units import duration
from tasks.ablate.effects import BETTER, UNCLEAR, WORSE
from tasks.ablate.measures import HELD_OUT
from tasks.ablate.report import SEEDS, WORTH
from tasks.ablate.stage import EFFECTS


class _Arm(BaseModel):
    name: str
    settings: dict[str, str]


class _Measure(BaseModel):
    name: str
    lower_is_better: bool
    values: list[list[float]]  # by arm and seed


class _Effect(BaseModel):
    measure: str
    arm: str
    reference: float
    value: float
    difference: float
    low: float | None
    high: float | None
    p_corrected: float | None
    verdict: str


class Matrix(BaseModel):
    """effects.json of `ablate`."""

    link: str
    arms: list[_Arm]
    seeds: list[int]
    winner: str | None
    stopped: dict[str, int] = {}
    diverged: dict[str, str] = {}
    measures: list[_Measure]
    effects: list[_Effect]
    compute: dict[str, dict[str, float | bool | None]] = {}  # by arm: value, low, high, extrapolated


def page_of_matrix(name: str, artifact: Artifact) -> Page:
    """The page of a matrix. Raises DamagedArtifact."""
    found, manifest = saved(artifact, EFFECTS, Matrix), artifact.manifest
    assert manifest is not None
    runs = len(found.arms) * len(found.seeds)
    real = sum(effect.verdict in (BETTER, WORSE) for effect in found.effects)
    summary = str(manifest.counts.get("summary", ""))
    return Page(
        title=name,
        kicker="Gristmill · a matrix of runs",
        lede=f"{summary[:1].upper()}{summary[1:]}." if "=" not in summary.partition(" ")[0] else f"{summary}.",
        figures=[
            Figure("Arms", f"{len(found.arms)}", f"up to {found.link}"),
            Figure("Seeds", f"{len(found.seeds)}", f"{runs} runs"),
            Figure("Best", _best(found)),
            Figure("Real differences", f"{real}", f"of {len(found.effects)} comparisons"),
            Figure("Made", manifest.created[:10], duration(float(manifest.facts.get("seconds", 0)))),
        ],
        sections=[section for section in _sections(found, manifest.counts.get("tables", {})) if section.blocks],
        data={"artifact": artifact.location, **found.model_dump(mode="json")},
    )


def _best(found: Matrix) -> str:
    """The best arm: one that is better than the reference, or that itself if all others are worse."""
    verdicts = [effect.verdict for effect in found.effects if effect.measure == HELD_OUT]
    if found.winner is None and verdicts and set(verdicts) == {WORSE}:
        return found.arms[0].name
    return found.winner or UNCLEAR


def _sections(found: Matrix, tables: dict[str, list[dict[str, Any]]]) -> Iterator[Section]:
    first, others = found.measures[:1], found.measures[1:]
    worth = [Table(tables[WORTH], title=WORTH)] if WORTH in tables else []
    yield Section("Effects", [*(block for one in first for block in _measure(found, one)), *worth])
    text = [one for one in others if ": " not in one.name]
    yield Section("Sources", [block for one in text for block in _measure(found, one)])
    asked = [one for one in others if ": " in one.name]
    yield Section("Benchmarks", [block for one in asked for block in _measure(found, one)])
    yield Section("Noise", list(_noise(tables)))
    yield Section("Runs", list(_runs(found, tables)))


def _measure(found: Matrix, measure: _Measure) -> Iterator[Block]:
    mine = [effect for effect in found.effects if effect.measure == measure.name]
    unit = "bits per byte" if measure.lower_is_better else "share"
    said = f"Beside {found.arms[0].name}. {'Less' if measure.lower_is_better else 'More'} is better. Lines are 95 %."
    rows: list[dict[str, Cell]] = [
        {"arm": one.arm, unit: one.difference, "low": one.low, "high": one.high, "verdict": one.verdict, "zero": 0.0}
        for one in mine
    ]
    title = f"{measure.name[:1].upper()}{measure.name[1:]}"
    if rows:
        yield charts.intervals(title, rows, "arm", unit, "verdict", said=said, reference="zero", shown="+.4f")
    values: dict[str, list[float]] = dict(zip((arm.name for arm in found.arms), measure.values, strict=True))
    reference = found.arms[0].name
    table: list[dict[str, Cell]] = [{"arm": reference, "mean": f"{_mean(values[reference]):.4f}"}]
    for one in mine:
        interval = (
            "" if one.low is None or one.high is None else f"{signed(one.low, '.4f')} to {signed(one.high, '.4f')}"
        )
        table.append(
            {
                "arm": one.arm,
                "mean": f"{one.value:.4f}",
                "difference": signed(one.difference, ".4f"),
                "95 %": interval,
                "p, corrected": "" if one.p_corrected is None else f"{one.p_corrected:.2g}",
                "verdict": one.verdict,
            }
        )
    yield Table(table, title="" if rows else title)


def _noise(tables: dict[str, list[dict[str, Any]]]) -> Iterator[Block]:
    if rows := tables.get(SEEDS):
        yield Text("This many seeds of each arm find a true difference of the given size in four of five matrices.")
        yield Table(rows)


def _runs(found: Matrix, tables: dict[str, list[dict[str, Any]]]) -> Iterator[Block]:
    held_out = next((one for one in found.measures if one.name == HELD_OUT), None)
    rows: list[dict[str, Cell]] = []
    for number, arm in enumerate(found.arms):
        settings = ", ".join(f"{key}={value}" for key, value in arm.settings.items())
        row: dict[str, Cell] = {"arm": arm.name, "changes": settings if settings != arm.name else ""}
        for seed, value in zip(found.seeds, held_out.values[number] if held_out else [], strict=False):
            row[f"seed {seed}"] = f"{value:.4f}"
        rows.append(row)
    if not any(row["changes"] for row in rows):
        rows = [{name: cell for name, cell in row.items() if name != "changes"} for row in rows]
    yield Table(rows, title="Bits per byte of held-out text")
    for title in ("Held-out documents left out", "Given up early", "Diverged"):
        if title in tables:
            yield Table(tables[title], title=title)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
