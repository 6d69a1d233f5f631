"""Opens a run, the same way for every flow: reads the profile, opens the store, chooses the observer.

A command that has read the profile and planned hands its session on to the flow (`handed_on`), so that neither the
profile nor the sources are read twice.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace

from flows.lineage import sending
from flows.pools.dispatch import Elsewhere
from flows.records.recorder import Asked, Recorder
from profiles.load import load
from profiles.schema import Profile
from storage.credentials import guard
from storage.errors import ConfigError
from storage.runs import history
from storage.runs.record import RunRecord
from storage.store import Store
from tasks.checks.extras import check_extras
from tasks.stage.decorator import STAGES, Stage
from tasks.stage.display.progress import Observer
from tasks.stage.session import Session, open_session

DEFAULT = "tiny"  # the profile if none is named


@dataclass(frozen=True)
class Run:
    """A profile to run, with the session that its stages share."""

    profile: Profile
    session: Session
    record: Recorder | None = None


_HANDED_ON: ContextVar[Run | None] = ContextVar("gristmill_run", default=None)


@contextmanager
def recorded(profile: Profile, session: Session, asked: Asked) -> Iterator[Run]:
    """Within the block the run goes on, and the store keeps a record of it."""
    if session.runtime.tracking.openlineage:
        sending.check(session.runtime.tracking.openlineage)
    with Recorder(profile, session, asked) as record, ExitStack() as stack:
        shared = record.session
        if session.runtime.tracking.openlineage:
            from flows.lineage.observer import Lineage

            shared = stack.enter_context(Lineage(profile, record)).session
        yield Run(profile, shared, record)


@contextmanager
def handed_on(run: Run) -> Iterator[None]:
    """Within the block a flow takes this run as it is, whatever its parameters say."""
    token = _HANDED_ON.set(run)
    try:
        yield
    finally:
        _HANDED_ON.reset(token)


@contextmanager
def start(profile: str, overrides: Sequence[str], until: str | None, refresh: Collection[str]) -> Iterator[Profile]:
    """Open the session that a flow's stages run in. Raises ConfigError for a wrong profile or stage name."""
    # Imported here, as a plan shows nothing in Prefect
    from flows.pages.progress import PrefectObserver
    from flows.pages.run import shown

    asked = Asked(profile, overrides, until, sorted(refresh))
    with ExitStack() as stack:
        run = _HANDED_ON.get()
        if run is None:
            from flows.deployed.approval import OnPage

            guard()
            chosen = load(profile, overrides)
            # Only Prefect's log watches a worker
            watched = replace(session_of(chosen, until, refresh), observer=PrefectObserver(), approve=OnPage(chosen))
            run = stack.enter_context(recorded(chosen, watched, asked))
            check_stages(chosen, chosen.names_to(until))
        if run.record:
            run.record.in_flow()
        elsewhere = Elsewhere(run.profile, run.session.until, whole_of)
        session = stack.enter_context(open_session(replace(run.session, elsewhere=elsewhere)))
        stack.enter_context(shown(run.profile, session, asked))
        yield run.profile


def last_run(store: Store, stage: str = "") -> RunRecord | None:
    """The newest run of a store, or the newest that made or took `stage`. None if there is none."""
    for record in history.records(store):
        if isinstance(record, RunRecord) and (not stage or stage in record.stages):
            return record
    return None


def last_profile(store_url: str) -> str:
    """The profile of a store's last run, as it was named on the command line. `tiny` if there is none."""
    record = last_run(Store(store_url))
    return (record.asked or record.profile) if record else DEFAULT


def check_stages(profile: Profile, names: Collection[str]) -> None:
    """Check, before the first stage starts, that these stages of a profile can honour its runtime on this machine.

    Raises ConfigError for the first that can't, and for extras that they need and that aren't installed.
    """
    own = [name for name in names if whole_of(name) == name]  # the others share the section of one of these
    check_extras(name for name in own if profile.pool_of(name) is None)
    for name in own:
        config = getattr(profile, name)
        STAGES[name].check_runtime(config, profile.runtime)
        if profile.pool_of(name) is None:
            STAGES[name].check_here(config, profile.runtime)


def session_of(
    profile: Profile, until: str | None = None, refresh: Collection[str] = (), paranoid: bool = False
) -> Session:
    """The session of a profile, which ends after `until` and rebuilds `refresh`. `paranoid` is the store's option.

    To rebuild a part of a stage, the stage itself must be rebuilt too: only then is the part needed. Raises ConfigError
    for a stage that the profile lacks, and for an `until` where a run can't end.
    """
    refreshed = set()
    for name in refresh:
        refreshed.add(name)
        while whole := _stage(profile, name).part_of:
            refreshed.add(name := whole)
    names = profile.stage_names
    if until is not None and (whole := _stage(profile, until).part_of):
        raise ConfigError(
            f"{until} is made within {whole}, so a run can't end there.", f"End after {whole}, or name it in --refresh."
        )
    if until is not None and until not in names:
        raise ConfigError(f"A run can't end with {until}.", f"End with one of {', '.join(names)}.")
    late = sorted(refreshed & set(names[names.index(until) + 1 :])) if until else []
    if late:
        raise ConfigError(f"{late[0]} comes after {until}, where the run ends.", "Remove it, or end the run later.")
    runtime = profile.runtime
    return Session(
        Store(runtime.store, paranoid=paranoid), runtime, profile.name, frozenset(refreshed), Observer(), until
    )


def whole_of(name: str) -> str:
    """The stage whose section of the profile this one uses: the stage that it is a part of, or itself."""
    whole = STAGES[name].part_of or STAGES[name].section
    return whole_of(whole) if whole else name


def _runs(profile: Profile, name: str) -> bool:
    """Whether a profile has a stage: under its own name, as a part of another, or by a section that it shares."""
    stage = STAGES[name]
    if stage.part_of:
        return _runs(profile, stage.part_of)
    return name in profile.stage_names or (stage.section is not None and getattr(profile, stage.section) is not None)


def _stage(profile: Profile, name: str) -> Stage:
    known = [*profile.stage_names, *(name for name in STAGES if _runs(profile, name))]
    if name not in known:
        near = difflib.get_close_matches(name, known, 1)
        if name.endswith((".yaml", ".yml")):
            raise ConfigError(f"{name} is a profile, not a stage.", "Write the stage first, then the profile.")
        stages = f"The stages are {', '.join(profile.stage_names)}."
        if name in STAGES:
            raise ConfigError(f"The profile {profile.name} leaves out {name}.", stages)
        raise ConfigError(f"Unknown stage {name}.", f"Did you mean {near[0]}?" if near else stages)
    return STAGES[name]
