"""Stores to test against: a folder, memory, and a bucket on a local S3 server; all run the same tests."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from storage.artifact import Artifact
from storage.digests import list_files, tree_digest
from storage.keys import KeyPayload
from storage.manifest import InputRef, Manifest
from storage.store import Store
from tests.s3_proxy import PATIENT, Proxy
from tests.s3_server import client_of, s3_server


@pytest.fixture(scope="session")
def s3_endpoint() -> Iterator[str]:
    with s3_server() as address:
        yield address


def use_s3(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let S3 be the local server."""
    for name, value in client_of(request.getfixturevalue("s3_endpoint")).items():
        monkeypatch.setenv(name, value)


@pytest.fixture(params=["folder", "memory", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    name = uuid.uuid4().hex
    if request.param == "folder":
        return Store(str(tmp_path / "store"))
    if request.param == "memory":
        return Store(f"memory://{name}", cache=tmp_path / "cache")
    use_s3(request, monkeypatch)
    import s3fs

    s3fs.S3FileSystem().mkdir(name)
    return Store(f"s3://{name}/store", cache=tmp_path / "cache")


@pytest.fixture
def folder_store(tmp_path: Path) -> Store:
    return Store(str(tmp_path / "store"))


Make = Callable[..., Artifact]


@pytest.fixture
def make() -> Make:
    """Publish an artifact with the given files: `make(store, "dedup", {"a.txt": b"…"}, inputs={"raw": artifact})`."""

    def publish(
        store: Store, stage: str, files: dict[str, bytes], config: dict[str, object] | None = None, **inputs: Artifact
    ) -> Artifact:
        digests = {name: artifact.digest for name, artifact in inputs.items()}
        payload = KeyPayload(stage=stage, version=1, config=config or {}, inputs=digests)
        folder = store.workspace(stage, payload.key()) / "out"
        for name, data in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(data)
        listed = list_files(folder)
        manifest = Manifest(
            key=payload.key(),
            payload=payload,
            digest=tree_digest(listed),
            files=listed,
            origins={name: InputRef(location=artifact.location) for name, artifact in inputs.items()},
            created=datetime.now(UTC).isoformat(),
        )
        return store.publish(folder, manifest)

    return publish


@pytest.fixture
def proxy(s3_endpoint: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    import fsspec.config
    import s3fs

    found = Proxy(s3_endpoint)
    for name, value in client_of(found.url).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setitem(fsspec.config.conf, "s3", json.loads(PATIENT["FSSPEC_S3"]))
    s3fs.S3FileSystem.clear_instance_cache()
    yield found
    s3fs.S3FileSystem.clear_instance_cache()
    found.shutdown()


@pytest.fixture
def faulty(proxy: Proxy, tmp_path: Path) -> Store:
    import s3fs

    bucket = uuid.uuid4().hex
    s3fs.S3FileSystem().mkdir(bucket)
    return Store(f"s3://{bucket}/store", cache=tmp_path / "here")


def elsewhere(store: Store) -> Store:
    """The same store, on a machine that has no copies."""
    return Store(store.url, cache=store.local.with_name(uuid.uuid4().hex))
