"""A garbage collection keeps what a running run uses, and a dead run holds nothing."""

from __future__ import annotations

import multiprocessing
import multiprocessing.synchronize
import os
import signal
from collections.abc import Iterator
from dataclasses import replace

import pytest

from storage import maintain, refs
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
        assert maintain.collect(store, garbage).size == 0
    assert list(store.locations()) == [taken.location]
    assert maintain.collect(store, garbage) == garbage
    assert list(store.locations()) == []


def test_what_a_run_has_named_after_the_search_is_not_deleted(store: Store, make: Make) -> None:
    """It may have ended since, and given back its leases."""
    source = make(store, "download", {"a.txt": b"1"})
    taken = make(store, "dedup", {"a.txt": b"2"}, documents=source)
    garbage = maintain.find_garbage(store, keep_last=1)
    assert set(garbage.artifacts) == {source.location, taken.location}
    refs.move(store, "tiny/dedup", taken.location, taken.digest)
    maintain.collect(store, garbage)
    assert set(store.locations()) == {source.location, taken.location}


def test_a_run_that_ends_during_the_search_loses_nothing(
    folder_store: Store, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = make(folder_store, "dedup", {"a.txt": b"1"})
    with Lease(folder_store) as lease:
        lease.add(made.location)
        names = refs.names

        def ends_afterwards(store: Store) -> Iterator[str]:
            yield from names(store)
            refs.move(store, "tiny/dedup", made.location, made.digest)
            lease.__exit__(None, None, None)

        monkeypatch.setattr(refs, "names", ends_afterwards)
        assert maintain.find_garbage(folder_store, keep_last=1).artifacts == {}


def test_work_that_a_run_has_begun_after_the_search_is_not_deleted(folder_store: Store, make: Make) -> None:
    key = "0" * 32
    work, insight = folder_store.workspace("pretrain", key), folder_store.aside("pretrain", key)
    insight.mkdir(parents=True)
    garbage = maintain.find_garbage(folder_store, keep_last=1)
    assert set(garbage.workspaces) == {work, insight}
    with folder_store.lock("pretrain", key):
        maintain.collect(folder_store, garbage)
    assert (work.is_dir(), insight.is_dir()) == (True, True)
    made = make(folder_store, "pretrain", {"a.txt": b"1"})
    aside = folder_store.aside(*made.location.split("/"))
    refs.move(folder_store, "tiny/pretrain", made.location, made.digest)
    aside.mkdir(parents=True)
    maintain.collect(folder_store, replace(garbage, workspaces={work: 0, insight: 0, aside: 0}))
    assert (work.is_dir(), insight.is_dir(), aside.is_dir()) == (False, False, True)


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
