"""One maker a key: a lock that the kernel frees when its holder dies.

`flock(2)` needs no time-outs and no clean-up: a lock left by kill -9 is free the moment the process is gone. The file
names the holder, for the message to whoever waits. It holds between processes that see the same file system; two
machines on one bucket may both make an artifact, and the first manifest wins.
"""

from __future__ import annotations

import fcntl
import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

POLL_SECONDS = 0.2


@contextmanager
def hold(path: Path, waiting: Callable[[str], None] = lambda holder: None) -> Iterator[None]:
    """Hold the lock at `path`, waiting as long as another process has it; `waiting` is told once who that is."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        told = False
        while not _try(descriptor):
            if not told:
                waiting(path.read_text() or "another process")
                told = True
            time.sleep(POLL_SECONDS)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"process {os.getpid()} on {socket.gethostname()}".encode(), 0)
        yield
    finally:
        os.close(descriptor)  # frees the lock


def is_held(path: Path) -> bool:
    """Whether a living process holds the lock at `path`."""
    if not path.exists():
        return False
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        return not _try(descriptor)
    finally:
        os.close(descriptor)


def _try(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
