"""Shards in worker processes, which end with the process that started them, even by kill -9.

Workers that stay for a run are forked from a server, a process that has imported what they need: else each would spend
a second or two on the same imports. By default this process begins a map in its threads. It starts the server as soon
as workers would save more than they cost, and hands over when the server is ready. A small corpus is done sooner
without them.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Collection
from concurrent.futures import Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import forkserver
from multiprocessing.context import ForkServerContext, ForkServerProcess, SpawnContext, SpawnProcess
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import ModuleType

from tasks.children.die_with_parent import die_with_parent
from tasks.shards.executors import OUTSTANDING, WorkerLost
from tasks.shards.shard import Call, work_elsewhere
from tasks.shards.threads import Threads
from tasks.stage import machine

FIRST = 0.5  # seconds of a map after which it is estimated. Its first shard also loads what all need
READY = 1.5  # seconds in which the server imports, while this process goes on
THREADS_LOSE = 0.2  # of their time, waiting for the interpreter's lock where the work releases it
SAVED = 1.0  # minimum seconds that the first workers must save
LONGEST = 70  # bytes of the folder for temporary files in which the server's socket has a path that is short enough
# What the server imports: the work that holds the interpreter's lock, and so runs in processes
IMPORTED = ("tasks.download.portions", "tasks.filter.pii.measure", "tasks.tokenizer.sample")

_KEPT: set[Processes] = set()  # that may use the server
_LOCK = threading.Lock()


class Processes:
    """Worker processes, `workers` of them, each started when it has work. Those of one map are new processes, which
    have imported nothing; those that are `kept` for a run are forked, unless the server's socket can't have a path."""

    by_reference = True

    def __init__(self, workers: int, *, kept: bool = False) -> None:
        self.workers = workers
        self._kept = kept and len(os.fsencode(tempfile.gettempdir())) < LONGEST
        self.advice = f"Lower runtime.data.workers, now {workers}"
        self._pool = self._new_pool()
        if self._kept:
            with _LOCK:
                _KEPT.add(self)

    def begin(self, folder: Path, shards: int, releases_gil: bool) -> None:
        """Nothing to check: they run this code and see these files."""

    def room(self) -> int:
        """Two calls for each process: the running one and the next."""
        return OUTSTANDING * self.workers

    def submit(self, call: Call) -> Future[None]:
        """Run a call in a process. A pool that lost a process is broken, so a new pool replaces it."""
        if self._kept:
            _serve()
        try:
            return self._pool.submit(work_elsewhere, call)
        except BrokenProcessPool:
            self._pool.shutdown()
            self._pool = self._new_pool()
            return self._pool.submit(work_elsewhere, call)

    def meaning(self, error: BaseException) -> BaseException:
        """A broken pool means that some worker was lost."""
        return WorkerLost() if isinstance(error, BrokenProcessPool) else error

    def abandon(self, futures: Collection[Future[None]]) -> None:
        """Wait for running calls: a later run will find their shards done."""
        wait([future for future in futures if not future.cancel()])

    def close(self) -> None:
        """End the processes."""
        self._pool.shutdown(cancel_futures=True)
        with _LOCK:
            _KEPT.discard(self)
            if self._kept and not _KEPT:
                # As Python's own tests do. Its processor time, with that of its workers, then counts as this process's
                forkserver._forkserver._stop()  # type: ignore[attr-defined]

    def _new_pool(self) -> ProcessPoolExecutor:
        context, begin = (_Forking(), _begin_forked) if self._kept else (_Spawning(), _begin)
        return ProcessPoolExecutor(self.workers, mp_context=context, initializer=begin, initargs=(os.getpid(),))


class PerhapsProcesses(Processes):
    """Threads of this process, one where the work holds the interpreter's lock, then `workers` processes, which stay
    for later maps."""

    def __init__(self, workers: int) -> None:
        super().__init__(workers, kept=True)
        self._threads = Threads(workers)
        self._served: float | None = None  # when the server was started

    def begin(self, folder: Path, shards: int, releases_gil: bool) -> None:
        """Judge each map afresh. Workers that an earlier one has started are there at once."""
        self._shards, self._done, self._many = shards, 0, False
        self._here = self._threads.room() if releases_gil else 1
        self._saves = THREADS_LOSE if releases_gil else 1 - 1 / self.workers
        self._began = _clock()

    def room(self) -> int:
        """Of work that holds the interpreter's lock, one call while only this process works."""
        self._many = self._many or self._pays(_clock() - self._began)
        return super().room() if self._many else self._here

    def submit(self, call: Call) -> Future[None]:
        """Run a call here, or in a process."""
        if self._many:
            return super().submit(call)
        future = self._threads.submit(call)
        future.add_done_callback(self._count)
        return future

    def close(self) -> None:
        """End the threads and the processes."""
        self._threads.close()
        super().close()

    def _count(self, _: Future[None]) -> None:
        self._done += 1

    def _pays(self, seconds: float) -> bool:
        """Whether processes are worth their start, `seconds` after the map began, and their server is ready."""
        left = self._shards - self._done
        if self._served is None:
            here = seconds / max(1, self._done) * left
            if left > 1 and seconds > FIRST and here * self._saves > SAVED:
                self._served = time.monotonic()
                if self._kept:
                    _serve()
            return False
        return left > 1 and time.monotonic() - self._served > READY


def _serve() -> None:
    """Start the server, unless it runs. It has the environment of this moment, starts no thread and runs no work."""
    with _LOCK:
        forkserver.set_forkserver_preload([*IMPORTED])
        forkserver.ensure_running()


def compiles() -> bool:
    """Whether this process is compiling kernels, as the first run on a machine does."""
    known = machine.compiling()
    return known is not None and known.depth > 0


def _clock() -> float:
    """Seconds, without those spent compiling: other processes would only wait for the same kernels."""
    return time.monotonic() - machine.compiled_seconds()


class _Worker(BaseProcess):
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


class _Spawned(_Worker, SpawnProcess):
    pass


class _Forked(_Worker, ForkServerProcess):
    pass


# Neither forks this process: Prefect and torch run threads, and forking a process with threads can deadlock
class _Spawning(SpawnContext):
    Process = _Spawned


class _Forking(ForkServerContext):
    Process = _Forked


def _begin(parent: int) -> None:
    die_with_parent(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent decides what to do


def _begin_forked(_: int) -> None:
    """The kernel would end this process with the server, which lives as long as any worker does."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os.kill(os.getpid(), signal.SIGKILL)
