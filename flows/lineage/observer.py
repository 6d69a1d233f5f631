"""Follows a run for a catalogue: one OpenLineage run for it, and one below it for each stage that is made.

A stage from the store has no run of its own, as nothing was made. Those that read it name it as an input, and the
run's last event lists it. A run that ended without a word (SIGKILL, a power cut) is ended by the next run of its store.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from types import TracebackType
from typing import Any

from flows.lineage import events
from flows.lineage.datasets import Named, namespace_of, sources_of
from flows.lineage.sending import Sender
from flows.records.recorder import Recorder, ending
from profiles.schema import Profile
from storage.artifact import Artifact
from storage.errors import GristmillError, StoreError
from storage.runs import history
from storage.runs.alive import state_of
from storage.runs.record import RunRecord, Traced
from tasks.stage.decorator import STAGES
from tasks.stage.display.progress import Renamed

KINDS: dict[str, events.Kind] = {"completed": "COMPLETE", "failed": "FAIL", "stopped": "ABORT"}
SEARCHED = 50  # newest records among which crashed runs are sought
VANISHED = "The process of the run ended without a word."


class Lineage(Renamed):
    """An observer that reports the run to a catalogue, then to the run's observer. The end of the block is the run's.
    Within it, `session` is the one to use."""

    def __init__(self, profile: Profile, recorder: Recorder) -> None:
        self._session = recorder.session
        super().__init__(self._session.observer, {})
        settings = self._session.runtime.tracking.openlineage
        assert settings is not None
        self._settings, self._profile, self._recorder = settings, profile, recorder
        self.session = replace(self._session, observer=self)
        self._sender = Sender(settings)
        self._run: events.Job | None = None
        self._open: dict[str, events.Job] = {}  # the stages that are being made, a part after its stage
        self._threads: dict[str, int] = {}  # that make them: a matrix makes several at once
        self._lock = threading.RLock()
        self._begun_before: set[str] = set()  # of them, before the run waited for a person
        self._said = False

    def started(self, stage: str, why: str) -> None:
        """See the base."""
        with self._lock:
            run = self._begin()
            if stage not in self._open:  # else it is retried
                thread = threading.get_ident()
                above = [job for name, job in self._open.items() if self._threads[name] == thread]
                self._threads[stage] = thread
                self._open[stage] = (above[-1] if above else run).child(self._profile.name, stage, _described(stage))
                self._trace()
                if stage not in self._begun_before:
                    self._send("START", self._open[stage])
        super().started(stage, why)

    def finished(self, stage: str, artifact: Artifact, *, cached: bool, seconds: float) -> None:
        """See the base."""
        self._finish(stage, () if cached else (artifact,))
        super().finished(stage, artifact, cached=cached, seconds=seconds)

    def gathered(self, stage: str, *, made: int, cached: int, seconds: float) -> None:
        """See the base."""
        step = self._session.steps[stage]
        self._finish(stage, [one for one in (step.artifact, *step.others) if one.location in step.made])
        super().gathered(stage, made=made, cached=cached, seconds=seconds)

    def __enter__(self) -> Lineage:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Report the end, unless the run waits for a person: then it goes on later."""
        state, _ = ending(error)
        idle = error is None and not self._session.steps
        if not idle and state != "waiting":
            run = self._begin()
            message = _message(error) if state == "failed" else ""
            for job in reversed(self._open.values()):
                self._send(KINDS[state], job, error=message)
            self._open.clear()
            facets = events.run_facet(self._recorder.record_now(), dict(self._session.steps))
            self._send(KINDS[state], run, error=message, facets=facets)
            self._trace()
        self._sender.close()
        self._say()

    def _begin(self) -> events.Job:
        """The run's job. The first call reports its start, unless it resumes after waiting for a person."""
        if self._run is None:
            record, waited = self._recorder.record, self._recorder.waited
            earlier = waited.traced if waited and waited.traced else Traced(run="")
            self._begun_before = {*earlier.open}
            self._run = self._job(record, earlier.run or events.new_run())
            self._trace()
            self._end_vanished()
            kind: events.Kind = "RUNNING" if earlier.run else "START"
            self._send(kind, self._run, time="" if earlier.run else record.started)
        return self._run

    def _job(self, record: RunRecord, run: str) -> events.Job:
        tags = {"profile": record.profile, **({"deployment": record.deployment} if record.deployment else {})}
        return events.Job(self._settings.namespace, record.profile, run, self._profile.description, tags)

    def _finish(self, stage: str, made: Sequence[Artifact]) -> None:
        with self._lock:
            self._begin()
            job = self._open.pop(stage, None)
            if job is not None:
                names = self._names()
                outputs = [events.made(self._session.store, self._dataset(one.location, names), one) for one in made]
                inputs = [*self._inputs(made, names)]
                self._send("COMPLETE" if made else "ABORT", job, inputs=inputs, outputs=outputs)
                self._trace()
        self._say()

    def _inputs(self, made: Sequence[Artifact], names: dict[str, str]) -> Iterator[Any]:
        store = self._session.store
        parts: dict[str, set[str]] = {}
        sources: dict[Named, None] = {}
        for manifest in (one.manifest for one in made):
            assert manifest is not None
            for origin in [*manifest.origins.values(), *manifest.uses.values()]:
                parts.setdefault(origin.location, set()).add(origin.part)
            sources |= dict.fromkeys(sources_of(manifest, store))
        for location, read in parts.items():
            with suppress(StoreError):  # it may be damaged, which is for its reader to say
                if found := store.manifest(location):
                    yield events.read(store, self._dataset(location, names), location, found, sorted(read - {""}))
        yield from map(events.source, sources)

    def _names(self) -> dict[str, str]:
        """The refs of the run's artifacts, by location. Those that a stage makes together have none."""
        steps = [*self._session.steps.values()]
        return {step.artifact.location: step.ref for step in steps if step.ref}

    def _dataset(self, location: str, names: dict[str, str]) -> Named:
        return Named(namespace_of(self._session.store), names.get(location, location))

    def _trace(self) -> None:
        """Note in the run's record what is open, for a later run to end it if this one can't."""
        assert self._run is not None
        self._recorder.trace(Traced(run=self._run.run, open=_parents(self._open)))

    def _send(self, kind: events.Kind, job: events.Job, **said: Any) -> None:
        self._sender.send(events.event(kind, job, **said))

    def _say(self) -> None:
        if self._sender.problem and not self._said:
            self._said = True
            super().warned("run", f"not all of its lineage is sent: {self._sender.problem}. The run goes on")

    def _end_vanished(self) -> None:
        """End the runs of this store whose process is gone, once."""
        store, mine = self._session.store, self._settings.model_dump(mode="json")
        with suppress(OSError, StoreError):  # without records, nothing is known of them
            for name in history.ids(store)[:SEARCHED]:
                with suppress(StoreError):
                    record = history.read(store, name)
                    if record is None or record.state not in ("running", "waiting") or record.traced is None:
                        continue
                    tracking = record.runtime.get("tracking") or {}
                    if state_of(store, record) == record.state or tracking.get("openlineage") != mine:
                        continue
                    self._end_one(record, record.traced)
                    history.write(store, record.model_copy(update={"traced": None}))

    def _end_one(self, record: RunRecord, traced: Traced) -> None:
        jobs = {"": self._job(record, traced.run)}
        for stage, above in traced.open.items():
            jobs[stage] = jobs[above].child(record.profile, stage, _described(stage))
        for job in reversed(jobs.values()):
            self._send("FAIL", job, error=VANISHED, facets=None if job.stage else events.run_facet(record))


def _parents(jobs: Mapping[str, events.Job]) -> dict[str, str]:
    """For each stage the one that it is a part of, or nothing."""
    return {stage: job.parent.stage if job.parent else "" for stage, job in jobs.items()}


def _message(error: BaseException | None) -> str:
    """The first line of a Gristmill error, and only the type of any other. The rest of a message may quote data."""
    return error.message.partition("\n")[0] if isinstance(error, GristmillError) else type(error).__name__


def _described(stage: str) -> str:
    """The first paragraph of a stage's description. A matrix adds to the stage's name what its run differs in."""
    known = STAGES.get(stage.partition(" ")[0])
    return (inspect.getdoc(known.function) or "").partition("\n\n")[0].replace("\n", " ") if known else ""
