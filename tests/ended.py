"""Whether processes have ended, for tests of what must not outlive its parent."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path

SECONDS = 20.0


def is_running(pid: int) -> bool:
    """Whether a process is there, and is no zombie, which only its parent can remove."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:  # ENOENT, or ESRCH from a read, as it ends in between
        return False


def have_ended(pids: Iterable[int], seconds: float = SECONDS) -> bool:
    """Whether these processes end in time."""
    left = set(pids)
    deadline = time.monotonic() + seconds
    while (left := set(filter(is_running, left))) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not left
