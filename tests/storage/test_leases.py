"""A garbage collection lets be what a running run has taken, and a dead run holds nothing."""

from __future__ import annotations

import multiprocessing
import multiprocessing.synchronize
import os
import signal

from storage import maintain
from storage.leases import Lease
from storage.store import Store
from tests.storage.conftest import Make


def lease_and_die(url: str, key: str, ready: multiprocessing.synchronize.Event) -> None:
    lease = Lease(Store(url))  # released when it is forgotten
    lease.add(key)
    ready.set()
    signal.pause()


def test_what_a_run_has_leased_is_no_garbage(store: Store, make: Make) -> None:
    """No ref names it, as when another run of the profile moved them."""
    taken, other = make(store, "download", {"a.txt": b"1"}), make(store, "dedup", {"a.txt": b"2"})
    with Lease(store) as lease:
        lease.add(taken.location)
        assert set(maintain.find_garbage(store, keep_last=1).artifacts) == {other.location}
    assert set(maintain.find_garbage(store, keep_last=1).artifacts) == {taken.location, other.location}
    assert not list((store.local / "leases").iterdir())


def test_what_is_leased_after_the_search_is_not_deleted(store: Store, make: Make) -> None:
    taken = make(store, "download", {"a.txt": b"1"})
    garbage = maintain.find_garbage(store, keep_last=1)
    with Lease(store) as lease:
        lease.add(taken.location)
        maintain.collect(store, garbage)
    assert list(store.locations()) == [taken.location]
    maintain.collect(store, garbage)
    assert list(store.locations()) == []


def test_a_killed_run_holds_nothing(folder_store: Store, make: Make) -> None:
    made = make(folder_store, "download", {"a.txt": b"1"})
    context = multiprocessing.get_context("spawn")
    ready = context.Event()
    process = context.Process(target=lease_and_die, args=(folder_store.url, made.location, ready), daemon=True)
    process.start()
    assert ready.wait(60)
    assert maintain.find_garbage(folder_store, keep_last=1).artifacts == {}
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    garbage = maintain.find_garbage(folder_store, keep_last=1)
    assert set(garbage.artifacts) == {made.location}
    maintain.collect(folder_store, garbage)
    assert not list((folder_store.local / "leases").iterdir())


def test_looking_for_garbage_writes_nothing(folder_store: Store, make: Make) -> None:
    make(folder_store, "download", {"a.txt": b"1"})
    before = sorted(folder_store.local.rglob("*"))
    maintain.find_garbage(folder_store, keep_last=1)
    assert sorted(folder_store.local.rglob("*")) == before
