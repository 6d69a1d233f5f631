"""The surroundings of a run: store, runtime, profile name, what to refresh, who watches.

Held in a context variable so that the pipeline reads like the diagram: a stage's call carries data, not plumbing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace

from storage import refs
from storage.artifact import Artifact
from storage.leases import Lease
from storage.store import Store
from storage.units import size_of
from tasks.stage.config import StageConfig
from tasks.stage.progress import Observer, Progress, Renamed
from tasks.stage.protocol import AnyStage, Input
from tasks.stage.runtime import Runtime

Call = Callable[[AnyStage, StageConfig, Sequence[Input]], Artifact]


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
    fingerprints: dict[str, dict[str, str]] = field(default_factory=dict)  # of sources, by stage and config
    checks: dict[str, Callable[[], None]] = field(default_factory=dict)  # by stage: see Stage.before
    made: dict[str, Artifact] = field(default_factory=dict)  # by stage: what this run took or made
    lease: Lease | None = None  # while the session is open

    def finished(self, stage: str, artifact: Artifact, *, cached: bool, seconds: float) -> None:
        """Point the profile's ref at what the run took or made, remember it for the summary, and tell the observer."""
        refs.move(self.store, f"{self.profile}/{stage}", artifact.location, artifact.digest)
        self.made[stage] = artifact
        self.observer.finished(stage, artifact, cached=cached, seconds=seconds)

    def tell_traffic(self, stage: str) -> None:
        """Tell the observer what a stage has moved between this machine and a bucket."""
        sent, received = self.store.traffic()
        if sent or received:
            self.observer.noted(stage, f"{size_of(received)} fetched from the bucket, {size_of(sent)} sent to it")

    def use(self, stage: str, key: str) -> None:
        """Lease an artifact before it is looked up."""
        if self.lease:
            self.lease.add(f"{stage}/{key.partition('.')[0]}")

    def checking(self, stage: str) -> Callable[[int, int], None]:
        """What tells the observer how far the bytes of a stage's artifact are checked."""
        return lambda done, total: self.observer.progressed(Progress(stage, done / 1e6, total / 1e6, "MB checked"))


_CURRENT: ContextVar[Session | None] = ContextVar("gristmill_session", default=None)


def current() -> Session | None:
    """The session that this code runs in, or None in a plain call."""
    return _CURRENT.get()


@contextmanager
def told_as(stage: str, name: str) -> Iterator[None]:
    """Within the block whoever watches the current session is told of `stage` under `name`."""
    session = current()
    assert session is not None
    token = _CURRENT.set(replace(session, observer=Renamed(session.observer, {stage: name})))
    try:
        yield
    finally:
        _CURRENT.reset(token)


@contextmanager
def open_session(session: Session) -> Iterator[Session]:
    """Make `session` the current one within the block; what its stages take or make is leased for as long."""
    with Lease(session.store) as lease:
        token = _CURRENT.set(replace(session, lease=lease))
        try:
            yield session
        finally:
            _CURRENT.reset(token)
