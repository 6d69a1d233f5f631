"""The commands `gristmill runs`, `runs show` and `runs compare`, with their options."""

from __future__ import annotations

import difflib
import time
from enum import StrEnum
from typing import Annotated

import typer

from flows.commands.runs.compare import show_difference
from flows.commands.runs.listing import Wanted, list_runs, with_present_state
from flows.commands.runs.show import show_run
from flows.commands.store import StoreUrl, console, open_store
from flows.options import DEFAULT_STORE
from storage.errors import ConfigError
from storage.runs import history
from storage.units import seconds_of

app = typer.Typer(rich_markup_mode="rich")

RunId = Annotated[str, typer.Argument(metavar="ID", help="a run's id, its beginning, or last")]
Json = Annotated[bool, typer.Option("--json", help="print the whole records as JSON")]


class Ended(StrEnum):
    """The states of a run."""

    RUNNING = "running"
    WAITING = "waiting"
    COMPLETED = "completed"
    FAILED = "failed"
    STOPPED = "stopped"
    CRASHED = "crashed"


@app.callback(invoke_without_command=True)
def runs(
    context: typer.Context,
    profile: Annotated[str | None, typer.Option(help="only runs of this profile")] = None,
    state: Annotated[Ended | None, typer.Option(help="only runs in this state")] = None,
    made: Annotated[str | None, typer.Option(metavar="STAGE", help="only runs that made this stage or part")] = None,
    since: Annotated[
        str | None, typer.Option(metavar="TIME", help="only runs that started within this time: 30m, 12h, 2d, 1w")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="list at most this many, the newest first")] = 20,
    as_json: Json = False,
    store: StoreUrl = DEFAULT_STORE,
) -> None:
    """List a store's runs, newest first: the request, how each ended, what it made and how long it took.

    This includes runs from a terminal, runs of deployments, and runs that found everything in the store:

        gristmill runs

        gristmill runs --state failed --since 2d

        gristmill runs --profile tiny --made pretrain

    Show the last run, and compare it with an earlier one:

        gristmill runs show last

        gristmill runs compare 2026-11-23 last

    A waiting run waits for a person's approval, without a process. A crashed run's process died without a word, by a
    power cut or kill -9. Times are UTC.
    """
    if context.invoked_subcommand is not None:
        return
    try:
        began = time.time() - seconds_of(since) if since else 0.0
    except ValueError as error:
        raise ConfigError(f"--since: {error}.", "Give a number with its unit.") from error
    if made is not None:
        _check_stage(made)
    list_runs(console, open_store(store), Wanted(profile, state.value if state else None, made, began), limit, as_json)


def _check_stage(name: str) -> None:
    """Raises ConfigError for an unknown stage."""
    import flows.pipeline  # noqa: F401, registers the stages
    from tasks.stage.decorator import STAGES

    if name not in STAGES:
        near = difflib.get_close_matches(name, STAGES, 1)
        raise ConfigError(f"Unknown stage {name}.", f"Did you mean {near[0]}?" if near else "See `gristmill plan`.")


@app.command()
def show(run: RunId, as_json: Json = False, store: StoreUrl = DEFAULT_STORE) -> None:
    """Show one run: its request, every stage with its artifact, the reason and time of its making, and scores.

    gristmill runs show last

    gristmill runs show 2026-11-24T16-30

    gristmill runs show last --json | jq .config
    """
    opened = open_store(store)
    show_run(console, opened, history.find(opened, run), as_json)


@app.command()
def compare(first: RunId, second: RunId, as_json: Json = False, store: StoreUrl = DEFAULT_STORE) -> None:
    """Show how two runs differ: in their profiles, the results of stages, scores and time.

        gristmill runs compare 2026-11-23T21 last

    To test whether a difference of scores is real, question by question, use gristmill compare.
    """
    opened = open_store(store)
    one, two = (with_present_state(opened, history.find(opened, run)) for run in (first, second))
    show_difference(console, one, two, as_json)
