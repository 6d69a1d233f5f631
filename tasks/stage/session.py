"""The surroundings of a run: store, runtime, profile name, stages to refresh, observer.

A context variable holds them, so that the pipeline reads like the diagram: a stage's call carries data, not plumbing.
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
    """A run's result in a stage or in a part of one."""

    artifact: Artifact
    cached: bool
    why: str  # why it was made; empty if it was stored
    seconds: float  # that the run spent on it, waits included
    waited: float = 0.0  # seconds of these spent waiting for other runs: a lock, a turn to train, a work pool
    part_of: str = ""  # the stage that obtained it while working
    others: tuple[Artifact, ...] = ()  # artifacts obtained together with it
    made: frozenset[str] = frozenset()  # the locations of all those that were made, not stored
    ref: str = ""  # that points at the artifact, if one does

    @property
    def worked(self) -> float:
        """Seconds that the run spent on it without waiting for other runs."""
        return max(0.0, self.seconds - self.waited)


Approve = Callable[[AnyStage, StageConfig, Sequence[Input], KeyPayload], None]
Call = Callable[[AnyStage, StageConfig, Sequence[Input]], Artifact]
Maker = Callable[[AnyStage, str, StageConfig, Sequence[Input], bool], str]  # (stage, key, config, inputs, refresh)


@dataclass(frozen=True)
class Session:
    """The surroundings that all stages of one run share."""

    store: Store
    runtime: Runtime
    profile: str = "default"
    refresh: frozenset[str] = frozenset()
    observer: Observer = field(default_factory=Observer)
    until: str | None = None  # the stage to end with
    call: Call | None = None  # what a stage's call does instead of running a Prefect task
    approve: Approve | None = None  # asks for a stage of runtime.approve; raises if it may not be made
    elsewhere: Callable[[str], Maker | None] | None = None  # see Stage._have_made
    fingerprints: dict[str, dict[str, str]] = field(default_factory=dict)  # of sources, by stage and config
    checks: dict[str, Callable[[], None]] = field(default_factory=dict)  # by stage: see Stage.before
    steps: dict[str, Step] = field(default_factory=dict)  # by stage and part: what this run took or made, in order
    reasons: dict[str, str] = field(default_factory=dict)  # by stage and part: why it is made
    unfinished: dict[str, float] = field(default_factory=dict)  # when the working stage, then its part, began
    waits: list[float] = field(default_factory=list)  # seconds of each wait for another run
    names: Mapping[str, str] = field(default_factory=dict)  # see told_as
    within: str = ""  # the stage whose part is being obtained
    pages: dict[str, str] = field(default_factory=dict)  # ids of Prefect's artifacts, by stage and part
    traffic: Traffic = field(default_factory=Traffic)  # of the stages so far
    lease: Lease | None = None  # while the session is open

    def started(self, stage: str, why: str) -> None:
        """Report to the observer that a stage is being made, and why. Its step keeps the reason too."""
        self.reasons[self.name_of(stage)] = why
        self.observer.started(stage, why)

    def finished(self, stage: str, artifact: Artifact, *, cached: bool, seconds: float, waited: float = 0.0) -> None:
        """Point the profile's ref at the artifact, remember it for the summary, and report it to the observer."""
        name, ref = self.name_of(stage), f"{self.profile}/{stage}"
        refs.move(self.store, ref, artifact.location, artifact.digest)
        why = "" if cached else self.reasons.get(name, "")
        step = Step(artifact, cached, why, seconds, waited, self.within, ref=ref)
        self.steps[name] = step
        self.observer.finished(stage, artifact, cached=cached, seconds=step.worked)

    def gathered(self, stage: str, found: Sequence[tuple[Artifact, bool]], *, seconds: float, waited: float) -> None:
        """As `finished`, for artifacts that a stage makes together. No ref points at them."""
        made, name = sum(not cached for _, cached in found), self.name_of(stage)
        first, *others = (artifact for artifact, _ in found)
        why = self.reasons.get(name, "") if made else ""
        new = frozenset(artifact.location for artifact, cached in found if not cached)
        step = Step(first, not made, why, seconds, waited, self.within, tuple(others), new)
        self.steps[name] = step
        self.observer.gathered(stage, made=made, cached=len(found) - made, seconds=step.worked)

    def name_of(self, stage: str) -> str:
        """The name that the observer shows for a stage."""
        return self.names.get(stage, stage)

    @contextmanager
    def working(self, stage: str) -> Iterator[None]:
        """Within the block `unfinished` has the stage. After an error it stays there: that is where the run stopped."""
        self.unfinished[self.name_of(stage)] = time.monotonic()
        yield
        del self.unfinished[self.name_of(stage)]

    @contextmanager
    def waiting(self, entered: AbstractContextManager[Any]) -> Iterator[None]:
        """Enter a lock or a turn, and count the time until then as a wait, not as work."""
        asked = time.monotonic()
        with entered:
            self.waits.append(time.monotonic() - asked)
            yield

    def tell_traffic(self, stage: str) -> None:
        """Report to the observer what a stage has moved between this machine and a bucket."""
        traffic = self._traffic()
        if traffic.sent or traffic.received:
            self.observer.noted(stage, moved(traffic))

    def told_traffic(self) -> str:
        """A sentence for the run's end on what it has moved between this machine and a bucket. Empty if the store is a
        folder."""
        self._traffic()
        return moved(self.traffic) if self.traffic else ""

    def _traffic(self) -> Traffic:
        traffic = self.store.traffic()
        self.traffic.add(requests=traffic.requests, sent=traffic.sent, received=traffic.received)
        return traffic

    def use(self, stage: str, key: str) -> None:
        """Lease an artifact before it is looked up."""
        if self.lease:
            self.lease.add(f"{stage}/{key.partition('.')[0]}")

    def checking(self, stage: str) -> Callable[[int, int], None]:
        """A callback that reports to the observer how many bytes of a stage's artifact are checked."""
        return lambda done, total: self.observer.progressed(Progress(stage, done / 1e6, total / 1e6, "MB checked"))


def moved(traffic: Traffic) -> str:
    """The bytes moved and the requests, as a sentence without its full stop."""
    requests = f", {traffic.requests:,} requests" if traffic.requests else ""
    return f"{size_of(traffic.received)} fetched from the bucket, {size_of(traffic.sent)} sent to it{requests}"


class Resources:
    """Resources that take seconds to start and serve a whole run, such as worker processes."""

    def __init__(self) -> None:
        self._held: dict[str, Any] = {}
        self._stack = ExitStack()

    def get(self, name: str, opened: Callable[[], AbstractContextManager[T]]) -> T:
        """The resource of this name. `opened` opens it the first time."""
        if name not in self._held:
            self._held[name] = self._stack.enter_context(opened())
        resource: T = self._held[name]
        return resource

    def close(self) -> None:
        """Close all, the newest first. A later `get` opens its resource again."""
        self._held.clear()
        self._stack.close()


_RESOURCES: ContextVar[Resources | None] = ContextVar("gristmill_resources", default=None)
_CURRENT: ContextVar[Session | None] = ContextVar("gristmill_session", default=None)


def current() -> Session | None:
    """The session that this code runs in, or None in a plain call."""
    return _CURRENT.get()


@contextmanager
def resources() -> Iterator[Resources]:
    """The resources of an enclosing block, or else new ones, which end with this block."""
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
    """Within the block the current session's observer sees `stage` under `name`, as a part of `within`."""
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
    """Make `session` the current one within the block. Artifacts that its stages take or make are leased for as long,
    and resources that they share end with it."""
    with Lease(session.store) as lease, resources():
        token = _CURRENT.set(replace(session, lease=lease))
        try:
            yield session
        finally:
            _CURRENT.reset(token)
