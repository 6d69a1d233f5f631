"""Whether a run still runs: it holds a lease of its name, which the kernel takes from a dead process.

In a bucket whose service has conditional writes, other machines also see the lease, and its expiry.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime

from storage.errors import StoreError
from storage.files import locks
from storage.leases import FOLDER as LEASES
from storage.runs import history
from storage.runs.record import RunRecord, State
from storage.store import Store


@contextmanager
def alive(store: Store, run: str) -> Iterator[bool]:
    """Within the block, others see the run as running: all machines if this yields True, otherwise those that share its
    folder."""
    path = store.local / LEASES / run
    with locks.hold(path):
        path.write_text("")  # it leases no artifacts
        shared = store.shared.write(f"{LEASES}/{run}", run=run) if store.shared else None
        try:
            yield store.is_folder or shared is not None
        finally:
            if shared:
                shared.release()
            path.unlink(missing_ok=True)


def running(store: Store) -> list[RunRecord]:
    """The records of running runs: of this machine, and of all machines if a bucket shows their leases."""
    here = (path.name for path in (store.local / LEASES).glob("*") if locks.is_held(path))
    shared = store.lock_objects.contents(LEASES, remove=False) if store.lock_objects else ()
    records = []
    for name in sorted({*here, *(str(content.get("run", "")) for content in shared)}):
        if history.started(name):
            with suppress(StoreError):
                record = history.read(store, name)
                records += [record] if record is not None else []
    return records


def _waited_in_vain(record: RunRecord) -> bool:
    hours = record.runtime.get("approve_hours")
    if record.ended is None or not isinstance(hours, int | float):
        return False
    return time.time() > datetime.fromisoformat(record.ended).timestamp() + 3600 * hours


def state_of(store: Store, record: RunRecord) -> State:
    """The state of a run as far as this machine knows: `crashed` if its process is gone without a word, `failed` if
    nobody approved it in time."""
    if record.state == "waiting":
        return "failed" if _waited_in_vain(record) else "waiting"
    if record.state != "running" or locks.is_held(store.local / LEASES / record.id):
        return record.state
    if store.is_folder or record.host == socket.gethostname():
        return "crashed"
    if not record.seen_everywhere or store.lock_objects is None:
        return "running"  # as its machine last wrote
    held = store.lock_objects.contents(LEASES, remove=False)
    return "running" if any(content.get("run") == record.id for content in held) else "crashed"
