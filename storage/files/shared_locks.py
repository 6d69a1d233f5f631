"""Locks that machines share: objects in a bucket, by conditional writes, which expire when they are not renewed.

A lock is an object that names its holder and is written again by a thread of it, each time with other bytes. Who waits
takes it over once it has stayed the same for `SECONDS` while watched, by a clock that nobody sets; or at once where its
last write is older than that by more than clocks can differ (S3 refuses a client whose clock is 15 minutes off), or
where it is of a process of this machine that has died, which the kernel's lock of the same name tells. A holder calls
`check` before it does what only one may do.
"""

from __future__ import annotations

import json
import os
import random
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from storage.errors import StoreError
from storage.files import locks
from storage.files.conditional import Conditional, Found

SECONDS = 300.0  # without a renewal until a lock expires
RENEWALS = 5  # within them
CLOCKS = 900.0  # seconds by which the clocks of S3 and a client may differ
POLL_SECONDS = (0.5, 8.0)  # between two looks at a lock: at first, and at most


class SharedLock:
    """An object that this process has written, and renews until `release`. Only its holder ever writes one that is
    `own`: if a collection has removed it, since it had expired, it is written anew."""

    def __init__(self, objects: Conditional, path: str, tag: str, content: dict[str, Any], own: bool = False) -> None:
        self._objects, self._path, self._tag, self._content, self._own = objects, path, tag, content, own
        self._renewed, self._lost = _clock(), False
        self._writing, self._ended = threading.Lock(), threading.Event()
        threading.Thread(target=self._keep, daemon=True).start()

    def write(self, **content: Any) -> None:
        """Renew it, with more content. Raises StoreError."""
        with self._writing:
            self._content |= {**content, "renewed": self._content["renewed"] + 1}
            began, data = _clock(), json.dumps(self._content).encode()
            tag = self._objects.swap(self._path, data, self._tag)
            if tag is None and self._own:
                tag = self._objects.create(self._path, data)
            self._lost |= tag is None
            self._tag, self._renewed = tag or self._tag, began

    def check(self) -> None:
        """Raises StoreError if another machine may have taken it over."""
        if not self._lost and _clock() - self._renewed > SECONDS / 2:
            self.write()
        if self._lost:
            raise StoreError(
                f"{self._path} was taken over by another machine: this one did not renew it for {SECONDS:.0f} seconds.",
                "Run again: what the other one makes meanwhile is waited for.",
            )

    def release(self) -> None:
        """Let go of it. One whose bucket can't be reached expires."""
        self._ended.set()
        with self._writing, suppress(StoreError):
            if not self._lost:
                self._objects.delete(self._path, self._tag)

    def _keep(self) -> None:
        while not self._ended.wait(SECONDS / RENEWALS):
            with suppress(StoreError):  # the next renewal may succeed; `check` knows of it if none does
                if not self._lost:
                    self.write()


class SharedLocks:
    """The locks of a store in a bucket. `machine` tells this machine from others, by a file in its `local` folder."""

    def __init__(self, objects: Conditional, root: str, local: Path) -> None:
        self._objects, self._root, self._local = objects, root, local
        self._machine = ""

    @contextmanager
    def hold(self, name: str, waiting: Callable[[str], None] = lambda holder: None) -> Iterator[SharedLock]:
        """Hold a lock, of which this process holds the local one already; `waiting` is called once with who has it."""
        lock = self._taken(name, waiting)
        try:
            yield lock
        finally:
            lock.release()

    def write(self, name: str, **content: Any) -> SharedLock:
        """A lock that nobody else ever wants, with content for others to read."""
        content |= self._signature()
        tag = self._objects.create(f"{self._root}/{name}", json.dumps(content).encode())
        if tag is None:
            raise StoreError(f"{self._root}/{name} is there already.", "Run again.")
        return SharedLock(self._objects, f"{self._root}/{name}", tag, content, own=True)

    def wait(self, name: str) -> None:
        """Wait until nobody holds a lock, of which this process holds the local one."""
        self._left(name, lambda holder: None)

    def contents(self, folder: str, *, remove: bool) -> Iterator[dict[str, Any]]:
        """The content of each lock in a folder that is held: those of this machine by a process that holds the local
        one too. What others have left can be removed."""
        for path in self._objects.paths(f"{self._root}/{folder}"):
            found = self._objects.read(path)
            if found is None:
                continue
            content = _content(found)
            here = self._local / path.removeprefix(f"{self._root}/")
            dead = self._of_this_machine(content) and not locks.is_held(here)
            if not dead and not _is_old(found):
                yield content
            elif remove:
                self._objects.delete(path, found.tag)

    def _of_this_machine(self, content: dict[str, Any]) -> bool:
        return bool(content.get("machine") == self._signature()["machine"])

    def _taken(self, name: str, waiting: Callable[[str], None]) -> SharedLock:
        path, content = f"{self._root}/{name}", self._signature()
        data = json.dumps(content).encode()
        while True:
            left = self._left(name, waiting)
            tag = self._objects.swap(path, data, left.tag) if left else self._objects.create(path, data)
            if tag:
                return SharedLock(self._objects, path, tag, content)

    def _left(self, name: str, waiting: Callable[[str], None]) -> Found | None:
        """Wait while somebody holds a lock; what one that has expired, or whose holder died, has left of it."""
        seen, since, told = "", 0.0, False
        for pause in _pauses():
            found = self._objects.read(f"{self._root}/{name}")
            if found is None:
                return None
            content = _content(found)
            if found.tag != seen:
                seen, since = found.tag, _clock()
            if self._of_this_machine(content) or _is_old(found) or _clock() - since > SECONDS:
                return found
            if not told:
                waiting(str(content.get("holder", "another machine")))
                told = True
            time.sleep(pause)
        return None

    def _signature(self) -> dict[str, Any]:
        """What this process writes into a lock. A copy of this machine's disk is another machine, and so is this one
        after a restart."""
        if not self._machine:
            boot = Path("/proc/sys/kernel/random/boot_id")
            parts = [_identity(self._local), socket.gethostname(), boot.read_text().strip() if boot.exists() else ""]
            self._machine = " ".join(parts)
        holder = f"process {os.getpid()} on {socket.gethostname()}"
        return {"holder": holder, "machine": self._machine, "id": uuid.uuid4().hex, "renewed": 0}


def _content(found: Found) -> dict[str, Any]:
    try:
        content = json.loads(found.data)
    except ValueError:
        return {}
    return content if isinstance(content, dict) else {}


def _is_old(found: Found) -> bool:
    return (datetime.now(UTC) - found.modified).total_seconds() > SECONDS + CLOCKS


def _clock() -> float:
    """Seconds of a clock that nobody sets, and that goes on while the machine sleeps."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


def _pauses() -> Iterator[float]:
    pause, longest = POLL_SECONDS
    while True:
        yield random.uniform(pause / 2, pause)
        pause = min(2 * pause, longest)


def _identity(local: Path) -> str:
    """The name of a local folder, which the first process that asks gives it."""
    path = local / "locks" / "machine"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_name(f".machine.{uuid.uuid4().hex}")
        draft.write_text(uuid.uuid4().hex)
        with suppress(FileExistsError):  # another process was faster
            os.link(draft, path)
        draft.unlink()
    return path.read_text()
