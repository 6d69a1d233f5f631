"""A guard against quadratic time: no measure of speed, which is the benchmarks' business."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

SECONDS = 60  # of CPU, for work of one or two. Quadratic time takes minutes to hours


@contextmanager
def linear_time() -> Iterator[None]:
    """Fails when the block takes so long that it can't be linear in its input."""
    started = time.process_time()
    yield
    assert time.process_time() - started < SECONDS
