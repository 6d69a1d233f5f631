"""Writes the record of a run: at its start, after its stages, and at its end, however it ends.

A record never ends a run: if it can't be written, the run says so once and goes on without it.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from types import TracebackType
from typing import Any

from flows.records.figures import scores_of, stage_record
from flows.stop import waits_for
from profiles.schema import Profile
from storage.artifact import Artifact
from storage.credentials import redact
from storage.errors import GristmillError, StoreError
from storage.runs import history
from storage.runs.alive import alive
from storage.runs.record import Estimate, RunRecord, State, Traced, new_id
from tasks.stage.display.progress import Observer, Renamed
from tasks.stage.session import Session

APART_SECONDS = 5.0  # at least, between two writes after stages


@dataclass(frozen=True)
class Asked:
    """A run's request, as in its command or its deployment's parameters."""

    profile: str
    overrides: Sequence[str] = ()
    to: str | None = None
    refresh: Sequence[str] = ()


class Recorder(AbstractContextManager["Recorder"]):
    """The record of one run. Within the block others see it as running."""

    def __init__(self, profile: Profile, session: Session, asked: Asked) -> None:
        self._session, self._written = session, 0.0
        self._stack = ExitStack()
        config = profile.model_dump(mode="json")
        self.record = RunRecord(
            id=new_id(),
            profile=profile.name,
            asked=asked.profile,
            overrides=list(asked.overrides),
            to=asked.to,
            refresh=list(asked.refresh),
            runtime=config.pop("runtime"),
            config=config,
            host=socket.gethostname(),
            process=os.getpid(),
            started=_now(),
        )
        self._works, self._begun = True, False
        self._writing = threading.Lock()  # runs of a matrix report from several threads
        self.waited: RunRecord | None = None  # the run's record from when it began to wait for a person
        if session.runtime.tracking.pipeline:
            from flows.records.track import check_trackers

            check_trackers(session.runtime)
        self.session = replace(session, observer=Watching(session.observer, self))

    def expect(self, estimates: Mapping[str, Estimate]) -> None:
        """Record a plan's estimates of the stages that must be made."""
        self.record = self.record.model_copy(update={"estimates": dict(estimates)})

    def in_flow(self) -> None:
        """Record the current flow run of Prefect."""
        from prefect.runtime import deployment, flow_run

        lasting = bool(os.environ.get("PREFECT_API_URL"))  # a server of the run's own ends with it
        self.record = self.record.model_copy(
            update={
                "flow_run": str(flow_run.id or "") if lasting else "",
                "flow_run_url": str(flow_run.ui_url or "") if lasting else "",
                "deployment": str(deployment.name or ""),
            }
        )
        if lasting and self.record.deployment:  # only a deployment's run waits without a process
            with suppress(OSError, StoreError):
                self.waited = history.waiting(self._session.store, self.record.flow_run)
        self._write()
        if self.waited and self._works:
            with suppress(OSError, StoreError):
                history.remove(self._session.store, self.waited.id)

    def working(self, stage: str) -> None:
        """Record the stage that is being made."""
        self.record = self.record.model_copy(update={"working": stage, "waits_for": ""})
        self._write()  # a training may not report again for days, and may be killed

    def waits(self, what: str) -> None:
        """Record what the run waits for."""
        self.record = self.record.model_copy(update={"waits_for": what})
        self._write()

    def trace(self, traced: Traced) -> None:
        """Record what a catalogue knows of the run. It is written when a stage begins or ends."""
        with self._writing:
            self.record = self.record.model_copy(update={"traced": traced})

    def went_on(self) -> None:
        """Write the finished stages, unless the record was written just now."""
        if self.record.waits_for or self.record.traced or time.monotonic() - self._written >= APART_SECONDS:
            self.record = self.record.model_copy(update={"waits_for": ""})
            self._write()

    def _write(self, **ended: Any) -> None:
        with self._writing:
            self._write_now(**ended)

    def _write_now(self, **ended: Any) -> None:
        if not self._begun:
            self._begin()
        if not self._works:
            return
        self.record = self.record_now(**ended)
        try:
            history.write(self._session.store, self.record)
            self._written = time.monotonic()
        except (OSError, StoreError) as error:
            self._give_up(error)

    def record_now(self, **changes: Any) -> RunRecord:
        """The record with the stages so far, and with `changes`."""
        steps = self._session.steps
        stages = {name: stage_record(steps[name]) for name in [*steps]}
        scores = scores_of(steps["evaluate"].artifact) if "evaluate" in steps else {}
        record = self.record.model_copy(update={"stages": stages, "scores": scores, **changes})
        return record.going_on_from(self.waited) if self.waited else record

    def _give_up(self, error: OSError | StoreError) -> None:
        """Say that the run is not recorded, and write no more."""
        self._works = False
        problem = error.message if isinstance(error, StoreError) else redact(str(error))
        self._session.observer.noted("run", f"leaves no record: {problem}")

    def __enter__(self) -> Recorder:
        with suppress(OSError, StoreError):  # without a store, the record waits: a refused run must not create one
            self._session.store.check_exists()
            self._write()
        return self

    def _begin(self) -> None:
        self._begun = True
        try:
            self._session.store.begin()
            seen = self._stack.enter_context(alive(self._session.store, self.record.id))
            self.record = self.record.model_copy(update={"seen_everywhere": seen})
        except (OSError, StoreError) as error:
            self._give_up(error)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._begun and error is not None:
            return
        idle = error is None and not self._session.steps and self.waited is None
        if idle:
            self._forget()
        else:
            state, message = ending(error)
            working = self.record.working if error is not None else ""
            self._write(state=state, error=message, ended=_now(), working=working, waits_for="")
        with suppress(OSError, StoreError):  # the folder of the lease may be gone
            self._stack.close()
        if self._session.runtime.tracking.pipeline and not idle and not waits_for(error):
            self._track()

    def _forget(self) -> None:
        """Remove the record of a run that found nothing to do and used nothing: a schedule makes many of them."""
        if self._begun and self._works:
            with suppress(OSError, StoreError):
                history.remove(self._session.store, self.record.id)

    def _track(self) -> None:
        from flows.records.track import track  # imports a tracker, which takes seconds

        try:
            track(self.record, self._session.runtime, self._session.store)
        except OSError as problem:
            self._session.observer.noted("run", f"is not tracked: {redact(str(problem))}")


class Watching(Renamed):
    """An observer that informs the recorder, then the run's observer."""

    def __init__(self, observer: Observer, recorder: Recorder) -> None:
        super().__init__(observer, {})
        self.recorder = recorder

    def started(self, stage: str, why: str) -> None:
        """See the base."""
        self.recorder.working(stage)
        super().started(stage, why)

    def waiting(self, stage: str, what: str) -> None:
        """See the base."""
        self.recorder.waits(what)
        super().waiting(stage, what)

    def finished(self, stage: str, artifact: Artifact, *, cached: bool, seconds: float) -> None:
        """See the base."""
        self.recorder.went_on()
        super().finished(stage, artifact, cached=cached, seconds=seconds)


def ending(error: BaseException | None) -> tuple[State, str]:
    """The state and message of a run that ended with `error`. A run that a signal or a person ended was stopped."""
    if error is None:
        return "completed", ""
    if isinstance(error, GristmillError):
        return "failed", str(error)
    if isinstance(error, Exception):
        first = (str(error).splitlines() or [""])[0]
        return "failed", redact(f"{type(error).__name__}: {first}".removesuffix(": "))
    return ("waiting", waits) if (waits := waits_for(error)) else ("stopped", "")


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
