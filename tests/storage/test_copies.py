"""A machine's copies of a bucket's artifacts: their requests and bytes, and which of them stay."""

from __future__ import annotations

import multiprocessing
import multiprocessing.synchronize
import os
import signal
from pathlib import Path

import pytest

from storage import maintain, refs
from storage.artifact import Artifact
from storage.errors import ConfigError, DamagedArtifact
from storage.leases import Lease
from storage.store import Store
from tests.s3_proxy import Proxy
from tests.storage.conftest import Make, elsewhere


def take_and_wait(url: str, cache: Path, location: str, ready: multiprocessing.synchronize.Event) -> None:
    store = Store(url, cache=cache)
    kept = store.get(location)
    assert kept.path.is_dir()
    ready.set()
    signal.pause()


def fetch(store: Store, location: str) -> Path:
    return store.get(location).path


def moved(store: Store) -> tuple[int, int]:
    traffic = store.traffic()
    return traffic.sent, traffic.received


def copies(store: Store) -> set[str]:
    return {f"{path.parent.name}/{path.name}" for path in (store.local / "artifacts").glob("*/*")}


def test_what_is_not_used_makes_room_the_oldest_first(
    faulty: Store, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = [make(faulty, "dedup", {"a.bin": os.urandom(30_000)}, {"number": number}).location for number in range(4)]
    one = elsewhere(faulty)
    for location in made[:3]:
        fetch(Store(one.url, cache=one.local), location)
        one._copies._lock_of(location).unlink()  # as if this process had ended
    monkeypatch.setenv("GRISTMILL_CACHE_GB", "0.0001")  # three of them
    context = multiprocessing.get_context("spawn")
    ready = context.Event()
    process = context.Process(target=take_and_wait, args=(one.url, one.local, made[0], ready), daemon=True)
    process.start()
    assert ready.wait(60)
    for number, location in enumerate(made[:3]):
        os.utime(one.local / "artifacts" / location / "manifest.json", (number, number))
    fetch(one, made[3])
    assert copies(one) == {made[0], made[2], made[3]}, "the oldest is in use, the next one is not"
    process.kill()
    process.join()
    fetch(one, made[1])
    assert copies(one) == {made[2], made[3], made[1]}, "free, as its process has ended"
    assert fetch(one, made[0]).is_dir(), "fetched again"
    monkeypatch.setenv("GRISTMILL_CACHE_GB", "much")
    with pytest.raises(ConfigError, match="GRISTMILL_CACHE_GB is much"):
        fetch(elsewhere(faulty), made[0])


def test_a_file_is_fetched_when_it_is_read_once_and_every_byte_is_counted(faulty: Store, make: Make) -> None:
    files = {"train/0.bin": os.urandom(30_000), "train/1.bin": os.urandom(20_000), "notes/a.txt": b"a", "b.txt": b"b"}
    made = make(faulty, "dedup", files)
    assert made.manifest is not None
    assert moved(faulty) == (made.manifest.size + len((made.path / "SHA256SUMS").read_bytes()), 0)
    other = elsewhere(faulty)
    found = other.get(made.location)
    part = found.part("train")
    assert (part.digest, part.names("*.bin")) == (made.part("train").digest, ["0.bin", "1.bin"])
    assert (moved(other), copies(other)) == ((0, 0), set()), "of a hit that nobody reads the manifest alone"
    assert found.file("b.txt").read_bytes() == b"b"
    assert moved(other) == (0, 1)
    assert [path.name for path in found.files("train/1.*")] == ["1.bin"]
    assert moved(other) == (0, 20_000)
    assert found.only("notes").file("notes/a.txt").read_bytes() == b"a"
    assert {path.name for path in part.path.iterdir()} == {"0.bin", "1.bin"}
    assert moved(other) == (0, 30_001)
    again = Store(other.url, cache=other.local).get(made.location)
    assert [path.read_bytes() for path in again.files("train/*.bin")] == list(files.values())[:2]
    assert again.path == found.path
    assert moved(other) == (0, 0)


def test_what_changed_here_is_fetched_again_and_what_does_not_belong_is_removed(faulty: Store, make: Make) -> None:
    made = make(faulty, "dedup", {"a/1.txt": b"1234", "a/2.txt": b"2"})
    other = elsewhere(faulty)
    folder = fetch(other, made.location)
    (folder / "a/1.txt").write_bytes(b"4321")
    (folder / "a/strange.txt").write_bytes(b"")
    assert fetch(Store(other.url, cache=other.local), made.location) == folder
    assert {path.name: path.read_bytes() for path in (folder / "a").iterdir()} == {"1.txt": b"1234", "2.txt": b"2"}


def test_what_is_damaged_in_the_bucket_is_found_by_who_reads_it(faulty: Store, make: Make) -> None:
    made = make(faulty, "dedup", {"a.txt": b"1234", "b.txt": b"2345", "c.txt": b"c"})
    root = f"{faulty.root}/artifacts/{made.location}"
    faulty.fs.pipe_file(f"{root}/a.txt", b"4321")
    faulty.fs.rm_file(f"{root}/b.txt")
    found = elsewhere(faulty).get(made.location)
    assert found.file("c.txt").read_bytes() == b"c"
    for name, what in (("a.txt", "changed: SHA-256"), ("b.txt", "missing")):
        with pytest.raises(DamagedArtifact, match=f"{name}.*{what}"):
            found.file(name)
        assert not (found.folder / name).exists()


def read_all(url: str, cache: Path, location: str, start: multiprocessing.synchronize.Barrier) -> None:
    store = Store(url, cache=cache)
    start.wait()
    for path in store.get(location).files("*.bin"):
        assert path.stat().st_size == 300_000


def test_processes_that_want_a_file_at_once_fetch_it_once(proxy: Proxy, faulty: Store, make: Make) -> None:
    made = make(faulty, "dedup", {f"{number}.bin": os.urandom(300_000) for number in range(4)})
    other, context = elsewhere(faulty), multiprocessing.get_context("spawn")
    start = context.Barrier(3)
    arguments = (other.url, other.local, made.location, start)
    readers = [context.Process(target=read_all, args=arguments) for _ in range(3)]
    proxy.fetched.clear()
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    assert [reader.exitcode for reader in readers] == [0, 0, 0]
    shards = {name: count for name, count in proxy.fetched.items() if name.endswith(".bin")}
    assert list(shards.values()) == [1, 1, 1, 1]


def test_requests_are_counted_as_the_server_does_with_all_repetitions(proxy: Proxy, faulty: Store, make: Make) -> None:
    for fault in ("", "503"):
        faulty.traffic()
        proxy.asked.clear()
        proxy.arm(fault, 3, False)
        made = make(faulty, "dedup", {"a.txt": b"1"}, {"fault": fault})
        asked = proxy.asked.total()
        assert (faulty.traffic().requests, proxy.disarm()) == (asked, bool(fault))
        assert made.path.is_dir()


@pytest.mark.soak
def test_more_artifacts_are_listed_by_no_more_requests(proxy: Proxy, faulty: Store, make: Make) -> None:
    kept = make(faulty, "dedup", {"a.txt": b"kept"})
    refs.move(faulty, "tiny/dedup", kept.location, kept.digest)
    asked: list[tuple[int, int]] = []
    garbage: list[Artifact] = []
    for _ in range(2):
        garbage += [make(faulty, "dedup", {"a.txt": b"a"}, {"number": len(garbage) + number}) for number in range(4)]
        proxy.asked.clear()
        assert len(list(faulty.locations())) == 1 + len(garbage)
        listing = proxy.asked.total()
        proxy.asked.clear()
        found = maintain.find_garbage(faulty, keep_last=1)
        assert found.artifacts == {one.location: 1 for one in garbage}
        asked.append((listing, proxy.asked.total()))
    assert asked[0] == asked[1]
    assert asked[0][0] == 1


def test_gc_aborts_uploads_that_a_kill_has_left_for_more_than_a_day(faulty: Store, make: Make) -> None:
    kept = make(faulty, "dedup", {"a.txt": b"kept"})
    refs.move(faulty, "tiny/dedup", kept.location, kept.digest)
    bucket, key = faulty.root.split("/")[0], f"{faulty.root.partition('/')[2]}/artifacts/dedup/0/large.bin"
    s3 = faulty.fs._fs
    begun = s3.call_s3("create_multipart_upload", Bucket=bucket, Key=key)["UploadId"]
    s3.call_s3("upload_part", Bucket=bucket, Key=key, UploadId=begun, PartNumber=1, Body=bytes(1000))
    young = maintain.find_garbage(faulty, keep_last=1, settled=1e9)  # the server says that all began in 2010
    assert young.uploads == []
    garbage = maintain.find_garbage(faulty, keep_last=1)
    assert [(upload.path, upload.size) for upload in garbage.uploads] == [(f"{bucket}/{key}", 1000)]
    assert garbage.size == 1000
    maintain.collect(faulty, garbage)
    assert not s3.call_s3("list_multipart_uploads", Bucket=bucket).get("Uploads")
    assert maintain.find_garbage(faulty, keep_last=1).size == 0
    maintain.collect(faulty, garbage)  # another collection was faster


def test_gc_deletes_checkpoints_that_nobody_will_resume_from(faulty: Store, make: Make) -> None:
    kept = make(faulty, "pretrain", {"a.txt": b"kept"})
    refs.move(faulty, "tiny/pretrain", kept.location, kept.digest)
    for key in (kept.location, f"pretrain/{'0' * 32}"):
        faulty.write_text(f"checkpoints/{key}/step-000000001-0/remote.json", "1234")
    garbage = maintain.find_garbage(faulty, keep_last=1)
    assert garbage.checkpoints == {kept.location: 4}, "a machine may be about to go on with the other one"
    assert [*maintain.find_garbage(faulty, keep_last=1, settled=0).checkpoints] == sorted(
        [kept.location, f"pretrain/{'0' * 32}"]
    )
    with Lease(faulty) as lease:
        lease.add(kept.location)
        assert maintain.find_garbage(faulty, keep_last=1).checkpoints == {}
        assert maintain.collect(faulty, garbage).checkpoints == {}
    assert maintain.collect(faulty, garbage).checkpoints == {kept.location: 4}
    assert [*faulty.sizes("checkpoints")] == [f"pretrain/{'0' * 32}/step-000000001-0/remote.json"]
