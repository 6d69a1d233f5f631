"""Locks shared by machines: objects in a bucket, written conditionally, which expire unless they are renewed.

A lock is an object that names its holder. A thread of the holder rewrites it, each time with other bytes. A waiting
process takes a lock over

- once it has watched the lock unchanged for `SECONDS`, by a clock that nobody sets,
- at once if the last write is older than that by more than clocks can differ (S3 refuses a client whose clock is 15
  minutes off),
- at once if a process of this machine wrote it and died. The caller holds the kernel's lock of the same name, so no
  other process of this machine can hold the object.

The takeover is a conditional write, so only one of several waiting processes succeeds. A holder calls `check` before it
does what only one may do.
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
from storage.files.conditional import Conditional, Item

SECONDS = 300.0  # without a renewal before a lock expires
RENEWALS = 5  # in that time
CLOCKS = 900.0  # seconds by which the clocks of S3 and a client may differ
POLL_SECONDS = (0.5, 8.0)  # between two reads of a lock: at first, and at most


class SharedLock:
    """An object that this process has written, and renews until `release`. Nobody else ever writes an `own` object, so
    if a collection removed it after it expired, it is written again."""

    def __init__(self, objects: Conditional, path: str, tag: str, content: dict[str, Any], own: bool = False) -> None:
        self._objects, self._path, self._tag, self._content, self._own = objects, path, tag, content, own
        self._renewed, self._lost = _clock(), False
        self._writing, self._ended = threading.Lock(), threading.Event()
        threading.Thread(target=self._keep, daemon=True).start()

    def write(self, **content: Any) -> None:
        """Renew the lock, with additional content. Raises StoreError."""
        with self._writing:
            self._content |= {**content, "renewed": self._content["renewed"] + 1}
            # The time before the request: a slow one may have arrived any time since
            began, data = _clock(), json.dumps(self._content).encode()
            tag = self._objects.swap(self._path, data, self._tag)
            if tag is None and self._own:
                tag = self._objects.create(self._path, data)
            # Once another machine has written the object, this one never regains it
            self._lost |= tag is None
            self._tag, self._renewed = tag or self._tag, began

    def check(self) -> None:
        """Raises StoreError if another machine may have taken the lock over."""
        # Half of the time is left for what the caller does next
        if not self._lost and _clock() - self._renewed > SECONDS / 2:
            self.write()
        if self._lost:
            raise StoreError(
                f"Another machine took {self._path} over: this one did not renew it for {SECONDS:.0f} seconds.",
                "Run again: it waits for what the other machine makes.",
            )

    def release(self) -> None:
        """Release the lock. If the bucket can't be reached, it expires."""
        self._ended.set()
        with self._writing, suppress(StoreError):
            if not self._lost:
                self._objects.delete(self._path, self._tag)

    def _keep(self) -> None:
        while not self._ended.wait(SECONDS / RENEWALS):
            with suppress(StoreError):  # the next renewal may succeed. If none does, `check` raises
                if not self._lost:
                    self.write()


class SharedLocks:
    """The locks of a store in a bucket. A file in the `local` folder identifies this machine."""

    def __init__(self, objects: Conditional, root: str, local: Path) -> None:
        self._objects, self._root, self._local = objects, root, local
        self._machine = ""

    @contextmanager
    def hold(self, name: str, waiting: Callable[[str], None] = lambda holder: None) -> Iterator[SharedLock]:
        """Hold a lock whose local one this process already holds. `waiting` is called once with the holder."""
        lock = self._take(name, waiting)
        try:
            yield lock
        finally:
            lock.release()

    def write(self, name: str, **content: Any) -> SharedLock:
        """Write a lock that nobody else ever takes, with content for others to read."""
        content |= self._signature()
        tag = self._objects.create(f"{self._root}/{name}", json.dumps(content).encode())
        if tag is None:
            raise StoreError(f"{self._root}/{name} already exists.", "Run again.")
        return SharedLock(self._objects, f"{self._root}/{name}", tag, content, own=True)

    def wait(self, name: str) -> None:
        """Wait until nobody holds a lock whose local one this process holds."""
        self._wait(name, lambda holder: None)

    def contents(self, folder: str, *, remove: bool) -> Iterator[dict[str, Any]]:
        """The content of each held lock in a folder. On this machine a process must also hold the local lock. `remove`
        deletes abandoned ones."""
        for path in self._objects.paths(f"{self._root}/{folder}"):
            item = self._objects.read(path)
            if item is None:
                continue
            content = _content(item)
            local = self._local / path.removeprefix(f"{self._root}/")
            dead = self._of_this_machine(content) and not locks.is_held(local)
            if not dead and not _is_old(item):
                yield content
            elif remove:
                self._objects.delete(path, item.tag)  # unless its holder renews it now, which changes the tag

    def _of_this_machine(self, content: dict[str, Any]) -> bool:
        return bool(content.get("machine") == self._signature()["machine"])

    def _take(self, name: str, waiting: Callable[[str], None]) -> SharedLock:
        path, content = f"{self._root}/{name}", self._signature()
        data = json.dumps(content).encode()
        while True:
            abandoned = self._wait(name, waiting)
            # Both writes are conditional: they fail if anybody wrote, renewed or deleted the object since it was read
            tag = self._objects.swap(path, data, abandoned.tag) if abandoned else self._objects.create(path, data)
            if tag:
                return SharedLock(self._objects, path, tag, content)

    def _wait(self, name: str, waiting: Callable[[str], None]) -> Item | None:
        """Wait while somebody holds a lock. Returns the object of one that expired or whose holder died, or None if
        there is no object."""
        seen, since, announced = "", 0.0, False
        for pause in _pauses():
            item = self._objects.read(f"{self._root}/{name}")
            if item is None:
                return None
            content = _content(item)
            # A new tag is a renewal or another holder: the watch starts again
            if item.tag != seen:
                seen, since = item.tag, _clock()
            # The caller holds the local lock, so the object of this machine is a dead process's
            if self._of_this_machine(content) or _is_old(item) or _clock() - since > SECONDS:
                return item
            if not announced:
                waiting(str(content.get("holder", "another machine")))
                announced = True
            time.sleep(pause)
        return None

    def _signature(self) -> dict[str, Any]:
        """The content that this process writes into a lock. A copy of this machine's disk counts as another machine,
        and so does this machine after a restart."""
        if not self._machine:
            boot = Path("/proc/sys/kernel/random/boot_id")
            parts = [_identity(self._local), socket.gethostname(), boot.read_text().strip() if boot.exists() else ""]
            self._machine = " ".join(parts)
        holder = f"process {os.getpid()} on {socket.gethostname()}"
        return {"holder": holder, "machine": self._machine, "id": uuid.uuid4().hex, "renewed": 0}


def _content(item: Item) -> dict[str, Any]:
    try:
        content = json.loads(item.data)
    except ValueError:
        return {}
    return content if isinstance(content, dict) else {}


def _is_old(item: Item) -> bool:
    """Whether the last write is so old that the lock has expired by any pair of clocks."""
    return (datetime.now(UTC) - item.modified).total_seconds() > SECONDS + CLOCKS


def _clock() -> float:
    """Seconds of a clock that nobody sets, and that also runs while the machine sleeps."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


def _pauses() -> Iterator[float]:
    pause, longest = POLL_SECONDS
    while True:
        yield random.uniform(pause / 2, pause)
        pause = min(2 * pause, longest)


def _identity(local: Path) -> str:
    """The id of a local folder, created by the first process that needs it."""
    path = local / "locks" / "machine"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_name(f".machine.{uuid.uuid4().hex}")
        draft.write_text(uuid.uuid4().hex)
        with suppress(FileExistsError):  # another process was faster
            os.link(draft, path)
        draft.unlink()
    return path.read_text()
