"""A store in Azure's emulator: conditional writes, and the locks that machines share by them."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from storage import inspect, maintain, refs
from storage.errors import StoreError
from storage.files.conditional import AzureConditional
from storage.files.shared_locks import SharedLocks
from storage.leases import Lease, leased_keys
from storage.store import Store
from tests.azure_server import azure_server, client_of
from tests.storage.conftest import Make, elsewhere


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with azure_server(tmp_path_factory.mktemp("azurite")) as address:
        yield address


@pytest.fixture
def azure(server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    for name, value in client_of(server).items():
        monkeypatch.setenv(name, value)
    import adlfs  # type: ignore[import-not-found]

    container = uuid.uuid4().hex
    adlfs.AzureBlobFileSystem.clear_instance_cache()
    adlfs.AzureBlobFileSystem().mkdir(container)
    return Store(f"abfs://{container}/store", cache=tmp_path / "here")


def test_a_write_whose_condition_does_not_hold_changes_nothing(azure: Store) -> None:
    azure.begin()
    objects, path = azure._conditional, f"{azure.root}/one"
    assert isinstance(objects, AzureConditional)
    assert objects.are_honoured(f"{azure.root}/gristmill.json")
    assert objects.read(path) is None
    first = objects.create(path, b"1")
    assert first
    assert objects.create(path, b"2") is None
    second = objects.swap(path, b"3", first)
    assert second
    assert objects.swap(path, b"4", first) is None
    assert objects.swap(f"{azure.root}/none", b"5", first) is None
    objects.delete(path, first)
    found = objects.read(path)
    assert found
    assert (found.data, found.tag) == (b"3", second)
    objects.delete(path, second)
    assert objects.read(path) is None
    objects.delete(path, second)
    assert objects.create(path, b"6"), "an answer may be lost: the same bytes are ours"
    assert objects.create(path, b"6")


def test_what_is_published_is_found_elsewhere_and_a_file_is_fetched_when_it_is_read(azure: Store, make: Make) -> None:
    made = make(azure, "dedup", {"a/1.txt": b"1234", "b.txt": b"b"})
    other = elsewhere(azure)
    found = other.find("dedup", made.location.partition("/")[2])
    assert found is not None
    assert found.part("a").file("1.txt").read_bytes() == b"1234"
    assert not (found.folder / "b.txt").exists()
    assert inspect.verify(other, made.location) == []
    refs.move(azure, "tiny/dedup", made.location, made.digest)
    lost = make(azure, "dedup", {"a.txt": b"1"}, {"other": True})
    assert list(maintain.collect(azure, maintain.find_garbage(azure, keep_last=1)).artifacts) == [lost.location]
    assert list(azure.locations()) == [made.location]


def test_of_machines_that_move_a_ref_at_once_none_is_lost(azure: Store, make: Make) -> None:
    made = [make(azure, "dedup", {"a.txt": b"1"}, {"number": number}) for number in range(4)]
    machines = [elsewhere(azure) for _ in made]

    def move(number: int) -> int:
        return refs.move(machines[number], "tiny/dedup", made[number].location, made[number].digest)

    with ThreadPoolExecutor(4) as pool:
        numbers = list(pool.map(move, range(4)))
    assert sorted(numbers) == [1, 2, 3, 4]
    assert {entry.location for entry in refs.history(azure, "tiny/dedup")} == {one.location for one in made}


def test_a_key_is_made_by_one_machine_while_others_wait(azure: Store) -> None:
    one, two = azure, elsewhere(azure)
    order: list[str] = []
    assert isinstance(one.shared, SharedLocks)

    def second() -> None:
        with two.lock("dedup", "0" * 32, lambda holder: order.append("waits")):
            order.append("two")

    with ThreadPoolExecutor(1) as pool:
        with one.lock("dedup", "0" * 32):
            waiting = pool.submit(second)
            while not order:
                assert not waiting.done()
                time.sleep(0.1)
            order.append("one")
        waiting.result()
    assert order == ["waits", "one", "two"]
    with Lease(one) as lease:
        lease.add("dedup/" + "0" * 32)
        assert leased_keys(two) == {"dedup/" + "0" * 32}


def test_a_container_that_is_not_there_is_named(azure: Store, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="The bucket of"):
        Store(f"abfs://{uuid.uuid4().hex}/store", cache=tmp_path / "none").begin()
