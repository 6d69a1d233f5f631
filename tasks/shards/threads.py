"""Shards in threads, for work that leaves the interpreter's lock to others (numba, Arrow), and in this very thread."""

from __future__ import annotations

from collections.abc import Collection
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path

from tasks.shards.executors import OUTSTANDING
from tasks.shards.shard import Call, work


class Here:
    """No worker: each call runs as it is submitted. What it raises, `submit` raises."""

    by_reference = False
    advice = ""

    def begin(self, folder: Path, shards: int) -> None:
        """This process sees its own files."""

    def room(self) -> int:
        """One: it runs while it is submitted."""
        return 1

    def submit(self, call: Call) -> Future[None]:
        """Run it."""
        work(call)
        done: Future[None] = Future()
        done.set_result(None)
        return done

    def meaning(self, error: BaseException) -> BaseException:
        """Itself."""
        return error

    def abandon(self, futures: Collection[Future[None]]) -> None:
        """None is left."""

    def close(self) -> None:
        """Nothing to end."""


class Threads(Here):
    """So many threads of this process."""

    def __init__(self, workers: int) -> None:
        self._workers, self._pool = workers, ThreadPoolExecutor(workers)

    def room(self) -> int:
        """For each thread what it has, and what comes next."""
        return OUTSTANDING * self._workers

    def submit(self, call: Call) -> Future[None]:
        """Have it run in a thread."""
        return self._pool.submit(work, call)

    def abandon(self, futures: Collection[Future[None]]) -> None:
        """Wait for those that run: a thread can't be ended."""
        wait([future for future in futures if not future.cancel()])

    def close(self) -> None:
        """End the threads."""
        self._pool.shutdown(cancel_futures=True)
