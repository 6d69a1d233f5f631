"""`gristmill run` and `gristmill stage`: the pipeline at a terminal, and its summary."""

from __future__ import annotations

import logging
import os
import time
import warnings

from rich.console import Console
from rich.table import Table

from flows.plan import plan
from flows.progress import TerminalObserver, duration
from flows.report import newest, summary
from flows.session import session_of, watcher
from profiles.load import load
from profiles.schema import Profile
from storage import refs


def run_pipeline(console: Console, name: str, overrides: list[str], to: str | None, refresh: list[str]) -> None:
    """Run to the end (or to `to`), showing progress, then the summary. Raises what the pipeline raises."""
    started = time.monotonic()
    profile = load(name, overrides)
    console.print(f"[bold]{profile.name}[/] [dim]store {profile.runtime.store}[/]")
    observer = TerminalObserver(console)
    lines = plan(profile, refresh, to)
    if all(line.hit for line in lines) and not os.environ.get("PREFECT_API_URL"):
        # Nothing to run: a temporary Prefect server, gone a second later, would cost more than all else together.
        store = session_of(profile).store
        for line in lines:
            assert line.payload is not None
            found = store.find(line.name, line.payload.key())
            assert found is not None
            refs.move(store, f"{profile.name}/{line.name}", found.location, found.digest)
            observer.finished(line.name, found, cached=True, seconds=0)
    else:
        _run_in_prefect(observer, name, overrides, to, refresh)
    summarize(console, profile, to, time.monotonic() - started)


def _run_in_prefect(
    observer: TerminalObserver, name: str, overrides: list[str], to: str | None, refresh: list[str]
) -> None:
    warnings.filterwarnings("ignore", category=DeprecationWarning)
    from flows.pipeline import pipeline

    logging.getLogger("prefect").setLevel(logging.CRITICAL)  # errors reach the person through main(), once
    token = watcher.set(observer)
    try:
        pipeline(name, overrides, to, refresh)
    except KeyboardInterrupt:
        observer.close()
        observer.console.print("Interrupted. The same command resumes where it stopped.")
        raise  # typer ends with 130
    finally:
        observer.close()
        watcher.reset(token)


def summarize(console: Console, profile: Profile, to: str | None, seconds: float) -> None:
    """The short table at the end of a run, and the path of the release."""
    store = session_of(profile).store
    made = newest(store, profile.name, to)
    release = made.get("export")
    table = Table(box=None, pad_edge=False, header_style="dim")
    for head in ("stage", "result", "size", "made in"):
        table.add_column(head, justify="right" if head in ("size", "made in") else "left")
    for row in summary(made):
        table.add_row(*row.values())
    console.print()
    console.print(table)
    console.print(f"\nDone in {duration(seconds)}.")
    if release is not None:
        console.print(f"Release: {release.path}", soft_wrap=True, highlight=False)
