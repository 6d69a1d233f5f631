"""Runs many programs, several at a time, each in its own sandbox."""

from __future__ import annotations

import queue
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from types import TracebackType

from storage.errors import ConfigError
from tasks.sandbox.config import SandboxConfig
from tasks.sandbox.levels import REMEDY, means_for
from tasks.sandbox.program import Outcome, Program
from tasks.sandbox.worker import Means, Refused, Worker
from tasks.stage import machine


class Sandbox:
    """A context that keeps its workers from one call to the next: starting one takes as long as twenty programs.

    `workers` programs run at a time, by default one per core: with more, programs would run out of time. The isolation
    is `means`, by default the best that this machine offers. However the context or the process ends, no process of a
    program survives it. Raises ConfigError if the isolation is less than the config requires.
    """

    def __init__(self, config: SandboxConfig, workers: int | None = None, means: Means | None = None) -> None:
        self.config = config
        self.workers = workers or machine.cores()
        self.means = means or means_for(config)
        self._crew: list[Worker] = []
        self._opened = ExitStack()

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self._opened.close()
        self._crew.clear()

    def run(self, programs: Sequence[Program]) -> list[Outcome]:
        """Run each program and its tests, and return their outcomes in the same order. Raises LostWorker when a worker
        was killed. The next call then starts new workers."""
        self._hire(min(len(programs), self.workers))
        waiting: queue.SimpleQueue[tuple[int, Program]] = queue.SimpleQueue()
        for numbered in enumerate(programs):
            waiting.put(numbered)
        outcomes: dict[int, Outcome] = {}

        def work(worker: Worker) -> None:
            while True:
                try:
                    number, program = waiting.get_nowait()
                except queue.Empty:
                    return
                outcomes[number] = worker.run(program)

        with ExitStack() as stack:
            pool = stack.enter_context(ThreadPoolExecutor(self.workers, "sandbox"))
            # runs before the pool waits for its threads, so that Ctrl-C and errors don't wait for programs
            stack.push(self._dismiss)
            for future in [pool.submit(work, worker) for worker in self._crew]:
                future.result()
        return [outcomes[number] for number in range(len(programs))]

    def _hire(self, count: int) -> None:
        while len(self._crew) < count:
            try:
                self._crew.append(self._opened.enter_context(Worker(self.config, self.means)))
            except Refused as error:
                raise ConfigError(f"The sandbox did not start: {error}.", REMEDY) from error

    def _dismiss(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        if kind is not None:
            for worker in self._crew:
                worker.stop()
            self._crew.clear()


def run_programs(
    programs: Sequence[Program], config: SandboxConfig, workers: int | None = None, means: Means | None = None
) -> list[Outcome]:
    """Run programs once, as `Sandbox` does. Raises ConfigError and LostWorker."""
    with Sandbox(config, workers, means) as sandbox:
        return sandbox.run(programs)
