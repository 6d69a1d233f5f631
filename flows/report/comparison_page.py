"""The page of two runs: what differs between them, and the numbers that both have."""

from __future__ import annotations

from collections.abc import Iterator

from flows.report.differences import Comparison
from flows.report.drawing import charts
from flows.report.drawing.page import Block, Cell, Figure, Fold, Heading, Page, Section, Table, Text
from flows.report.model_sections import signed
from storage.units import duration
from tasks.significance.compare import EQUAL


def page_of_both(found: Comparison) -> Page:
    """The page of a comparison."""
    first, second = (one.headline for one in (found.first, found.second))
    real = [row for row in found.tested.get("rows", []) if row["verdict"] != EQUAL]
    number = len(found.tested.get("rows", []))
    figures = [
        Figure("Settings that differ", f"{len(found.settings):,}"),
        Figure("Artifacts in common", f"{len(found.shared):,}"),
    ]
    if number:
        figures.append(Figure("Real differences", f"{len(real)}", f"of {number} scores"))
    for name, one in (("A took", first), ("B took", second)):
        figures.append(Figure(name, duration(one.seconds)))
    return Page(
        title=f"{first.name} and {second.name}",
        kicker="Gristmill · two runs",
        lede=f"A is {first.name}, made on {first.created[:10]}. B is {second.name}, made on {second.created[:10]}.",
        figures=figures,
        sections=[section for section in _sections(found) if section.blocks],
        data=found.model_dump(mode="json"),
    )


def _sections(found: Comparison) -> Iterator[Section]:
    yield Section("Settings", list(_settings(found)))
    yield Section("Numbers", list(_numbers(found)))
    yield Section("Training", list(_curves(found)))
    yield Section("Evaluation", list(_tested(found)))
    shared: list[dict[str, Cell]] = [{"artifact": location} for location in found.shared]
    yield Section("Lineage", [Fold("Artifacts in common", [Table(shared)])] if shared else [])


def _settings(found: Comparison) -> Iterator[Block]:
    for who, stages in (("A", found.only_first), ("B", found.only_second)):
        if stages:
            yield Text(f"Only {who} has {', '.join(stages)}.")
    if found.settings:
        yield Table([{"stage": s.stage, "setting": s.key, "A": s.first, "B": s.second} for s in found.settings])
    else:
        yield Text("The settings of the stages that both have are the same.")


def _numbers(found: Comparison) -> Iterator[Block]:
    both = [(one, one.first, one.second) for one in found.numbers if one.first is not None and one.second is not None]
    rows: list[dict[str, Cell]] = []
    for one, first, second in both:
        if first != second:
            apart, whole = second - first, first.is_integer() and second.is_integer()
            rows.append(
                {
                    "": one.about if not rows or rows[-1]["about"] != one.about else "",
                    "number": one.name,
                    "A": first,
                    "B": second,
                    "B − A": signed(apart, ",.0f" if whole else ",.4g"),
                    "change": signed(apart / abs(first), ".1%") if first else "",
                    "about": one.about,
                }
            )
    shown: list[dict[str, Cell]] = [{name: one for name, one in row.items() if name != "about"} for row in rows]
    if shown:
        yield Table(shown)
    if alike := len(both) - len(rows):
        yield Text(f"{alike:,} numbers are the same in both.", note=True)


def _curves(found: Comparison) -> Iterator[Block]:
    trainings = {"A": found.first.trainings, "B": found.second.trainings}
    stages = [one.stage for one in found.first.trainings if one.stage in {two.stage for two in found.second.trainings}]
    for stage in stages:
        of_stage = {who: next(one for one in those if one.stage == stage) for who, those in trainings.items()}
        if of_stage["A"].key == of_stage["B"].key:
            yield Text(f"Both have the same {stage}.", note=True)
            continue
        rows: list[dict[str, Cell]] = [
            {"step": point.step, "loss": point.loss, "validation": point.validation, "run": who}
            for who, one in of_stage.items()
            for point in one.curve
        ]
        yield charts.overlaid(f"Loss of {stage}", rows, said="Lines are training, dots validation.")


def _tested(found: Comparison) -> Iterator[Block]:
    if found.untested:
        yield Text(found.untested)
        return
    rows = found.tested["rows"]
    drawn: list[dict[str, Cell]] = [
        {
            "task": row["task"],
            "B − A": row["difference"],
            "low": row["low"],
            "high": row["high"],
            "model": row["b"].partition(":")[2] or row["b"],
            "noise": row["verdict"] == EQUAL,
            "zero": 0,
        }
        for row in rows
    ]
    noise = sum(row["verdict"] == EQUAL for row in rows)
    if not drawn:
        yield Text("No benchmark could be compared.")
    else:
        yield charts.intervals(
            "Differences of scores",
            drawn,
            "task",
            "B − A",
            "model",
            said=f"With 95 % intervals. {noise} of {len(rows)} aren't real, so their dots are hollow.",
            reference="zero",
            hollow="noise",
        )
        yield Table(
            [
                {
                    "task": row["task"],
                    "A": row["value_a"],
                    "B": row["value_b"],
                    "B − A": row["difference"],
                    "p, corrected": row["p_corrected"],
                    "verdict": row["verdict"],
                    "questions": row["questions"],
                }
                for row in rows
            ]
        )
    if left := found.tested["not_compared"]:
        yield Heading("Not compared")
        yield Table([{"task": one["task"], "why": one["why"]} for one in left])
