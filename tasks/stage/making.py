"""Takes a stage's artifact from the store, or makes and publishes it. Needs a session, not Prefect.

On a miss the maker takes the key's lock, runs the function on a private folder, checks the rules and publishes. The
function may ask for `out.earlier(…)`, its artifacts of other inputs, to take over the shards that haven't changed. That
changes what a result costs, never what it is. A refresh takes nothing over.
"""

from __future__ import annotations

import functools
import shutil
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from storage.artifact import Artifact
from storage.digests import list_files, tree_digest
from storage.errors import ConfigError, SourceError
from storage.files.disk import DiskFaults
from storage.keys import KeyPayload
from storage.manifest import Manifest
from storage.store import CHECKPOINTS
from tasks.stage import machine
from tasks.stage.config import StageConfig
from tasks.stage.environment import environment
from tasks.stage.history import attempt, attempted, ever_made, explain_miss, find_earlier
from tasks.stage.identity import StageIdentity
from tasks.stage.machine.energy import Energy
from tasks.stage.output import Output
from tasks.stage.protocol import Input
from tasks.stage.session import Maker, Session, current, resources

SEEN_SECONDS = 90.0  # NFS may cache a missing file for up to a minute


class Request(NamedTuple):
    """An artifact that the run needs."""

    payload: KeyPayload
    config: StageConfig
    inputs: Sequence[Input]
    refresh: bool

    @property
    def key(self) -> str:
        """Its key."""
        return self.payload.key()


class Work(NamedTuple):
    """An artifact that is being made."""

    request: Request
    inputs: Sequence[Input]  # with mappings in the order of their names
    out: Output
    folder: Path
    earlier: dict[str, Any]  # facts of attempts that were killed
    started: float
    cpu_seconds: float  # before
    peak: machine.Peak
    compiling_seconds: float  # before
    energy: Energy


class MakingStage(StageIdentity):
    """A stage that can make its artifact."""

    def materialize(
        self, config: StageConfig, inputs: Sequence[Input], *, refresh: bool = False
    ) -> tuple[Artifact, bool]:
        """The artifact of this config and these inputs, and whether it was stored. Needs a session, not Prefect."""
        session = current()
        if session is None:
            raise ConfigError(
                f"{self.name} was called outside a session.", "Call its .function on an Output, or use a flow."
            )
        with DiskFaults(session.store.local, self.name), session.working(self.name):
            refresh = refresh or self.name in session.refresh
            return self._obtain(session, Request(self.payload(config, inputs), config, inputs, refresh))

    def materialize_all(self, calls: Sequence[tuple[StageConfig, Sequence[Input]]]) -> list[tuple[Artifact, bool]]:
        """As `materialize` for each call. Those that are missing are made `together`, and each is published as soon as
        it is made."""
        session = current()
        if session is None or self.together is None:
            raise ConfigError(f"{self.name} can't make several artifacts at once.", "Call it for each of them.")
        started, waits = time.monotonic(), len(session.waits)
        refresh = self.name in session.refresh
        requests = [Request(self.payload(config, inputs), config, inputs, refresh) for config, inputs in calls]
        keys = [request.key for request in requests]
        unique = dict(zip(reversed(keys), reversed(requests), strict=True))  # the first request of each key
        found: dict[str, tuple[Artifact, bool]] = {}
        with DiskFaults(session.store.local, self.name), session.working(self.name), ExitStack() as locks:
            work: dict[str, Work] = {}
            for key in sorted(unique):  # in one order, so that two runs with the same keys can't deadlock
                session.use(self.name, key)
                stored = self._find(session, unique[key])
                if stored is None:
                    locks.enter_context(session.waiting(session.store.lock(self.name, key, self._on_wait(session))))
                    stored = self._find(session, unique[key])
                if stored is not None:
                    found[key] = stored, True
                else:
                    work[key] = self._begin(session, unique[key])
            self._note_other_source(session, [artifact for artifact, _ in found.values()])
            order = [key for key in dict.fromkeys(keys) if key in work]
            if order:
                session.started(self.name, f"{len(order)} of {len(unique)} to be made")
                made = self.together([(work[key].request.config, work[key].inputs, work[key].out) for key in order])
                for place in made:
                    found[order[place]] = self._publish(session, work[order[place]]), False
            session.tell_traffic(self.name)
            if unique:
                seconds, waited = time.monotonic() - started, sum(session.waits[waits:])
                in_order = [found[key] for key in dict.fromkeys(keys)]
                session.gathered(self.name, in_order, seconds=seconds, waited=waited)
        return [found[key] for key in keys]

    def _obtain(self, session: Session, request: Request) -> tuple[Artifact, bool]:
        """The artifact, from the store, from another machine, or made here; and whether it was stored."""
        started, waits = time.monotonic(), len(session.waits)
        session.use(self.name, request.key)
        artifact = self._find(session, request)
        cached = artifact is not None
        if not cached and session.approve and self.name in session.runtime.approve:
            asked = time.monotonic()
            session.approve(self, request.config, request.inputs, request.payload)
            session.waits.append(time.monotonic() - asked)
        maker = session.elsewhere(self.name) if session.elsewhere and artifact is None else None
        if artifact is not None:
            session.store.clear_workspaces()
        elif maker is not None:
            artifact = self._make_elsewhere(session, maker, request)
        else:
            artifact, cached = self._make_here(session, request)
        if cached:
            self._note_other_source(session, [artifact])
        session.tell_traffic(self.name)
        seconds, waited = time.monotonic() - started, sum(session.waits[waits:])
        session.finished(self.name, artifact, cached=cached, seconds=seconds, waited=waited)
        return artifact, cached

    def _find(self, session: Session, request: Request) -> Artifact | None:
        """The stored artifact, unless it is to be rebuilt."""
        if request.refresh:
            return None
        return session.store.find(self.name, request.key, session.checking(self.name))

    def _note_other_source(self, session: Session, artifacts: Iterable[Artifact]) -> None:
        """Warn once if other source code made what the store has."""
        manifests = [artifact.manifest for artifact in artifacts]
        if any(one and not one.adopted and one.source_digest != self.source for one in manifests):
            session.observer.warned(self.name, "made by other source code; raise its version if results changed")

    def _make_elsewhere(self, session: Session, maker: Maker, request: Request) -> Artifact:
        """The artifact, made by another machine. `maker` returns its location, which this machine may see only after a
        while. The other machine reads the inputs from the store."""
        session.started(self.name, self._why(session, request))
        self.check_runtime(request.config, session.runtime)
        self._check_later_stages(session)
        asked = time.monotonic()
        location = maker(self, request.key, request.config, request.inputs, request.refresh)
        deadline = time.monotonic() + SEEN_SECONDS
        while session.store.manifest(location) is None and time.monotonic() < deadline:
            time.sleep(1)
        artifact = session.store.get(location, session.checking(self.name))
        facts = artifact.manifest.facts if artifact.manifest else {}
        making = facts.get("seconds", 0.0) - facts.get("earlier_seconds", 0.0)
        session.waits.append(max(0.0, time.monotonic() - asked - making))  # for the pool to begin
        return artifact

    def _make_here(self, session: Session, request: Request) -> tuple[Artifact, bool]:
        with session.waiting(session.store.lock(self.name, request.key, self._on_wait(session))):
            stored = self._find(session, request)  # the previous holder of the lock may have made it
            if stored is not None:
                return stored, True
            session.started(self.name, self._why(session, request))
            return self._make(session, request), False

    def _make(self, session: Session, request: Request) -> Artifact:
        with session.waiting(self._device_lock(session)):
            work = self._begin(session, request)
            with attempted(work.folder):
                self.function(request.config, *work.inputs, work.out)
            return self._publish(session, work)

    def _why(self, session: Session, request: Request) -> str:
        """Why the artifact must be made. No ref names a part, so a part is compared with any artifact of its stage."""
        profile = "" if self.part_of else session.profile
        return explain_miss(session.store, request.payload, request.refresh, profile)

    def _on_wait(self, session: Session) -> Callable[[str], None]:
        return lambda holder: session.observer.waiting(self.name, f"{holder}, which makes the same artifact")

    def _device_lock(self, session: Session) -> AbstractContextManager[None]:
        """Keeps other runs from training on the same devices. A part works under the lock of its stage."""
        lock, runtime = self.declared.device_lock, session.runtime
        if lock is None or self.part_of or runtime.training.side_by_side:
            return nullcontext()
        waiting = functools.partial(session.observer.waiting, self.name)
        return lock(runtime.compute, lambda holder: waiting(f"{holder}, which trains on this machine"))

    def _check_later_stages(self, session: Session) -> None:
        """Run the check that `before` registered."""
        if self.name in session.checks:
            session.checks[self.name]()

    def _begin(self, session: Session, request: Request) -> Work:
        """Run all checks, then make the folders to work in."""
        config, payload, refresh = request.config, request.payload, request.refresh
        self.check_runtime(config, session.runtime)
        self.check_here(config, session.runtime)
        self._check_later_stages(session)
        trains = "training" in self.runtime
        if trains:
            with resources() as held:  # workers of data stages hold memory that a training needs
                held.close()
        folder = session.store.workspace(self.name, request.key)
        warn = functools.partial(session.observer.warned, self.name)
        earlier = attempt(folder, warn, anew=refresh)
        aside = session.store.aside(self.name, request.key)
        remote = f"{CHECKPOINTS}/{self.name}/{request.key}" if trains and not session.store.is_folder else ""
        if refresh:
            shutil.rmtree(folder / "scratch", ignore_errors=True)
            shutil.rmtree(aside, ignore_errors=True)
            if remote:
                session.store.discard(remote)
        shutil.rmtree(folder / "out", ignore_errors=True)
        out = Output(self.name, folder / "out", folder / "scratch", aside, session.runtime, session.observer)
        out.remote = remote
        if not refresh:
            out.find_earlier = functools.partial(find_earlier, session.store, payload, self.source, warn)
            out.ever_made = functools.partial(ever_made, session.store, self.name, warn)
            out.unfinished = functools.partial(session.store.unfinished, self.name, request.key)
            if session.store.is_folder:
                out.branches = functools.partial(session.store.branches, self.name)
        out.path.mkdir(parents=True)
        out.scratch.mkdir(parents=True, exist_ok=True)
        # By name: the key leaves out the order of a mapping, so the order must not shape the result
        inputs = [dict(sorted(one.items())) if isinstance(one, Mapping) else one for one in request.inputs]
        begun = time.monotonic(), machine.cpu_seconds(), machine.Peak(), machine.compiled_seconds(), Energy()
        return Work(request, inputs, out, folder, earlier, *begun)

    def _publish(self, session: Session, work: Work) -> Artifact:
        """Check the rules and publish the artifact."""
        payload, out = work.request.payload, work.out
        compiling = round(machine.compiled_seconds() - work.compiling_seconds, 3)
        joules = work.energy.joules
        out.check()
        self._check_sources(work)
        files = list_files(out.path)
        manifest = Manifest(
            key=payload.key(),
            payload=payload,
            digest=tree_digest(files),
            files=files,
            origins=self.origins(work.inputs),
            uses=out.uses,
            counts=out.counts,
            facts={
                "cpu_seconds": round(machine.cpu_seconds() - work.cpu_seconds, 3),
                "peak_memory_bytes": work.peak.bytes,
                **({"compiling_seconds": compiling} if compiling else {}),
                **({"joules": joules} if joules else {}),
                **_text_bytes(out.path, self.named(work.inputs).get("documents")),
                **out.facts,
                **work.earlier,
                "seconds": round(time.monotonic() - work.started + work.earlier.get("earlier_seconds", 0.0), 3),
            },
            source_digest=self.source,
            environment=environment(),
            created=datetime.now(UTC).isoformat(timespec="microseconds"),
        )
        artifact = session.store.publish(out.path, manifest)
        with resources() as held, suppress(OSError):  # the artifact is published, whatever stays
            removing = held.get("removing", functools.partial(ThreadPoolExecutor, 1, "removing"))
            removing.submit(shutil.rmtree, session.store.retire(work.folder), ignore_errors=True)
        machine.give_back()
        if out.remote:
            session.store.discard(out.remote)
        return artifact

    def _check_sources(self, work: Work) -> None:
        """Raises SourceError if sources outside the store no longer match the key: part of the result may come from
        before the change and part from after it."""
        sources = self.sources(work.request.config) if self.sources else {}
        now = {f"source:{name}": digest for name, digest in sources.items()}
        before = {name: digest for name, digest in work.request.payload.inputs.items() if name.startswith("source:")}
        changed = sorted(name for name in now.keys() | before if now.get(name) != before.get(name))
        if changed:
            shutil.rmtree(work.folder, ignore_errors=True)
            names = ", ".join(name.removeprefix("source:") for name in changed[:3])
            raise SourceError(
                f"{names}{' and others' if len(changed) > 3 else ''} changed while {self.name} was made, so it was not "
                "published.",
                "Run again once nothing writes to it.",
            )


def _text_bytes(folder: Path, documents: Artifact | None) -> dict[str, int]:
    """Bytes of text in the documents that a stage read and in those that it wrote, if any."""
    facts = {}
    if documents is not None and documents.manifest is not None and "text_bytes" in documents.manifest.facts:
        facts["bytes_in"] = documents.manifest.facts["text_bytes"]
    shards = sorted((folder / "documents").glob("*.parquet"))
    if shards:
        from storage.shards.documents import text_bytes

        facts["text_bytes"] = sum(map(text_bytes, shards))
    return facts
