"""The surroundings of a run: store, runtime, profile name, what to refresh, who watches.

Held in a context variable so that the pipeline reads like the diagram: a stage's call carries data, not plumbing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeVar

from storage import refs
from storage.artifact import Artifact
from storage.files.traffic import Traffic
from storage.keys import KeyPayload
from storage.leases import Lease
from storage.store import Store
from storage.units import size_of
from tasks.stage.config import StageConfig
from tasks.stage.display.progress import Observer, Progress, Renamed
from tasks.stage.protocol import AnyStage, Input
from tasks.stage.runtime import Runtime

T = TypeVar("T")


class Step(NamedTuple):
    """What a run came to in a stage or in a part of one."""

    artifact: Artifact
    cached: bool
    why: str  # it was made; nothing of one that was in the store
    seconds: float  # that the run spent on it, waiting included
    waited: float = 0.0  # of these, for other runs: for a lock, a turn to train, a work pool
    part_of: str = ""  # the stage that obtained it while it worked
    others: tuple[Artifact, ...] = ()  # that were obtained together with it
    made: frozenset[str] = frozenset()  # the locations of those of them all that were made

    @property
    def worked(self) -> float:
        """Seconds that the run spent on it without waiting for other runs."""
        return max(0.0, self.seconds - self.waited)


Approve = Callable[[AnyStage, StageConfig, Sequence[Input], KeyPayload], None]
Call = Callable[[AnyStage, StageConfig, Sequence[Input]], Artifact]
Maker = Callable[[AnyStage, str, StageConfig, Sequence[Input], bool], str]  # (stage, key, config, inputs, refresh)


@dataclass(frozen=True)
class Session:
    """What every stage of one run shares."""

    store: Store
    runtime: Runtime
    profile: str = "default"
    refresh: frozenset[str] = frozenset()
    observer: Observer = field(default_factory=Observer)
    until: str | None = None  # the stage to end with
    call: Call | None = None  # what a stage's call does instead of running a Prefect task
    approve: Approve | None = None  # asks for a stage of runtime.approve; raises where it may not be made
    elsewhere: Callable[[str], Maker | None] | None = None  # see Stage._have_made
    fingerprints: dict[str, dict[str, str]] = field(default_factory=dict)  # of sources, by stage and config
    checks: dict[str, Callable[[], None]] = field(default_factory=dict)  # by stage: see Stage.before
    steps: dict[str, Step] = field(default_factory=dict)  # by stage and part: what this run took or made, in order
    reasons: dict[str, str] = field(default_factory=dict)  # by stage and part: why it is made
    unfinished: dict[str, float] = field(default_factory=dict)  # the stage that works, in it the part that does: since
    waits: list[float] = field(default_factory=list)  # seconds, each time that the run waited for another one
    names: Mapping[str, str] = field(default_factory=dict)  # see told_as
    within: str = ""  # the stage whose part is obtained
    pages: dict[str, str] = field(default_factory=dict)  # ids of Prefect's artifacts, by stage and part
    traffic: Traffic = field(default_factory=Traffic)  # of the stages so far
    lease: Lease | None = None  # while the session is open

    def started(self, stage: str, why: str) -> None:
        """Tell the observer that a stage is made, and why; the step that it becomes says so too."""
        self.reasons[self.name_of(stage)] = why
        self.observer.started(stage, why)

    def finished(self, stage: str, artifact: Artifact, *, cached: bool, seconds: float, waited: float = 0.0) -> None:
        """Point the profile's ref at what the run took or made, remember it for the summary, and tell the observer."""
        refs.move(self.store, f"{self.profile}/{stage}", artifact.location, artifact.digest)
        name = self.name_of(stage)
        step = Step(artifact, cached, "" if cached else self.reasons.get(name, ""), seconds, waited, self.within)
        self.steps[name] = step
        self.observer.finished(stage, artifact, cached=cached, seconds=step.worked)

    def gathered(self, stage: str, found: Sequence[tuple[Artifact, bool]], *, seconds: float, waited: float) -> None:
        """As `finished` of artifacts that a stage makes together; no ref points at them."""
        made, name = sum(not cached for _, cached in found), self.name_of(stage)
        first, *others = (artifact for artifact, _ in found)
        why = self.reasons.get(name, "") if made else ""
        anew = frozenset(artifact.location for artifact, cached in found if not cached)
        step = Step(first, not made, why, seconds, waited, self.within, tuple(others), anew)
        self.steps[name] = step
        self.observer.gathered(stage, made=made, cached=len(found) - made, seconds=step.worked)

    def name_of(self, stage: str) -> str:
        """The name by which those who watch know a stage."""
        return self.names.get(stage, stage)

    @contextmanager
    def working(self, stage: str) -> Iterator[None]:
        """What is left in `unfinished` after an error is where the run stopped."""
        self.unfinished[self.name_of(stage)] = time.monotonic()
        yield
        del self.unfinished[self.name_of(stage)]

    @contextmanager
    def waiting(self, entered: AbstractContextManager[Any]) -> Iterator[None]:
        """Enter a lock or a turn; how long that took was no work."""
        asked = time.monotonic()
        with entered:
            self.waits.append(time.monotonic() - asked)
            yield

    def tell_traffic(self, stage: str) -> None:
        """Tell the observer what a stage has moved between this machine and a bucket."""
        found = self._traffic()
        if found.sent or found.received:
            self.observer.noted(stage, moved(found))

    def told_traffic(self) -> str:
        """What the run has moved between this machine and a bucket, for its end; nothing of a store in a folder."""
        self._traffic()
        return moved(self.traffic) if self.traffic else ""

    def _traffic(self) -> Traffic:
        found = self.store.traffic()
        self.traffic.add(requests=found.requests, sent=found.sent, received=found.received)
        return found

    def use(self, stage: str, key: str) -> None:
        """Lease an artifact before it is looked up."""
        if self.lease:
            self.lease.add(f"{stage}/{key.partition('.')[0]}")

    def checking(self, stage: str) -> Callable[[int, int], None]:
        """What tells the observer how far the bytes of a stage's artifact are checked."""
        return lambda done, total: self.observer.progressed(Progress(stage, done / 1e6, total / 1e6, "MB checked"))


def moved(traffic: Traffic) -> str:
    """What was moved, as a sentence without an end."""
    asked = f", {traffic.requests:,} requests" if traffic.requests else ""
    return f"{size_of(traffic.received)} fetched from the bucket, {size_of(traffic.sent)} sent to it{asked}"


class Resources:
    """What takes seconds to start and serves a whole run, such as worker processes."""

    def __init__(self) -> None:
        self._held: dict[str, Any] = {}
        self._stack = ExitStack()

    def get(self, name: str, opened: Callable[[], AbstractContextManager[T]]) -> T:
        """What is held by this name; `opened` opens it the first time."""
        if name not in self._held:
            self._held[name] = self._stack.enter_context(opened())
        found: T = self._held[name]
        return found

    def close(self) -> None:
        """End all, the newest first; what is asked for later is opened anew."""
        self._held.clear()
        self._stack.close()


_RESOURCES: ContextVar[Resources | None] = ContextVar("gristmill_resources", default=None)
_CURRENT: ContextVar[Session | None] = ContextVar("gristmill_session", default=None)


def current() -> Session | None:
    """The session that this code runs in, or None in a plain call."""
    return _CURRENT.get()


@contextmanager
def resources() -> Iterator[Resources]:
    """The resources of the block around this one; without any, those of this block, which ends them."""
    around = _RESOURCES.get()
    if around is not None:
        yield around
        return
    opened = Resources()
    token = _RESOURCES.set(opened)
    try:
        yield opened
    finally:
        _RESOURCES.reset(token)
        opened.close()


@contextmanager
def told_as(stage: str, name: str, within: str) -> Iterator[None]:
    """Within the block whoever watches the current session is told of `stage` under `name`, as a part of `within`."""
    session = current()
    assert session is not None
    observer = Renamed(session.observer, {stage: name})
    names = {**session.names, stage: name}
    token = _CURRENT.set(replace(session, observer=observer, names=names, within=session.name_of(within)))
    try:
        yield
    finally:
        _CURRENT.reset(token)


@contextmanager
def open_session(session: Session) -> Iterator[Session]:
    """Make `session` the current one within the block; what its stages take or make is leased for as long, and what
    they start for all of them ends with it."""
    with Lease(session.store) as lease, resources():
        token = _CURRENT.set(replace(session, lease=lease))
        try:
            yield session
        finally:
            _CURRENT.reset(token)
