"""`gristmill runs show`: one run, from its request to its results."""

from __future__ import annotations

import json
from collections.abc import Iterator

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from flows.commands.runs.listing import COLOURS, changed, with_present_state
from flows.tables import new_table
from storage.errors import harmless
from storage.runs.record import RunRecord, Score
from storage.store import Store
from storage.units import duration, size_of


def show_run(console: Console, store: Store, record: RunRecord, json_wanted: bool) -> None:
    """Print a run in words and tables, or its record as JSON."""
    record = with_present_state(store, record)
    if json_wanted:
        print(json.dumps(record.model_dump(mode="json"), indent=1))
        return
    for line in _head(record):
        console.print(line, highlight=False, soft_wrap=True)
    if record.stages:
        console.print()
        console.print(_stages(record))
    if record.scores:
        table = new_table("score", "value", "95 % interval", right=["value"], title="Scores")
        for name, score in record.scores.items():
            table.add_row(escape(name), f"{score.value:.4g}", interval(score))
        console.print()
        console.print(table)


def _head(record: RunRecord) -> Iterator[str]:
    took = f" in {duration(record.seconds)}" if record.seconds is not None else ""
    yield f"[bold]{record.id}[/] [{COLOURS[record.state]}]{record.state}[/]{took}"
    by = f", started by the deployment {escape(record.deployment)}" if record.deployment else ""
    what = " ".join([escape(record.profile), *map(escape, changed(record))])
    yield f"profile  {what}"
    yield f"began    {record.started[:19].replace('T', ' ')} UTC, process {record.process} on {record.host}{by}"
    if record.flow_run:
        yield f"Prefect  {record.flow_run_url or record.flow_run}"
    if record.peak_memory_bytes:
        yield f"memory   {size_of(record.peak_memory_bytes)} at most, of one process"
    if record.waits_for and record.state == "running":
        yield f"waits    for {escape(harmless(record.waits_for))}"
    elif record.working and record.state != "completed":
        yield f"{'making ' if record.state == 'running' else 'ended in'}  {record.working}"
    if record.error:
        yield f"[red]{escape(harmless(record.error))}[/]"
    if record.estimates:
        yield f"planned  {planned_time(record)}"


def planned_time(record: RunRecord) -> str:
    """The time that the plan expected of the stages made, and the time that they took."""
    done, expected, took = record.planned
    if not done:
        return f"about {duration(sum(one.seconds for one in record.estimates.values()))}, nothing made yet"
    return f"{duration(expected)}, took {duration(took)} ({', '.join(done)})"


def _stages(record: RunRecord) -> Table:
    planned = record.estimates
    of_made = ["took", *["planned"] * bool(planned), "memory"] if record.made else []
    table = new_table("stage", "", *of_made, "artifact", *["why"] * bool(record.made), right=of_made)
    for name, stage in record.stages.items():
        where, _, key = stage.location.partition("/")
        cells = {
            "took": duration(stage.seconds) + (f" (+ {duration(stage.waited)} waiting)" if stage.waited >= 1 else ""),
            "planned": f"~{duration(planned[name].seconds)}" if name in planned else "",
            "memory": size_of(stage.peak_memory_bytes) if stage.peak_memory_bytes else "",
        }
        table.add_row(
            escape(name),
            "[cyan]stored[/]" if stage.cached else "[green]made[/]",
            *("" if stage.cached else cells[head] for head in of_made),
            f"{where}/{key[:8]}",
            *[escape(harmless(stage.why))] * bool(record.made),
        )
    return table


def interval(score: Score) -> str:
    """`0.112 to 0.288`, or empty for a score without one."""
    return "" if score.low is None or score.high is None else f"{score.low:.3f} to {score.high:.3f}"
