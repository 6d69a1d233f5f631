"""Prefetching in a thread, so that a device never waits for its next batch."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")


def compute_ahead(function: Callable[[T], R], items: Iterable[T], *, depth: int = 2) -> Iterator[R]:
    """`function` of each item, in order, computed up to `depth` items ahead.

    One thread computes, so results stay in order. An error of `function` is raised in place of its result. Closing the
    iterator ends the thread after its current item.
    """
    waiting: deque[Future[R]] = deque()
    with ThreadPoolExecutor(1, "prefetch") as pool:
        try:
            for item in items:
                waiting.append(pool.submit(function, item))
                if len(waiting) > depth:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()
