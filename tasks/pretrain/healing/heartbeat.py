"""Heartbeats: the reporting rank announces the next one, and a hanging rank logs its stacks.

Heartbeats come from the training loop, never from a thread, which would live on in a hanging process. A rank that hangs
stops the others at the next collective, so one rank can report for all.
"""

from __future__ import annotations

import faulthandler
import time
from dataclasses import dataclass, field

from tasks.children.child import emit

EVERY_SECONDS = 1.0
SLOW_SECONDS = 30 * 60.0  # for joining the other ranks, reading weights, writing the model
STACKS_AFTER = 0.9  # of the limit, a hanging rank writes its stacks to the log


@dataclass
class Heartbeat:
    """The heartbeat of this process. `seconds` is the limit for a step, and for the work between two steps."""

    reports: bool
    seconds: float
    last: float = field(default=0.0, init=False)

    def slow(self) -> None:
        """Call before something slow, such as reading weights."""
        self._next(max(self.seconds, SLOW_SECONDS))

    def __call__(self) -> None:
        """Call whenever work has progressed."""
        if time.monotonic() - self.last >= min(EVERY_SECONDS, self.seconds / 4):
            self._next(self.seconds)

    def stop(self) -> None:
        """Call when the work has ended, successfully or not."""
        faulthandler.cancel_dump_traceback_later()

    def _next(self, seconds: float) -> None:
        self.last = time.monotonic()
        # In C, so that it works while Python hangs in a call. Each new timer replaces the last
        faulthandler.dump_traceback_later(STACKS_AFTER * seconds)
        if self.reports:
            emit(heartbeat=seconds)
