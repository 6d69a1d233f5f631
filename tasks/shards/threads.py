"""Shards in threads: for work that leaves the interpreter's lock to others (numba, Arrow)."""

from __future__ import annotations

from concurrent.futures import Executor, ThreadPoolExecutor


def threads_of(workers: int) -> Executor:
    """A pool of so many threads."""
    return ThreadPoolExecutor(workers)
