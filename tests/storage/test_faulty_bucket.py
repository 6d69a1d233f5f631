"""A bucket with late, lost, wrong or cut answers: what is published is whole, and failures say why."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest

from storage import inspect, maintain, refs
from storage.digests import FileEntry
from storage.errors import DamagedArtifact, StoreError
from storage.files import transfer
from storage.store import Store
from tests.s3_proxy import Proxy
from tests.storage.conftest import Make, elsewhere

FAULTS = ["500", "503", "reset", "lost", "late", "cut upload", "cut download", "torn upload", "stale"]


@pytest.mark.soak_but("lost", "torn upload")
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_at_any_request_is_survived(fault: str, proxy: Proxy, faulty: Store, make: Make) -> None:
    """Of what publishes, names, finds and fetches; each request meets the fault once, others in between do not."""
    faulty.begin()
    for at in range(1 + FAULTS.index(fault), 50, 15):
        proxy.arm(fault, at, False)
        store = elsewhere(faulty)
        made = make(store, "dedup", {"a.txt": os.urandom(3000), "b/c.txt": b"c"}, {"at": at})
        refs.move(store, "tiny/dedup", made.location, made.digest)
        found = elsewhere(faulty).find("dedup", made.location.partition("/")[2])
        struck = proxy.disarm()
        assert found is not None
        assert [path.stat().st_size for path in (found.path / "a.txt", found.path / "b/c.txt")] == [3000, 1]
        assert inspect.verify(faulty, made.location) == []
        assert refs.history(faulty, "tiny/dedup")[-1].location == made.location
        if not struck:
            break
    assert inspect.verify_refs(faulty) == {}


def test_an_upload_that_is_always_torn_is_no_artifact(
    proxy: Proxy, faulty: Store, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfer, "ATTEMPTS", 2)
    faulty.begin()
    proxy.arm("torn upload", 1, True)
    with pytest.raises(StoreError, match=f"arrived damaged in {faulty.url} .* times.*run again"):
        make(faulty, "dedup", {"a.txt": b"1234"})
    proxy.disarm()
    assert list(faulty.locations()) == []
    assert make(faulty, "dedup", {"a.txt": b"1234"}).location.count(".") == 0


def test_what_arrives_damaged_is_fetched_again_and_what_is_damaged_there_is_named(
    proxy: Proxy, faulty: Store, make: Make
) -> None:
    made = make(faulty, "dedup", {"a.txt": b"12345678"})
    fetch = transfer.Transfers.fetch
    arrived: list[str] = []

    def first_one_flipped(self: transfer.Transfers, source: str, target: Path, entry: FileEntry) -> bool:
        if not arrived:
            proxy.arm("flip", 1, False)
        arrived.append(source)
        return fetch(self, source, target, entry)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(transfer.Transfers, "fetch", first_one_flipped)
        assert elsewhere(faulty).get(made.location).file("a.txt").read_bytes() == b"12345678"
    assert proxy.disarm() == 1
    faulty.fs.pipe_file(f"{faulty.root}/artifacts/{made.location}/a.txt", b"12345679")
    with pytest.raises(DamagedArtifact, match=r"a\.txt changed: SHA-256 .*Rebuild it"):
        elsewhere(faulty).get(made.location).file("a.txt")


@pytest.mark.soak
def test_a_bucket_that_stays_away_is_named(proxy: Proxy, faulty: Store, make: Make) -> None:
    proxy.arm("500", 1, True)
    with pytest.raises(StoreError, match=rf"The store {faulty.url} can't be reached: .*Check its address"):
        make(faulty, "dedup", {"a.txt": b"1"})


@pytest.mark.soak_but("no conditions")
@pytest.mark.parametrize("fault", ["no conditions", "unknown"])
def test_a_service_without_conditional_writes_is_used_by_one_machine(
    fault: str, proxy: Proxy, faulty: Store, make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    proxy.arm(fault, 1, True)
    with caplog.at_level(logging.WARNING), faulty.lock("dedup", "0" * 32):
        assert faulty.shared is None
    assert f"{faulty.url} has no conditional writes: don't use the store on other machines" in caplog.text
    made = make(faulty, "dedup", {"a.txt": b"1"})
    assert refs.move(faulty, "tiny/dedup", made.location, made.digest) == 1
    other = make(faulty, "dedup", {"a.txt": b"2"}, {"other": True})
    assert refs.move(faulty, "tiny/dedup", other.location, other.digest) == 2
    maintain.collect(faulty, maintain.find_garbage(faulty, keep_last=1))
    assert list(faulty.locations()) == [other.location]


def test_a_user_who_may_only_read_needs_no_lease(proxy: Proxy, faulty: Store, make: Make) -> None:
    from storage.leases import Lease

    made = make(faulty, "dedup", {"a.txt": b"1"})
    store = elsewhere(faulty)
    proxy.denied = {"PUT", "DELETE", "POST"}
    with Lease(store) as lease:
        lease.add(made.location)
        assert store.get(made.location).digest == made.digest


def test_the_tag_of_a_large_file_is_that_of_its_parts(
    proxy: Proxy, faulty: Store, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfer, "PART_BYTES", 5 << 20)  # the least that S3 takes
    asked: list[str] = []
    monkeypatch.setattr(transfer.Transfers, "digest", lambda self, path: asked.append(path))
    made = make(faulty, "dedup", {"large.bin": os.urandom(12 << 20)})
    told = faulty.fs.info(f"{faulty.root}/artifacts/{made.location}/large.bin")
    assert told["ETag"].strip('"') == transfer.etag(made.path / "large.bin", 12 << 20)
    assert told["ETag"].strip('"').endswith("-3")
    assert asked == []
