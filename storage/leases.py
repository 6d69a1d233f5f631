"""Leases: what a running run has taken or made, so that a garbage collection lets it be.

A run's refs may be moved by another run of the same profile; its inputs are then nobody's but its own. A lease is a
file that names keys, one a line, under a lock that the kernel releases when the process dies: a lease that nobody holds
counts for nothing. A key is leased before it is looked up, and a collection deletes under the same lock, so an artifact
is either seen as leased or not found.

In a bucket a run also writes its keys into an object there, which expires when it is not renewed. It then waits for a
collection of another machine that is deleting, which may have begun before that object was there.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType

from storage.errors import StoreError
from storage.files import locks
from storage.files.disk import cant_write
from storage.files.shared_locks import SharedLock
from storage.store import Store

FOLDER = "leases"
COLLECTION = "locks/collection"


class Lease:
    """The keys that this process uses in a store."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.path = store.local / FOLDER / f"{os.getpid()}-{uuid.uuid4().hex[:8]}"
        self.keys: set[str] = set()
        self._held = locks.hold(self.path)
        self._shared: SharedLock | None = None
        self._needless = False

    def add(self, key: str) -> None:
        """Lease `stage/key`, all its generations. A store that can only be read needs no lease to be read."""
        if key in self.keys or self._needless:
            return
        try:
            self._add(key)
        except (OSError, StoreError) as error:
            if not cant_write(error):
                raise
            self._needless = True

    def _add(self, key: str) -> None:
        self.store.begin()
        with locks.hold(_collection(self.store)):
            if not self.keys:
                self._held.__enter__()
                self.path.write_text("")
            self.keys.add(key)
            with self.path.open("a") as file:
                file.write(f"{key}\n")
            self._share()

    def _share(self) -> None:
        """Tell other machines."""
        shared, keys = self.store.shared, sorted(self.keys)
        if shared is None:
            return
        if self._shared:
            self._shared.write(keys=keys)
        else:
            self._shared = shared.write(f"{FOLDER}/{self.path.name}", keys=keys)
        shared.wait(COLLECTION)

    def __enter__(self) -> Lease:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._shared:
            self._shared.release()
        if self.keys:
            self.path.unlink(missing_ok=True)
            self._held.__exit__(None, None, None)
            self.keys.clear()


@contextmanager
def deleting(store: Store) -> Iterator[tuple[set[str], Callable[[], None]]]:
    """`stage/key` of everything that a running process has leased; none is added within the block. Leases of dead
    processes are removed. Before each deletion call what comes with them: it raises StoreError where the block is
    that of another machine by now."""
    with locks.hold(_collection(store)):
        if store.shared is None:
            yield leased(store, remove=True), lambda: None
            return
        with store.shared.hold(COLLECTION) as lock:
            yield leased(store, remove=True), lock.check


def leased(store: Store, *, remove: bool = False) -> set[str]:
    """`stage/key` of everything that a running process has leased now; leases of dead ones can be removed."""
    keys: set[str] = set()
    for path in sorted((store.local / FOLDER).glob("*")):
        with suppress(FileNotFoundError):
            if locks.is_held(path):
                keys |= set(path.read_text(errors="replace").split())
            elif remove:
                path.unlink()
    if store.lock_objects:
        for content in store.lock_objects.contents(FOLDER, remove=remove):
            keys |= set(content.get("keys", ()))
    return keys


def _collection(store: Store) -> Path:
    return store.local / "locks" / "collection"
