"""Leases: the artifacts that a running run uses or has made, so that a garbage collection keeps them.

Another run of the same profile may move the refs, and then nothing else names this run's inputs. A lease is a file of
keys, one a line, under a lock that the kernel releases when the process dies. A lease that nobody holds doesn't count.
A key is leased before it is looked up, and a collection deletes under the same lock, so a run either leases an artifact
in time or doesn't find it.

For a bucket a run also writes its keys into an object there, which expires unless it is renewed. Then it waits for any
collection of another machine, which may have started deleting before that object existed.
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
        """Lease `stage/key` with all its generations. Reading a read-only store needs no lease."""
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
        """Publish the lease to other machines."""
        shared, keys = self.store.shared, sorted(self.keys)
        if shared is None:
            return
        # Write first, then wait: a later collection sees the lease, and an earlier one is over
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
def deletion(store: Store) -> Iterator[tuple[set[str], Callable[[], None]]]:
    """`stage/key` of everything that running processes have leased, and a check. Within the block no lease is added.
    Removes leases of dead processes. Call the check before each deletion: it raises StoreError if another machine may
    have taken the block's lock over."""
    with locks.hold(_collection(store)):
        if store.shared is None:
            yield leased_keys(store, remove=True), lambda: None
            return
        with store.shared.hold(COLLECTION) as lock:
            yield leased_keys(store, remove=True), lock.check


def leased_keys(store: Store, *, remove: bool = False) -> set[str]:
    """`stage/key` of everything that running processes have leased. `remove` deletes leases of dead processes."""
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
