"""Many programs, several at a time, each in a sandbox of its own."""

from __future__ import annotations

import queue
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

from storage.errors import ConfigError, LostWorker
from tasks.sandbox.config import SandboxConfig
from tasks.sandbox.levels import REMEDY, means_for
from tasks.sandbox.program import Outcome, Program
from tasks.sandbox.worker import Means, Refused, Worker
from tasks.stage import machine


def run_programs(
    programs: Sequence[Program], config: SandboxConfig, workers: int | None = None, means: Means | None = None
) -> list[Outcome]:
    """Run each program and its tests, and return how they went, in the same order.

    `workers` run at a time, by default one a core: more of them than cores lets programs run out of time. The isolation
    is the best that this machine offers, or `means`. Raises ConfigError where that is less than the config demands,
    LostWorker when a worker was killed. Whatever ends this call, no process of a program is left.
    """
    means = means or means_for(config)
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

    with ExitStack() as opened:
        count = min(len(programs), workers or machine.cores())
        try:
            crew = [opened.enter_context(Worker(config, means)) for _ in range(count)]
        except Refused as error:
            raise ConfigError(f"The sandbox did not start: {error}.", REMEDY) from error
        pool = opened.enter_context(ThreadPoolExecutor(max(count, 1), "sandbox"))
        for worker in crew:  # stopped before the pool is waited for, so that Ctrl-C need not wait for programs
            opened.callback(worker.stop)
        for done in [pool.submit(work, worker) for worker in crew]:
            done.result()
    if len(outcomes) < len(programs):
        raise LostWorker("The workers of the sandbox ended early.", "Run again.")
    return [outcomes[number] for number in range(len(programs))]
