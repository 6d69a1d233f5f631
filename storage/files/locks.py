"""One process per key: a lock that the kernel releases when its holder dies.

`flock(2)` needs no timeouts and no cleanup: the lock of a process that was killed is free as soon as the process is
gone. The file names the holder, for the message to processes that wait. It works between processes that see the same
file system; machines that share a bucket also have `shared_locks`.
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
    """Hold the lock at `path`, waiting while another process has it; `waiting` is called once with its holder. A
    `shared` one is held together with others that share it."""
    descriptor = _open(path)
    try:
        told = False
        while not _try(descriptor, fcntl.LOCK_SH if shared else fcntl.LOCK_EX):
            if not told:
                waiting(path.read_text(errors="replace") or "another process")
                told = True
            time.sleep(POLL_SECONDS)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"process {os.getpid()} on {socket.gethostname()}".encode(), 0)
        yield
    finally:
        os.close(descriptor)  # releases the lock


@contextmanager
def hold_if_free(path: Path) -> Iterator[bool]:
    """Hold the lock at `path`; False where another process has it."""
    descriptor = _open(path)
    try:
        yield _try(descriptor)
    finally:
        os.close(descriptor)


def share(path: Path) -> int:
    """Hold the lock at `path` with all who share it, and against `hold_if_free`, until the descriptor that this returns
    is closed."""
    descriptor = _open(path)
    fcntl.flock(descriptor, fcntl.LOCK_SH)
    return descriptor


def holder(path: Path) -> str:
    """`process 12 on a-host`, which holds the lock at `path`; nothing of a free one."""
    return path.read_text(errors="replace") if is_held(path) else ""


def is_held(path: Path) -> bool:
    """Whether a running process holds the lock at `path`, which need not be writable."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        return not _try(descriptor)
    finally:
        os.close(descriptor)


def _open(path: Path) -> int:
    path.parent.mkdir(parents=True, exist_ok=True)
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)


def _try(descriptor: int, kind: int = fcntl.LOCK_EX) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
