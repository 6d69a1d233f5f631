"""Lanes: processes that make stages side by side, each on devices of its own.

    with lanes_of(profile, jobs) as lanes:
        maker = lanes[0].maker(session)     # as Session.elsewhere takes it

A lane is a process of its own, as a stage counts the CPU seconds and the memory of its process, as the GPUs that torch
sees are a process's, and as only a process can be interrupted. It ends with the run. `python -m flows.matrix.lanes` is
its side: an order a line comes in, and reports of its progress go out.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from typing import Any

import flows.pipeline  # noqa: F401, registers the stages
from flows.pools.stage_job import Order, Work
from flows.stop import stoppable
from profiles.schema import Profile
from storage import errors
from storage.artifact import Artifact
from storage.credentials import guard
from storage.errors import ConfigError, GristmillError, LostProcess
from storage.store import Store
from tasks.children.child import emit
from tasks.children.devices import missing_gpu
from tasks.children.die_with_parent import tied_to
from tasks.children.run_many import VISIBLE
from tasks.stage import machine
from tasks.stage.config import StageConfig
from tasks.stage.decorator import STAGES
from tasks.stage.display.progress import Observer, Progress
from tasks.stage.protocol import AnyStage, Input
from tasks.stage.runtime import Runtime
from tasks.stage.session import Maker, Session, open_session

GRACE_SECONDS = 10.0  # beyond that of a training, for its lane to end


class Lane:
    """The run's side of a lane. `runtime` is that of its stages."""

    def __init__(self, runtime: Runtime, gpus: Sequence[str]) -> None:
        self.runtime, self._ready, self._ended = runtime, False, False
        self._process = subprocess.Popen(
            tied_to(os.getpid(), [sys.executable, "-m", "flows.matrix.lanes"]),
            env={**os.environ, **({VISIBLE: ",".join(gpus)} if gpus else {})},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,  # a terminal's Ctrl-C reaches the run, which then ends its lanes
        )

    def maker(self, session: Session) -> Maker:
        """A function that has this lane make a stage of a session, and returns its location."""

        def make(stage: AnyStage, key: str, config: StageConfig, inputs: Sequence[Input], refresh: bool) -> str:
            rebuilt = [*session.refresh, stage.name] if refresh else session.refresh
            work = Work.of_call(stage, key, config, inputs, rebuilt)
            return self._asked(Order.of(replace(session, runtime=self.runtime), work=work), session.observer)

        return make

    def _asked(self, order: Order, observer: Observer) -> str:
        requests, reports = self._process.stdin, self._process.stdout
        assert requests is not None
        assert reports is not None
        with suppress(BrokenPipeError):
            requests.write(order.model_dump_json() + "\n")
            requests.flush()
        for line in reports:
            self._ready, told = True, json.loads(line)
            if "location" in told:
                return str(told["location"])
            if "error" in told:
                kind = getattr(errors, told["error"], GristmillError)
                raise kind(told["message"], told["remedy"], **told["facts"])
            _pass_on(told, observer)
        code = self._process.wait()
        if self._ended:
            raise KeyboardInterrupt(signal.Signals.SIGINT.name)
        raise LostProcess(f"The process that made {order.profile} ended with exit code {code}.", "Run it again.")

    def interrupt(self) -> None:
        """Have the process end, as Ctrl-C would: a training keeps a checkpoint. One that still imports its modules has
        nothing to keep, and would print a traceback."""
        self._ended = True
        self._process.send_signal(signal.SIGINT if self._ready else signal.SIGKILL)  # does nothing once it is gone

    def wait(self) -> None:
        """Wait for the end of an interrupted process, and end what takes too long."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(self.runtime.training.stop_grace_seconds + GRACE_SECONDS)
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


def _pass_on(told: dict[str, Any], observer: Observer) -> None:
    if "ready" in told:
        return
    if "progress" in told:
        observer.progressed(Progress(**told["progress"]))
    elif "warned" in told:
        observer.warned(told["stage"], told["warned"])
    else:
        observer.noted(told["stage"], told["noted"])


@contextmanager
def lanes_of(profile: Profile, jobs: int) -> Iterator[list[Lane]]:
    """Lanes for a number of `jobs` at once, each with its share of the GPUs or cores. None for a single job,
    which the run makes itself."""
    lanes = []
    try:
        for number in range(jobs if jobs > 1 else 0):
            lanes.append(Lane(*_share(profile.runtime, jobs, number)))
        yield lanes
    finally:
        end_all(lanes)


def end_all(lanes: Sequence[Lane]) -> None:
    """End these lanes, all at once."""
    for lane in lanes:
        lane.interrupt()
    for lane in lanes:
        lane.wait()


def jobs_of(profile: Profile, asked: int | None) -> int:
    """How many trainings to make at once: as `asked`, or else one on each GPU, or group of GPUs, or share of the cores
    that the profile gives a training. Raises ConfigError."""
    runtime = profile.runtime
    if runtime.training.hosts > 1 or runtime.training.hostfile or asked == 1:
        return 1
    if not _on_gpu(runtime):
        return asked or max(1, machine.cores() // runtime.rank_threads // runtime.training.processes)
    most = max(1, len(_gpus()) // runtime.training.processes)
    if asked is not None and asked > most:
        raise ConfigError(
            f"{asked} trainings of {runtime.training.processes} GPUs each are more than the {len(_gpus())} of this "
            "machine.",
            f"Give at most --jobs {most}.",
        )
    return asked or most


def _share(runtime: Runtime, jobs: int, number: int) -> tuple[Runtime, list[str]]:
    """The runtime of a lane's stages, and its GPUs."""
    runtime = runtime.with_changes("training", side_by_side=True)
    if _on_gpu(runtime):
        each = runtime.training.processes
        return runtime, _gpus()[number * each : (number + 1) * each]
    if runtime.compute.threads is None:
        threads = max(1, machine.cores() // jobs // runtime.training.processes)
        runtime = runtime.with_changes("compute", threads=threads)
    return runtime, []


def _on_gpu(runtime: Runtime) -> bool:
    return runtime.compute.device != "cpu" and missing_gpu() is None


def _gpus() -> list[str]:
    visible = [name for name in os.environ.get(VISIBLE, "").split(",") if name]
    if visible:
        return visible
    import torch

    return [str(number) for number in range(torch.cuda.device_count())]


class Reporting(Observer):
    """The observer in a lane: reports to the run."""

    def progressed(self, progress: Progress) -> None:
        """See the base."""
        emit(progress=asdict(progress))

    def noted(self, stage: str, message: str) -> None:
        """See the base."""
        emit(stage=stage, noted=message)

    def warned(self, stage: str, message: str) -> None:
        """See the base."""
        emit(stage=stage, warned=message)


def make(order: Order) -> Artifact:
    """Make the stage of an order: the lane's side."""
    assert order.work is not None
    store, stage = Store(order.store), STAGES[order.work.stage]
    config, inputs = order.work.call(stage, store)
    runtime, refresh = Runtime.model_validate(order.runtime), frozenset(order.work.refresh)
    with open_session(Session(store, runtime, order.profile, refresh, Reporting())):
        return stage.materialize(config, inputs)[0]


def main() -> None:
    """Make the stage of each order that comes in, until no more come."""
    guard()
    with stoppable():
        emit(ready=True)
        for line in sys.stdin:
            try:
                emit(location=make(Order.model_validate_json(line)).location)
            except GristmillError as error:
                emit(error=type(error).__name__, message=error.message, remedy=error.remedy, facts=error.facts)


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        main()
