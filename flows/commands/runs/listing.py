"""`gristmill runs`: a line a run."""

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
LONGEST = 60  # characters of a run's remark


class Wanted(NamedTuple):
    """A selection of runs."""

    profile: str | None = None
    state: str | None = None
    made: str | None = None
    since: float = 0.0


def list_runs(console: Console, store: Store, wanted: Wanted, limit: int, json_wanted: bool) -> None:
    """Print the newest `limit` runs that are `wanted`, as a table or a JSON list of records."""
    unreadable: list[str] = []
    newest = list(islice(matching(store, wanted, unreadable), min(limit, sys.maxsize - 1) + 1))
    shown = newest[:limit]
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
    none = f"No {'readable ' * bool(unreadable)}run matches." if wanted != Wanted() else "No run can be read."
    console.print(table if shown else none if history.ids(store) else "No run has left a record yet.")
    if len(newest) > limit:
        console.print(f"\nOlder runs: --limit {2 * limit}, or --since, --profile, --state, --made.")
    for message in unreadable:
        console.print(message, soft_wrap=True, highlight=False)


def matching(store: Store, wanted: Wanted, unreadable: list[str]) -> Iterator[RunRecord]:
    """Wanted runs, newest first, each with its present state. Appends messages about unreadable records to
    `unreadable`."""
    for record in history.records(store, wanted.since):
        if isinstance(record, StoreError):
            unreadable.append(str(record))
            continue
        run = with_present_state(store, record)
        if wanted.profile not in (None, run.profile, run.asked) or wanted.state not in (None, run.state):
            continue
        if wanted.made is None or wanted.made in run.made:
            yield run


def with_present_state(store: Store, record: RunRecord) -> RunRecord:
    """A record with its run's present state."""
    state = state_of(store, record)
    late = {"error": "Nobody approved it in time."} if (record.state, state) == ("waiting", "failed") else {}
    return record.model_copy(update={"state": state, **late})


def _made(record: RunRecord) -> str:
    """The stages that the run made, without parts: up to three names, otherwise their number and the last."""
    made = record.made
    if not made:
        return "nothing, all stored" if record.state == "completed" else ""
    return ", ".join(made[-3:]) if len(made) <= 3 else f"{len(made)}, last {made[-1]}"


def remark(record: RunRecord) -> str:
    """One line about a run: its error, the stage that it is or was making, or its request."""
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
    """A run's request besides its profile: overrides except the store, the last stage, rebuilt stages."""
    settings = [override for override in record.overrides if not override.startswith("runtime.store=")]
    to = [f"to {record.to}"] if record.to else []
    return [*settings, *to, *(f"refresh {stage}" for stage in record.refresh)]
