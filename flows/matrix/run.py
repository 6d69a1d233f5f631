"""Runs many profiles as one: what several of them need is made once, and shown once.

Every run goes through the same pipeline as it would by itself. An artifact that an earlier run of the matrix took or
made isn't asked for again, so the flow's graph has each once.
"""

from __future__ import annotations

import queue
from collections.abc import Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import nullcontext
from contextvars import copy_context
from dataclasses import dataclass, field, replace
from threading import Lock
from typing import NamedTuple

from flows.matrix.lanes import Lane, end_all, lanes_of
from flows.pipeline import stages
from flows.pools.dispatch import Elsewhere
from flows.session import whole_of
from profiles.schema import Profile
from profiles.stage_names import TRAINED
from storage.artifact import Artifact
from storage.errors import Divergence
from tasks.stage.config import StageConfig
from tasks.stage.decorator import STAGES, Stage
from tasks.stage.display.progress import Renamed
from tasks.stage.protocol import AnyStage, Input
from tasks.stage.session import Maker, Session, current, open_session


class NamedRun(NamedTuple):
    """A profile to run up to a stage. `name` is what people see beside its trainings, `data` beside the stages before
    them, which no seed changes."""

    profile: Profile
    until: str
    data: str
    name: str


Made = dict[str, Artifact]  # a run's artifacts by stage


@dataclass
class Shared:
    """The artifacts that the runs of a matrix have taken or made so far, by key."""

    session: Session
    known: dict[str, Artifact] = field(default_factory=dict)
    preparing: Lock = field(default_factory=Lock)  # one at a time: several runs may need the same

    def prepare(self, runs: Sequence[NamedRun]) -> list[Made]:
        """Take or make what comes before training, one run after another, as it uses the whole machine. Runs without
        such stages have nothing."""
        before = [before_training(one) for one in runs]
        return [self.run(one) if one else {} for one in before]

    def run_all(self, runs: Sequence[NamedRun], jobs: int = 1) -> list[Made | Divergence]:
        """Take or make the artifacts of all runs, with the trainings of as many at once as there are `jobs`. A training
        that diverges ends only its own run, with that error."""
        with lanes_of(runs[0].profile, jobs) as lanes:
            if not lanes:
                return [self._attempt(one) for one in runs]
            free: queue.SimpleQueue[Lane] = queue.SimpleQueue()
            for lane in lanes:
                free.put(lane)

            def on_a_lane(one: NamedRun) -> Made | Divergence:
                lane = free.get()
                try:
                    return self._attempt(one, lane)
                finally:
                    free.put(lane)

            with ThreadPoolExecutor(len(lanes)) as pool:
                made = [pool.submit(copy_context().run, on_a_lane, one) for one in runs]
                try:
                    wait(made, return_when=FIRST_EXCEPTION)
                finally:  # after an error or an interrupt the others end too
                    if not all(future.done() for future in made):
                        pool.shutdown(wait=False, cancel_futures=True)
                        end_all(lanes)
            failed = (future.exception() for future in made if not future.cancelled())
            for error in (error for error in failed if error is not None and not isinstance(error, KeyboardInterrupt)):
                raise error
            return [future.result() for future in made]

    def _attempt(self, one: NamedRun, lane: Lane | None = None) -> Made | Divergence:
        try:
            return self.run(one, lane)
        except Divergence as error:
            self.session.observer.warned("ablate", f"{one.name}: {error.message}")
            return error

    def run(self, one: NamedRun, lane: Lane | None = None) -> Made:
        """Take or make a run's artifacts, in the order of its pipeline, with trainings on a lane."""
        made: Made = {}
        ask = self.session.call or _task

        def call(stage: AnyStage, config: StageConfig, inputs: Sequence[Input]) -> Artifact:
            key = stage.payload(config, inputs).key()
            with nullcontext() if stage.name in TRAINED else self.preparing:
                if key not in self.known:
                    self.known[key] = ask(stage, config, inputs)
            made[stage.name] = self.known[key]
            return made[stage.name]

        names = {name: self._name(name, one) for name in STAGES}
        pools = Elsewhere(one.profile, one.until, whole_of)

        def elsewhere(stage: str) -> Maker | None:
            session = current()
            assert session is not None
            return pools(stage) or (lane.maker(session) if lane and stage in TRAINED else None)

        session = replace(
            self.session,
            profile=one.profile.name,
            runtime=one.profile.runtime,
            until=one.until,
            call=call,
            elsewhere=elsewhere,
            names=names,
            observer=Renamed(self.session.observer, names),
            checks={},
            unfinished={},
            waits=[],
        )
        with open_session(session):
            stages(one.profile)
        return made

    def together(self, stage: Stage, calls: Mapping[str, tuple[StageConfig, Sequence[Input]]]) -> dict[str, Artifact]:
        """The artifacts of calls by name. Those that are missing are made together, in one task."""
        if not calls:
            return {}
        asked = [*calls.values()]
        if self.session.call:
            return dict(zip(calls, (artifact for artifact, _ in stage.materialize_all(asked)), strict=True))
        return dict(zip(calls, stage.task_of_several(asked, return_state=True).result(), strict=True))

    def _name(self, stage: str, one: NamedRun) -> str:
        named = one.name if stage in TRAINED else one.data
        return f"{stage} {named}".strip()


def before_training(one: NamedRun) -> NamedRun | None:
    """The run up to the stage before its first training, or None if that is its first stage."""
    names = one.profile.names_to(one.until)
    first = next(number for number, name in enumerate(names) if name in TRAINED or number == len(names) - 1)
    return one._replace(until=names[first - 1]) if first else None


def _task(stage: AnyStage, config: StageConfig, inputs: Sequence[Input]) -> Artifact:
    artifact: Artifact = STAGES[stage.name].task(config, *inputs, return_state=True).result()
    return artifact
