"""Shards in worker processes, which end with the process that started them, even by kill -9.

By default this process begins a map in its threads. Another process imports for a second or two before it can work, so
others are started as soon as they would save more than they cost. Once all are ready, this process goes on with one
thread, as one of the workers: it has imported already. They stay for the rest of the run. A small corpus is done sooner
without them.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import active_children
from multiprocessing.context import SpawnContext, SpawnProcess
from pathlib import Path
from types import ModuleType
from typing import Any

from tasks.children.die_with_parent import die_with_parent
from tasks.shards.executors import OUTSTANDING, WorkerLost
from tasks.shards.shard import Call, work_elsewhere
from tasks.shards.threads import Threads
from tasks.stage import machine

FIRST = 0.5  # seconds of a map after which it is estimated. Its first shard also loads what all need
THREADS_LOSE = 0.2  # of their time, waiting for the interpreter's lock where the work releases it
SAVED = 1.5  # minimum seconds that the workers must save in the map that starts them
GRACE = 5.0  # seconds that a running call gets when its map has ended early
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# What workers import before they are ready: the work that holds the interpreter's lock, and so gains most
IMPORTED = ("tasks.download.portions", "tasks.filter.pii.measure", "tasks.tokenizer.sample")


class Processes:
    """Worker processes, `workers` of them, each started when it has work."""

    by_reference = True

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self.advice = f"Lower runtime.data.workers, now {workers}"
        self._pool = _pool(workers)

    def begin(self, folder: Path, shards: int, releases_gil: bool) -> None:
        """Nothing to check: they run this code and see these files."""

    def room(self) -> int:
        """Two calls for each process: the running one and the next."""
        return OUTSTANDING * self.workers

    def submit(self, call: Call) -> Future[None]:
        """Run a call in a process. A pool that lost a process is broken, so a new pool replaces it."""
        try:
            return self._submit(work_elsewhere, call)
        except BrokenProcessPool:
            self._pool.shutdown()
            self._pool = _pool(self.workers)
            return self._submit(work_elsewhere, call)

    def meaning(self, error: BaseException) -> BaseException:
        """A broken pool means that some worker was lost."""
        return WorkerLost() if isinstance(error, BrokenProcessPool) else error

    def abandon(self, futures: Collection[Future[None]]) -> None:
        """Wait for running calls, as a later run will find their shards done, but end those that take long. The pool
        cancels the others: if a worker dies now, a pool of Python 3.11 fails at a call that someone else cancelled."""
        if futures:
            late = threading.Timer(GRACE, _kill_workers)
            late.start()
            self._pool.shutdown(cancel_futures=True)
            late.cancel()
            self._pool = _pool(self.workers)

    def close(self) -> None:
        """End the processes."""
        self._pool.shutdown(cancel_futures=True)

    def _submit(self, function: Callable[..., None], *arguments: Any) -> Future[None]:
        with _signals_wait():
            return self._pool.submit(function, *arguments)


class PerhapsProcesses(Processes):
    """Threads of this process, one where the work holds the interpreter's lock. Then one thread and `workers` - 1
    processes, which stay for later maps."""

    def __init__(self, workers: int) -> None:
        super().__init__(workers - 1)
        self.advice = f"Lower runtime.data.workers, now {workers}"
        self._threads = Threads(workers)
        self._imports: list[Future[None]] = []  # of processes that were started

    def begin(self, folder: Path, shards: int, releases_gil: bool) -> None:
        """Judge each map afresh. Processes that an earlier one has started are there at once."""
        self._here: list[Future[None]] = []
        self._shards, self._done, self._many = shards, 0, False
        self._alone = self._threads.room() if releases_gil else 1
        self._saves = THREADS_LOSE if releases_gil else 1 - 1 / (1 + self.workers)
        self._began = _clock()

    def room(self) -> int:
        """Of work that holds the interpreter's lock, one call while only this process works."""
        running = [each for each in self._here if not each.done()]
        self._done += len(self._here) - len(running)
        self._here = running
        self._many = self._many or self._pays(_clock() - self._began)
        return max(1, len(running)) + super().room() if self._many else self._alone

    def submit(self, call: Call) -> Future[None]:
        """Run a call here, or in a process."""
        if self._many and (self._here or call.lost):
            return super().submit(call)
        self._here.append(self._threads.submit(call))
        return self._here[-1]

    def abandon(self, futures: Collection[Future[None]]) -> None:
        """If calls of processes are among them, a later map starts its own processes."""
        elsewhere = set(futures) - set(self._here)
        self._threads.abandon(set(futures) - elsewhere)
        super().abandon(elsewhere)
        self._imports = [] if elsewhere else self._imports

    def close(self) -> None:
        """End the threads and the processes."""
        self._threads.close()
        super().close()

    def _pays(self, seconds: float) -> bool:
        """Whether there are other processes, ready, and shards for them. `seconds` after the map began, starts them if
        they are worth it."""
        left = self._shards - self._done
        if left <= 1:
            return False
        here = seconds / max(1, self._done) * left
        if not self._imports and seconds > FIRST and here * self._saves > SAVED:
            self._imports = [self._submit(_import) for _ in range(self.workers)]
        return bool(self._imports) and all(each.done() for each in self._imports)


def _import() -> None:
    for name in IMPORTED:
        importlib.import_module(name)


def compiles() -> bool:
    """Whether this process is compiling kernels, as the first run on a machine does."""
    known = machine.compiling()
    return known is not None and known.depth > 0


def _clock() -> float:
    """Seconds, without those spent compiling: other processes would only wait for the same kernels."""
    return time.monotonic() - machine.compiled_seconds()


class _Worker(SpawnProcess):
    """A process that doesn't import the program that started it. A script without `if __name__ == "__main__":` would
    run again in each worker, and no worker needs it."""

    def start(self) -> None:
        """Hide the program while the process is described."""
        program = sys.modules["__main__"]
        sys.modules["__main__"] = ModuleType("__main__")
        try:
            super().start()
        finally:
            sys.modules["__main__"] = program


class _Context(SpawnContext):
    """Spawned, not forked: Prefect and torch run threads, and forking a process with threads can deadlock."""

    Process = _Worker


def _pool(workers: int) -> ProcessPoolExecutor:
    return ProcessPoolExecutor(workers, mp_context=_Context(), initializer=_begin, initargs=(os.getpid(),))


def _begin(parent: int) -> None:
    die_with_parent(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent decides what to do
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])


@contextmanager
def _signals_wait() -> Iterator[None]:
    """Signals of this process are handled at the end of the block, as an interrupted pool forgets the process that it
    was starting. That one has SIGINT blocked until it can ignore it."""
    came: list[int] = []
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    mine = SIGNALS if threading.current_thread() is threading.main_thread() else ()
    handled = {number: handler for number in mine if callable(handler := signal.getsignal(number))}
    for number in handled:
        signal.signal(number, lambda number, _: came.append(number))
    try:
        yield
    finally:
        for number, handler in handled.items():
            signal.signal(number, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        for late in came:
            signal.raise_signal(late)


def _kill_workers() -> None:
    for child in active_children():
        if isinstance(child, _Worker):
            child.kill()
