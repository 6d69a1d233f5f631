"""`gristmill run` and `gristmill stage`: runs the pipeline at a terminal, and prints its summary."""

from __future__ import annotations

import logging
import os
import signal
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import NoReturn

import httpx
from rich.console import Console

from flows.chain import got_worse, released_link
from flows.deployed.approval import AtTerminal
from flows.deployed.automations import HEARTBEAT, HEARTBEAT_SECONDS
from flows.deployed.cancelled import ON_PAGE
from flows.early import NO_NEWS, told_of_unread, without_news
from flows.estimates.arithmetic import gpu_of, training_work
from flows.estimates.planned_stage import PlannedStage
from flows.estimates.stages import estimates
from flows.options import at_store
from flows.pages.losses import loss_notes
from flows.pages.progress import TerminalObserver
from flows.pages.report import made_by, summary
from flows.pipeline import stages
from flows.plan import plan
from flows.pools.dispatch import pools_of
from flows.records.recorder import Asked
from flows.server import check_address, named_server
from flows.session import Run, check_stages, handed_on, recorded, session_of, whole_of
from flows.stop import Stop, end_undisturbed, stoppable
from flows.tables import new_table
from profiles.load import load
from profiles.schema import Profile
from storage.artifact import Artifact
from storage.errors import causes
from storage.leases import Lease
from storage.units import duration
from tasks.stage.config import StageConfig
from tasks.stage.display.pages import as_signal
from tasks.stage.protocol import AnyStage, Input
from tasks.stage.session import Session, open_session
from tasks.training.chain import BESIDE


def run_pipeline(
    console: Console,
    name: str,
    overrides: list[str],
    to: str | None,
    refresh: list[str],
    paranoid: bool,
    yes: bool = False,
) -> Run:
    """Run the pipeline, up to `to`, with progress and a summary. Raises what the pipeline raises."""
    started = time.monotonic()
    observer = TerminalObserver(console)
    with stoppable() as stop, ended_in_order(stop, observer):
        profile = load(name, overrides)
        approve = None if yes else AtTerminal(profile, observer)
        session = replace(session_of(profile, to, refresh, paranoid), observer=observer, approve=approve)
        console.print(f"[bold]{profile.name}[/] [dim]store {profile.runtime.store}[/]")
        # Again inside the record, which is of a stopped run then, not of a failed one
        with recorded(profile, session, Asked(name, overrides, to, refresh)) as run, ended_in_order(stop, observer):
            lines = plan(profile, run.session)
            if run.record and not all(line.hit for line in lines):
                gpu = gpu_of(profile.runtime)
                work = training_work(profile, cuda=gpu is not None)
                run.record.expect(estimates(profile, run.session.store, lines, work, gpu))
            for note in told_of_unread(profile, profile.names_to(to)):
                console.print(f"  [yellow]{note}[/]", soft_wrap=True, highlight=False)
            missing = [line.name for line in lines if not line.hit]
            check_stages(profile, missing)
            pools_of(profile, map(whole_of, missing))
            if os.environ.get("PREFECT_API_URL"):
                in_prefect(run, stop, lambda: _pipeline(name, overrides, to, refresh))
            elif not _take_from_store(run, lines):
                in_process(run, lambda session: stages(profile))
    summarize(console, run, time.monotonic() - started)
    return run


def _take_from_store(run: Run, lines: list[PlannedStage]) -> bool:
    """Whether the store has every stage. If so, move the refs to them. A collection may have deleted some since the
    plan, but can't delete what is leased."""
    if not all(line.hit for line in lines):
        return False
    store = run.session.store
    with Lease(store) as lease:
        stored = []
        for line in lines:
            assert line.payload is not None
            lease.add(f"{line.name}/{line.payload.key()}")
            artifact = store.find(line.name, line.payload.key())
            if artifact is None:
                return False
            stored.append((line.name, artifact))
        for name, artifact in stored:
            run.session.finished(name, artifact, cached=True, seconds=0)
    return True


def in_process(run: Run, work: Callable[[Session], object]) -> None:
    """Do the work of a run without Prefect: no page would show it, and a server costs more than a small run."""

    def make(stage: AnyStage, config: StageConfig, inputs: Sequence[Input]) -> Artifact:
        return stage.materialize(config, inputs)[0]

    run.session.store.begin()
    with open_session(replace(run.session, call=make)) as session:
        work(session)


def _pipeline(name: str, overrides: list[str], to: str | None, refresh: list[str]) -> None:
    from flows.flow import pipeline

    pipeline(name, overrides, to, refresh)


def in_prefect(run: Run, stop: Stop, flow: Callable[[], object]) -> None:
    """Call a flow that takes this run, with the server of PREFECT_API_URL."""
    check_address()
    os.environ.setdefault(HEARTBEAT, str(HEARTBEAT_SECONDS))  # which its automation needs
    _import_prefect()
    from prefect.exceptions import TerminationSignal

    with named_server(os.environ["PREFECT_API_URL"], stop), handed_on(run):
        try:
            flow()
        except (TerminationSignal, httpx.HTTPError) as error:  # a signal becomes the latter while the server is away
            sent = [one for one in causes(error) if isinstance(one, TerminationSignal | KeyboardInterrupt)]
            if not sent:
                raise
            if (number := as_signal(sent[0]).signal) != signal.SIGINT:
                stop.on_signal(number, None)
            raise KeyboardInterrupt from None


def _import_prefect() -> None:
    """Import Prefect, and quiet its loggers, which exist only then, except those of its pages."""
    warnings.filterwarnings("ignore", category=DeprecationWarning)
    # After a signal, its threads would print the events that they could no longer send
    os.environ.setdefault("PREFECT_INTERNAL_LOGGING_LEVEL", "CRITICAL")
    import prefect.flows  # noqa: F401

    logging.getLogger("prefect").setLevel(logging.CRITICAL)  # errors reach the person through main(), once
    for kind in ("flow_runs", "task_runs"):
        of_runs = logging.getLogger(f"prefect.{kind}")
        of_runs.setLevel(logging.INFO)
        of_runs.propagate = False  # the terminal shows the same


@contextmanager
def ended_in_order(stop: Stop, observer: TerminalObserver) -> Iterator[None]:
    """Within the block, a signal ends the command with a sentence."""
    try:
        yield
    except (KeyboardInterrupt, httpx.HTTPError) as error:
        if isinstance(error, httpx.HTTPError) and stop.reason is None:
            raise
        _stopped(stop, observer)
    finally:
        with suppress(OSError):  # the terminal may be closed
            observer.close()


def _stopped(stop: Stop, observer: TerminalObserver) -> NoReturn:
    """End the command with the exit status of its signal."""
    end_undisturbed()
    by_signal = {None: "Interrupted", signal.SIGTERM: "Terminated", signal.SIGHUP: "The terminal was closed"}
    how = "Cancelled on its page" if ON_PAGE else by_signal[stop.reason]
    with suppress(OSError):
        observer.close()
        observer.console.print(f"{how}. The same command resumes where it stopped.")
    raise SystemExit(stop.exit_code) from None


def summarize(console: Console, run: Run, seconds: float) -> None:
    """Print the table at the end of a run, and the path of the release."""
    made = made_by(run.session, run.profile)
    table = new_table("stage", "result", "size", "this run", "making took", right=["size", "making took"])
    for row in summary(run.session, run.profile):
        table.add_row(*row.values())
    console.print()
    console.print(table)
    now = {name: one for name, one in made.items() if not run.session.steps[name].cached}
    for line in loss_notes(now, run.profile.runtime.store):
        console.print(line, soft_wrap=True, highlight=False)
    if "dedup" in made and without_news(made["dedup"]):
        console.print(f"\n{NO_NEWS}", soft_wrap=True, highlight=False)
    console.print(f"\nDone in {duration(seconds)}.")
    if traffic := run.session.told_traffic():
        console.print(f"Bucket: {traffic}.", highlight=False)
    if "export" in made:
        where = run.session.store.address(f"artifacts/{made['export'].location}")
        console.print(f"Release: {where}", soft_wrap=True, highlight=False)
        for line in next_steps(run.profile, made):
            console.print(line, soft_wrap=True, highlight=False)


def next_steps(profile: Profile, made: Mapping[str, Artifact]) -> Iterator[str]:
    """Commands for a release, and what its owner still has to decide."""
    at = at_store(profile.runtime.store)
    links: dict[str, Artifact] = {name: made[name] for name in profile.links if name in made and name not in BESIDE}
    if links and got_worse(links[last := released_link(profile, links)]):
        yield f"[yellow]{last} did worse on its held-out pairs than the model before it[/], but is released."
        yield "  `export.link: best` releases the last model that its training improved."
    yield f"Chat with it: gristmill chat {profile.name}/export{at}"
    yield f"Inspect this run: gristmill runs show last{at}. To watch one in a browser: gristmill ui"
    yield f"Its data, curves, scores and costs as a page: gristmill report {profile.name}{at}"
    if profile.export and profile.export.weights_licence is None:
        yield "[dim]The weights have no licence yet: set export.weights_licence before you publish them.[/]"
