"""Shards in worker processes, which end with the process that started them, by kill -9 of it too."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Collection
from concurrent.futures import Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

from tasks.children.parent import die_with_parent
from tasks.shards.executors import OUTSTANDING, WorkerLost
from tasks.shards.shard import Call, work


class Processes:
    """So many worker processes, each started when there is work for it."""

    by_reference = True

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self.advice = f"Lower runtime.data.workers, now {workers}"
        self._pool = _pool(workers)

    def begin(self, folder: Path, shards: int) -> None:
        """They run this code and see these files."""

    def room(self) -> int:
        """For each process what it has, and what comes next."""
        return OUTSTANDING * self.workers

    def submit(self, call: Call) -> Future[None]:
        """Have it run in a process. A pool that lost one is broken, so another takes its place."""
        try:
            return self._pool.submit(work, call)
        except BrokenProcessPool:
            self._pool.shutdown()
            self._pool = _pool(self.workers)
            return self._pool.submit(work, call)

    def meaning(self, error: BaseException) -> BaseException:
        """A broken pool means that a worker was lost, whichever of them it was."""
        return WorkerLost() if isinstance(error, BrokenProcessPool) else error

    def abandon(self, futures: Collection[Future[None]]) -> None:
        """Wait for those that run: their shards will be found done."""
        wait([future for future in futures if not future.cancel()])

    def close(self) -> None:
        """End the processes."""
        self._pool.shutdown(cancel_futures=True)


def _pool(workers: int) -> ProcessPoolExecutor:
    """Spawned, not forked: Prefect and torch have threads running, and forking a process with threads can deadlock."""
    context = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(workers, mp_context=context, initializer=_begin, initargs=(os.getpid(),))


def _begin(parent: int) -> None:
    die_with_parent(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent decides what to do
