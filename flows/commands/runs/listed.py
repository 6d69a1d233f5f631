"""`gristmill runs`: a line for each run."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

from rich.console import Console
from rich.markup import escape

from flows.tables import new_table
from storage.errors import StoreError, harmless
from storage.runs import history
from storage.runs.alive import state_of
from storage.runs.record import RunRecord
from storage.store import Store
from storage.units import duration

COLOURS = {
    "running": "cyan",
    "waiting": "cyan",
    "completed": "green",
    "failed": "red",
    "stopped": "yellow",
    "crashed": "red",
}
LONGEST = 60  # characters of what is told of a run


class Wanted(NamedTuple):
    """Which runs are listed."""

    profile: str | None = None
    state: str | None = None
    made: str | None = None
    since: float = 0.0


def list_runs(console: Console, store: Store, wanted: Wanted, limit: int, json_wanted: bool) -> None:
    """The newest `limit` runs that are `wanted`, as a table or as JSON, a list of records."""
    unreadable: list[str] = []
    found = list(islice(matching(store, wanted, unreadable), min(limit, sys.maxsize - 1) + 1))
    shown = found[:limit]
    if json_wanted:
        print(json.dumps([record.model_dump(mode="json") for record in shown], indent=1))
        for message in unreadable:
            print(message, file=sys.stderr)
        return
    table = new_table("run", "profile", "state", "took", "made", "", right=["took"])
    for record in shown:
        took = duration(record.seconds) if record.seconds is not None else ""
        state = f"[{COLOURS[record.state]}]{record.state}[/]"
        table.add_row(record.id, escape(record.profile), state, took, _made(record), escape(remark(record)))
    none = (
        f"No run{' that can be read' * bool(unreadable)} is like that." if wanted != Wanted() else "No run can be read."
    )
    console.print(table if shown else none if history.ids(store) else "No run has left a record yet.")
    if len(found) > limit:
        console.print(f"\nThere are older ones: --limit {2 * limit}, or --since, --profile, --state, --made.")
    for message in unreadable:
        console.print(message, soft_wrap=True, highlight=False)


def matching(store: Store, wanted: Wanted, unreadable: list[str]) -> Iterator[RunRecord]:
    """Runs that are wanted, newest first, each with the state that it is in; messages of those that can't be read go
    into `unreadable`."""
    for record in history.records(store, wanted.since):
        if isinstance(record, StoreError):
            unreadable.append(str(record))
            continue
        told = as_it_is(store, record)
        if wanted.profile not in (None, told.profile, told.asked) or wanted.state not in (None, told.state):
            continue
        if wanted.made is None or wanted.made in told.made:
            yield told


def as_it_is(store: Store, record: RunRecord) -> RunRecord:
    """A record with the state that its run is in now."""
    state = state_of(store, record)
    late = {"error": "Nobody has approved it in time."} if (record.state, state) == ("waiting", "failed") else {}
    return record.model_copy(update={"state": state, **late})


def _made(record: RunRecord) -> str:
    """How much of it was made: of stages, not of their parts, as many as fit."""
    made = record.made
    if not made:
        return "nothing, all was there" if record.state == "completed" else ""
    return ", ".join(made[-3:]) if len(made) <= 3 else f"{len(made)}, last {made[-1]}"


def remark(record: RunRecord) -> str:
    """What there is to say of a run on one line: why it failed, where it is or was, or what was changed."""
    if record.error:
        text = record.error
    elif record.state == "running" and record.waits_for:
        text = f"waits for {record.waits_for}"
    elif record.state in ("running", "crashed", "stopped") and record.working:
        text = f"{'making' if record.state == 'running' else 'while it made'} {record.working}"
    else:
        text = " ".join(changed(record))
    text = harmless(text)
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"


def changed(record: RunRecord) -> list[str]:
    """What was asked of it beside its profile: overrides but that of the store, the last stage, stages made anew."""
    settings = [override for override in record.overrides if not override.startswith("runtime.store=")]
    to = [f"to {record.to}"] if record.to else []
    return [*settings, *to, *(f"refresh {stage}" for stage in record.refresh)]
