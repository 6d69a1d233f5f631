"""A machine's copies of what is in a bucket: how much is asked and moved for them, and which of them stay."""

from __future__ import annotations

import multiprocessing
import multiprocessing.synchronize
import os
import signal
from pathlib import Path

import pytest

from storage import maintain, refs
from storage.artifact import Artifact
from storage.errors import ConfigError
from storage.store import Store
from tests.s3_proxy import Proxy
from tests.storage.conftest import Make, elsewhere


def take_and_wait(url: str, cache: Path, location: str, ready: multiprocessing.synchronize.Event) -> None:
    store = Store(url, cache=cache)
    store.get(location)
    ready.set()
    signal.pause()


def copies(store: Store) -> set[str]:
    return {f"{path.parent.name}/{path.name}" for path in (store.local / "artifacts").glob("*/*")}


def test_what_is_not_used_makes_room_the_oldest_first(
    faulty: Store, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = [make(faulty, "dedup", {"a.bin": os.urandom(30_000)}, {"number": number}).location for number in range(4)]
    one = elsewhere(faulty)
    for location in made[:3]:
        Store(one.url, cache=one.local).get(location)
        one._lock_of_copy(location).unlink()  # as if this process had ended
    monkeypatch.setenv("GRISTMILL_CACHE_GB", "0.0001")  # three of them
    context = multiprocessing.get_context("spawn")
    ready = context.Event()
    process = context.Process(target=take_and_wait, args=(one.url, one.local, made[0], ready), daemon=True)
    process.start()
    assert ready.wait(60)
    for number, location in enumerate(made[:3]):
        os.utime(one.local / "artifacts" / location / "manifest.json", (number, number))
    one.get(made[3])
    assert copies(one) == {made[0], made[2], made[3]}, "the oldest is in use, the next one is not"
    process.kill()
    process.join()
    one.get(made[1])
    assert copies(one) == {made[2], made[3], made[1]}, "free, as its process has ended"
    assert one.get(made[0]).path.is_dir(), "fetched again"
    monkeypatch.setenv("GRISTMILL_CACHE_GB", "much")
    with pytest.raises(ConfigError, match="GRISTMILL_CACHE_GB is much"):
        elsewhere(faulty).get(made[0])


def test_no_file_is_fetched_twice_and_every_byte_is_counted(faulty: Store, make: Make) -> None:
    made = make(faulty, "dedup", {"a.bin": os.urandom(30_000), "b/c.txt": b"c"})
    assert made.manifest is not None
    size = made.manifest.size + len((made.path / "SHA256SUMS").read_bytes())
    assert faulty.traffic() == (size, 0)
    other = elsewhere(faulty)
    other.get(made.location)
    other.get(made.location)
    assert Store(other.url, cache=other.local).get(made.location).digest == made.digest
    assert (other.traffic(), other.traffic()) == ((0, size), (0, 0))


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
