"""Signs of life: the rank that speaks says when it will be heard of again, and each rank writes down where it hangs.

Beats come from where the work is done, never from a thread of their own, which would beat on in a hanging process.
A rank that hangs stops the others at the next collective, so one speaks for all.
"""

from __future__ import annotations

import faulthandler
import time
from dataclasses import dataclass, field

from tasks.children.child import emit

EVERY_SECONDS = 1.0
SLOW_SECONDS = 30 * 60.0  # for what takes long once: joining the others, reading weights, writing the model
SOONER = 0.9  # of the limit, after which a rank that hangs writes its stacks to the log


@dataclass
class Beat:
    """Of this process; `seconds` is the longest that a step, or whatever comes between two steps, may take."""

    speaks: bool
    seconds: float
    last: float = field(default=0.0, init=False)

    def slow(self) -> None:
        """Something begins that may take long."""
        self._next(max(self.seconds, SLOW_SECONDS))

    def __call__(self) -> None:
        """The work goes on."""
        if time.monotonic() - self.last >= min(EVERY_SECONDS, self.seconds / 4):
            self._next(self.seconds)

    def stop(self) -> None:
        """The work has ended, well or not: nothing hangs any more."""
        faulthandler.cancel_dump_traceback_later()

    def _next(self, seconds: float) -> None:
        self.last = time.monotonic()
        faulthandler.dump_traceback_later(SOONER * seconds)
        if self.speaks:
            emit(heartbeat=seconds)
