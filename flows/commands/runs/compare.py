"""`gristmill runs compare`: two runs, by the fields of their profiles and the numbers of their results."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from rich.console import Console
from rich.markup import escape

from flows.commands.runs.show import interval
from flows.tables import new_table
from storage.errors import harmless
from storage.keys import differences
from storage.runs.record import RunRecord, Score, StageRecord
from storage.units import duration

LONGEST = 60  # characters of a value


def show_difference(console: Console, first: RunRecord, second: RunRecord, json_wanted: bool) -> None:
    """Print what differs between two runs, as tables or as JSON."""
    if json_wanted:
        print(json.dumps(as_json(first, second), indent=1))
        return
    heads = (first.id, second.id)
    console.print(
        f"{first.id} {escape(first.profile)}, {first.state}; {second.id} {escape(second.profile)}, {second.state}",
        highlight=False,
        soft_wrap=True,
    )
    _table(console, "Profile", heads, profile_differences(first, second), "The profiles are the same.")
    _table(console, "Runtime", heads, differences(first.runtime, second.runtime), "")
    table = new_table("stage", "result", *heads, right=heads, title="Stages")
    for name, same, one, two in stage_rows(first, second):
        table.add_row(escape(name), same, _took(one), _took(two))
    table.add_row("all", "", _all(first), _all(second))
    console.print()
    console.print(table)
    _table(console, "Counts", heads, figure_differences(first, second), "")
    if first.scores or second.scores:
        table = new_table("score", *heads, "", right=heads, title="Scores")
        for name in dict.fromkeys([*first.scores, *second.scores]):
            before, after = first.scores.get(name), second.scores.get(name)
            table.add_row(escape(name), _score(before), _score(after), _verdict(before, after))
        console.print()
        console.print(table)
    evaluations = [run.stages["evaluate"].location for run in (first, second) if "evaluate" in run.stages]
    if len(set(evaluations)) == 2:
        places = " ".join(f"{where.partition('/')[0]}/{where.partition('/')[2][:12]}" for where in evaluations)
        console.print(f"\nTested question by question: gristmill compare {places}", soft_wrap=True, highlight=False)


def as_json(first: RunRecord, second: RunRecord) -> dict[str, Any]:
    """The differences for programs."""

    def fields(rows: list[tuple[str, Any, Any]]) -> list[dict[str, Any]]:
        return [{"field": name, "first": one, "second": two} for name, one, two in rows]

    return {
        "first": first.id,
        "second": second.id,
        "profile": fields(profile_differences(first, second)),
        "runtime": fields(differences(first.runtime, second.runtime)),
        "stages": [
            {
                "stage": name,
                "result": same,
                "first": one.model_dump(mode="json", exclude={"figures"}) if one else None,
                "second": two.model_dump(mode="json", exclude={"figures"}) if two else None,
            }
            for name, same, one, two in stage_rows(first, second)
        ],
        "counts": fields(figure_differences(first, second)),
        "scores": fields(differences(_scores(first), _scores(second))),
        "seconds": [first.seconds, second.seconds],
    }


def profile_differences(first: RunRecord, second: RunRecord) -> list[tuple[str, Any, Any]]:
    """The fields in which two resolved profiles differ, without runtime, names and descriptions."""
    one, two = ({k: v for k, v in run.config.items() if k not in ("name", "description")} for run in (first, second))
    return differences(one, two)


def stage_rows(
    first: RunRecord, second: RunRecord
) -> Iterator[tuple[str, str, StageRecord | None, StageRecord | None]]:
    """Each stage of either run, and whether both have the same artifact, the same bytes, or others."""
    for name in dict.fromkeys([*first.stages, *second.stages]):
        one, two = first.stages.get(name), second.stages.get(name)
        if one is None or two is None:
            whole = _taken_whole(name, *((second, first) if one is None else (first, second)))
            missing = "only in one" if _is_whole(first, second) else "not reached by one"
            same = f"not needed by one: {whole} was stored" if whole else missing
        elif one.location == two.location:
            same = "the same artifact"
        else:
            same = "the same bytes" if one.digest == two.digest else "other bytes"
        yield name, same, one, two


def _taken_whole(name: str, having: RunRecord, lacking: RunRecord) -> str:
    """The stored stage that spared one run this part, which the other run made. Empty if there is none."""
    whole = having.stages[name].part_of
    while whole in having.stages and whole not in lacking.stages:  # a part of a part
        whole = having.stages[whole].part_of
    return whole if whole in lacking.stages and lacking.stages[whole].cached else ""


def _is_whole(first: RunRecord, second: RunRecord) -> bool:
    """Whether both runs completed, with the same last stage."""
    return (first.state, first.to) == (second.state, second.to) == ("completed", first.to)


def figure_differences(first: RunRecord, second: RunRecord) -> list[tuple[str, Any, Any]]:
    """The differing counts of stages that both have, as `stage.count`."""
    both = [name for name in first.stages if name in second.stages]
    one, two = ({name: run.stages[name].figures for name in both} for run in (first, second))
    return differences(one, two)


def _scores(run: RunRecord) -> dict[str, Any]:
    return {name: score.model_dump() for name, score in run.scores.items()}


def _table(
    console: Console, title: str, heads: tuple[str, str], rows: list[tuple[str, Any, Any]], without: str
) -> None:
    if not rows:
        console.print(*[f"\n{without}"] * bool(without))
        return
    table = new_table("", *heads, title=title)
    for path, one, two in rows:
        table.add_row(escape(path), _cell(one), _cell(two))
    console.print()
    console.print(table)


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.0f}" if value == int(value) else f"{value:.5g}"
    text = harmless("" if value is None else str(value))
    return escape(text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…")


def _took(stage: StageRecord | None) -> str:
    return "" if stage is None else "stored" if stage.cached else duration(stage.seconds)


def _all(run: RunRecord) -> str:
    return duration(run.seconds) if run.seconds is not None else run.state


def _score(score: Score | None) -> str:
    if score is None:
        return ""
    return f"{score.value:.4g}" + (f" ({interval(score)})" if score.low is not None else "")


def _verdict(first: Score | None, second: Score | None) -> str:
    """The difference, and whether the intervals overlap: if not, it is hardly chance."""
    if first is None or second is None:
        return ""
    bounds = (first.low, first.high, second.low, second.high)
    if first.value == second.value:
        return "the same"
    if any(bound is None for bound in bounds):
        return f"{second.value - first.value:+.4g}"
    apart = (first.low or 0) > (second.high or 0) or (second.low or 0) > (first.high or 0)
    return f"{second.value - first.value:+.4g}, intervals {'apart' if apart else 'overlap'}"
