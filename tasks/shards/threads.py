"""Shards in threads, for work that releases the interpreter's lock (numba, Arrow), and in the calling thread."""

from __future__ import annotations

from collections.abc import Collection
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path

from tasks.shards.executors import OUTSTANDING
from tasks.shards.shard import Call, work


class Here:
    """No worker: `submit` runs the call, and raises its error."""

    by_reference = False
    advice = ""

    def begin(self, folder: Path, shards: int, releases_gil: bool) -> None:
        """Nothing to check: this process sees its own files."""

    def room(self) -> int:
        """One call, which runs while it is submitted."""
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
        """Nothing to give up: no call is left running."""

    def close(self) -> None:
        """Nothing to end."""


class Threads(Here):
    """Threads of this process, `workers` of them."""

    def __init__(self, workers: int) -> None:
        self._workers, self._pool = workers, ThreadPoolExecutor(workers)

    def room(self) -> int:
        """Two calls for each thread: the running one and the next."""
        return OUTSTANDING * self._workers

    def submit(self, call: Call) -> Future[None]:
        """Run a call in a thread."""
        return self._pool.submit(work, call)

    def abandon(self, futures: Collection[Future[None]]) -> None:
        """Wait for running calls: a thread can't be ended."""
        wait([future for future in futures if not future.cancel()])

    def close(self) -> None:
        """End the threads."""
        self._pool.shutdown(cancel_futures=True)
