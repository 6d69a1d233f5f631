"""A run on a bucket of which one answer in twenty is wrong, late or missing ends with the bytes of one on a folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.pipeline.runs import SMALL, digests, fork
from tests.s3_proxy import PATIENT, Proxy
from tests.s3_server import client_of, s3_server

FAULTS = ["500", "503", "reset", "lost", "late", "cut upload", "cut download", "torn upload", "stale"]


LONG = [pytest.param(seed, "filter", marks=pytest.mark.soak) for seed in (1, 2)]


@pytest.mark.soak
@pytest.mark.parametrize(("seed", "last"), [(1, "dedup"), *LONG])
def test_a_run_on_a_faulty_bucket_ends_as_on_a_folder(
    seed: int, last: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with s3_server() as address:
        proxy = Proxy(address)
        for name, value in (client_of(proxy.url) | PATIENT | {"XDG_CACHE_HOME": str(tmp_path / "one")}).items():
            monkeypatch.setenv(name, value)
        import s3fs

        s3fs.S3FileSystem().mkdir("faulty")
        proxy.rain(FAULTS, 0.05, seed)
        run = {"overrides": [SMALL], "to": last}
        codes, said = fork({**run, "store": str(tmp_path / "store")}, {**run, "store": "s3://faulty/store"})
        assert codes == [0, 0], said
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "two"))  # another machine finds all of it
        codes, said = fork({**run, "store": "s3://faulty/store"})
        assert codes == [0], said
        assert proxy.disarm() > 10
        made = digests(tmp_path / "store")
        assert digests("s3://faulty/store") == made
        assert {location.partition("/")[0] for location in made} >= {"download", "dedup", last}
        proxy.shutdown()
