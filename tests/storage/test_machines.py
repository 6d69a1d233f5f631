"""Several machines on one bucket: each has its own cache folder, and knows the others only through the bucket."""

from __future__ import annotations

import multiprocessing
import multiprocessing.synchronize
import os
import signal
import threading
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from storage import maintain, refs
from storage.artifact import Artifact
from storage.errors import StoreError
from storage.files import shared_locks
from storage.leases import COLLECTION, Lease
from storage.store import Store
from tests.storage.conftest import Make, use_s3

KEY = "0" * 32
Machines = Callable[[str], Store]


@pytest.fixture
def machine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Machines:
    """The same bucket as each machine sees it: `machine("one")`. What is not renewed for a second has expired."""
    use_s3(request, monkeypatch)
    import s3fs

    bucket = uuid.uuid4().hex
    s3fs.S3FileSystem().mkdir(bucket)
    monkeypatch.setattr(shared_locks, "SECONDS", 1.0)
    monkeypatch.setattr(shared_locks, "CLOCKS", 1.0)
    monkeypatch.setattr(shared_locks, "POLL_SECONDS", (0.05, 0.1))
    return lambda name: Store(f"s3://{bucket}/store", cache=tmp_path / name)


def hold_and_die(url: str, cache: Path, ready: multiprocessing.synchronize.Event) -> None:
    store = Store(url, cache=cache)
    with Lease(store) as lease, store.lock("dedup", KEY):
        lease.add(f"dedup/{KEY}")
        ready.set()
        signal.pause()


def killed(store: Store) -> None:
    """A process on the machine of a store held the lock of KEY and a lease of it, and was killed."""
    context = multiprocessing.get_context("spawn")
    ready = context.Event()
    process = context.Process(target=hold_and_die, args=(store.url, store.local, ready), daemon=True)
    process.start()
    assert ready.wait(60)
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    process.join()


def test_of_two_machines_one_makes_and_the_other_waits(machine: Machines, make: Make) -> None:
    told: list[str] = []
    made: list[str] = []

    def work(name: str) -> None:
        store = machine(name)
        with store.lock("dedup", KEY, told.append):
            if not made:
                made.append(name)
                time.sleep(2.5)  # longer than a lock lasts that is not renewed
            else:
                made.append("found")

    with ThreadPoolExecutor() as pool:
        list(pool.map(work, ["one", "two"]))
    assert made[1] == "found"
    assert len(told) == 1
    assert f"process {os.getpid()} on " in told[0]
    assert not machine("one").fs.find(f"{machine('one').root}/locks")


def test_the_lock_of_a_dead_machine_expires(machine: Machines) -> None:
    killed(machine("one"))
    told: list[str] = []
    began = time.monotonic()
    with machine("two").lock("dedup", KEY, told.append):
        assert time.monotonic() - began > 0.9
    assert len(told) == 1


def test_a_process_that_died_on_this_machine_is_not_waited_for(
    machine: Machines, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_locks, "SECONDS", 600.0)
    killed(machine("one"))
    assert maintain.find_garbage(machine("one"), keep_last=1).artifacts == {}
    began = time.monotonic()
    with machine("one").lock("dedup", KEY):
        assert time.monotonic() - began < 10


def test_who_lost_the_lock_publishes_nothing_over_the_other(
    machine: Machines, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine that slept, or had no network, for longer than its lock lasts."""
    one, two = machine("one"), machine("two")
    monkeypatch.setattr(shared_locks.SharedLock, "_keep", lambda lock: None)
    key = key_of_next()
    with one.lock("dedup", key):
        time.sleep(1.1)
        with two.lock("dedup", key):
            made = make(two, "dedup", {"a.txt": b"of two"})
        assert made.location == f"dedup/{key}"
        with pytest.raises(StoreError, match=r"Another machine took.*Run again"):
            make(one, "dedup", {"a.txt": b"of one"})
    assert list(one.locations()) == [made.location]
    assert one.get(made.location).digest == made.digest
    assert two.damage(made.manifest, made.location) == []  # type: ignore[arg-type]


def key_of_next() -> str:
    """The key of what `make(store, "dedup", …)` makes."""
    from storage.keys import KeyPayload

    return KeyPayload(stage="dedup", version=1, config={}, inputs={}).key()


def test_the_first_manifest_wins(machine: Machines, make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two machines that make one artifact at once, as after a lost lock, lose neither's bytes."""
    one, two = machine("one"), machine("two")
    replace = Store.replace
    made: list[Artifact] = []

    def slower(store: Store, name: str, text: str, tag: str) -> bool:
        if store is one and not made:
            made.append(make(two, "dedup", {"a.txt": b"same", "b.txt": b"of two"}))
        return replace(store, name, text, tag)

    monkeypatch.setattr(Store, "replace", slower)
    other = make(one, "dedup", {"a.txt": b"same", "c.txt": b"of one"})
    assert (made[0].location, other.location) == (f"dedup/{key_of_next()}", f"dedup/{key_of_next()}.2")
    assert [(other.path / "c.txt").read_bytes(), (made[0].path / "b.txt").read_bytes()] == [b"of one", b"of two"]


def test_the_same_artifact_made_twice_at_once_is_one(
    machine: Machines, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = machine("one"), machine("two")
    replace = Store.replace
    made: list[Artifact] = []

    def slower(store: Store, name: str, text: str, tag: str) -> bool:
        if store is one and not made:
            made.append(make(two, "dedup", {"a.txt": b"same"}))
        return replace(store, name, text, tag)

    monkeypatch.setattr(Store, "replace", slower)
    assert make(one, "dedup", {"a.txt": b"same"}).location == made[0].location
    assert list(one.locations()) == [made[0].location]


def test_a_ref_that_several_machines_move_at_once_loses_nothing(machine: Machines) -> None:
    def move(number: int) -> None:
        store = machine(f"machine {number}")
        for step in range(5):
            refs.move(store, "tiny/dedup", f"dedup/{number}-{step}", f"{number}{step}")

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(move, range(6)))
    found = [entry.location for entry in refs.history(machine("any"), "tiny/dedup")]
    assert sorted(found) == [f"dedup/{number}-{step}" for number in range(6) for step in range(5)]
    for number in range(6):
        mine = [location for location in found if location.startswith(f"dedup/{number}-")]
        assert mine == sorted(mine)


def test_a_collection_lets_be_what_other_machines_use(machine: Machines, make: Make) -> None:
    one, two = machine("one"), machine("two")
    taken, other = make(one, "download", {"a.txt": b"1"}), make(one, "dedup", {"a.txt": b"2"})
    with Lease(one) as lease:
        lease.add(taken.location)
        time.sleep(2.5)  # it is renewed
        garbage = maintain.find_garbage(two, keep_last=1)
        assert set(garbage.artifacts) == {other.location}
        lease.add(other.location)
        assert maintain.collect(two, garbage).artifacts == {}
    assert set(maintain.find_garbage(two, keep_last=1).artifacts) == {taken.location, other.location}
    assert not one.fs.find(f"{one.root}/leases")


def test_what_a_dead_machine_used_is_garbage_once_its_lease_expires(machine: Machines) -> None:
    one, two = machine("one"), machine("two")
    one.begin()
    one.fs.pipe_file(f"{one.root}/artifacts/dedup/{KEY}/a.txt", b"of a killed upload")
    killed(one)
    assert maintain.find_garbage(two, keep_last=1, settled=0).artifacts == {}
    time.sleep(3.2)  # times of objects are in whole seconds
    garbage = maintain.find_garbage(two, keep_last=1, settled=0)
    assert list(garbage.artifacts) == [f"dedup/{KEY}"]
    assert maintain.collect(two, garbage).artifacts == garbage.artifacts
    assert not two.fs.find(f"{two.root}/leases")


def test_what_is_leased_while_another_machine_deletes_waits_for_it(machine: Machines, make: Make) -> None:
    """Otherwise a run finds what is deleted a moment later."""
    one, two = machine("one"), machine("two")
    made = make(one, "dedup", {"a.txt": b"1"})
    garbage = maintain.find_garbage(two, keep_last=1)
    found: list[Artifact | None] = []

    def run() -> None:
        with Lease(one) as lease:
            lease.add(made.location)
            found.append(one.find("dedup", key_of_next()))

    runs = threading.Thread(target=run)
    remove = two.remove

    def slowly(location: str) -> None:
        runs.start()
        time.sleep(1.5)
        assert not found
        remove(location)

    two.remove = slowly  # type: ignore[method-assign]
    assert maintain.collect(two, garbage).artifacts == garbage.artifacts
    runs.join()
    assert found == [None]


def test_a_collection_that_lost_its_lock_deletes_nothing(
    machine: Machines, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = machine("one"), machine("two")
    made = make(one, "dedup", {"a.txt": b"1"})
    garbage = maintain.find_garbage(two, keep_last=1)
    monkeypatch.setattr(shared_locks.SharedLock, "_keep", lambda lock: None)
    needed = maintain._needed

    def slowly(*arguments: Any) -> Any:
        time.sleep(1.1)
        with one.shared.hold(COLLECTION):  # type: ignore[union-attr]
            return needed(*arguments)

    monkeypatch.setattr(maintain, "_needed", slowly)
    with pytest.raises(StoreError, match="Another machine took"):
        maintain.collect(two, garbage)
    assert list(one.locations()) == [made.location]
