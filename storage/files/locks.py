"""One process per key: a lock that the kernel releases when its holder dies.

`flock(2)` needs no timeouts and no cleanup: a killed process's lock is free as soon as the process is gone. The file
names the holder, for messages of waiting processes, and stays after the release: deleting it would let two processes
lock different files of the same name. It works between processes that see the same file system. Machines that share a
bucket also use `shared_locks`.
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
def hold(path: Path, waiting: Callable[[str], None] = lambda holder: None, *, shared: bool = False) -> Iterator[None]:
    """Hold the lock at `path`, waiting while another process has it. `waiting` is called once with the holder. A
    `shared` lock may be held by several processes at once."""
    descriptor = _open(path)
    try:
        announced = False
        # Polling, unlike a blocking flock, lets signals interrupt the wait
        while not _try(descriptor, fcntl.LOCK_SH if shared else fcntl.LOCK_EX):
            if not announced:
                waiting(path.read_text(errors="replace") or "another process")
                announced = True
            time.sleep(POLL_SECONDS)
        # Only now, as the holder, overwrite the previous holder's name
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"process {os.getpid()} on {socket.gethostname()}".encode(), 0)
        yield
    finally:
        os.close(descriptor)  # releases the lock


@contextmanager
def hold_if_free(path: Path) -> Iterator[bool]:
    """Hold the lock at `path`, or yield False if another process has it."""
    descriptor = _open(path)
    try:
        yield _try(descriptor)
    finally:
        os.close(descriptor)


def share(path: Path) -> int:
    """Share the lock at `path` with other sharers, and keep `hold_if_free` out, until the returned descriptor is
    closed."""
    descriptor = _open(path)
    fcntl.flock(descriptor, fcntl.LOCK_SH)
    return descriptor


def holder(path: Path) -> str:
    """The holder of the lock at `path`, as `process 12 on a-host`, or empty for a free lock."""
    return path.read_text(errors="replace") if is_held(path) else ""


def is_held(path: Path) -> bool:
    """Whether a running process holds the lock at `path`. The file may be read-only."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        return not _try(descriptor)
    finally:
        os.close(descriptor)  # also releases a lock that was free


def _open(path: Path) -> int:
    path.parent.mkdir(parents=True, exist_ok=True)
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)


def _try(descriptor: int, kind: int = fcntl.LOCK_EX) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
