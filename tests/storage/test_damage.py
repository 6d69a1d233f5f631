"""Nothing damaged is used: every byte is checked before use, and a rebuilt artifact replaces a bad one."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from storage import inspect, maintain, refs
from storage.artifact import Artifact
from storage.digest_cache import remember
from storage.digests import tree_digest
from storage.errors import DamagedArtifact, StoreError
from storage.manifest import MANIFEST, SUMS, Manifest
from storage.store import Store
from tests.storage.conftest import Make, use_s3

FILES = {"documents/a.txt": b"text", "b.txt": b"more"}


def flip(path: Path, at: int = 0) -> None:
    """Change one bit, and neither the size nor the time of the last change that a file tells."""
    before = path.stat()
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.chmod(0o644)
    path.write_bytes(data)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def key_of(artifact: Artifact) -> str:
    return artifact.location.split("/")[1]


@pytest.mark.parametrize("name", [*FILES, SUMS])
def test_one_bit_of_any_file_is_found_before_it_is_used(name: str, folder_store: Store, make: Make) -> None:
    made = make(folder_store, "dedup", FILES)
    assert folder_store.find("dedup", key_of(made)) is not None
    flip(made.path / name)
    with pytest.raises(DamagedArtifact, match=f"{name} changed") as caught:
        folder_store.find("dedup", key_of(made))
    assert "--refresh dedup`." in caught.value.remedy
    assert len(inspect.verify(folder_store, made.location)) == 1


def test_one_bit_of_a_manifest_is_found_wherever_it_is(folder_store: Store, make: Make) -> None:
    made = make(folder_store, "dedup", FILES)
    text = (made.path / MANIFEST).read_bytes()
    data = json.loads(text)
    for at in range(len(text)):
        changed = bytes([*text[:at], text[at] ^ 1, *text[at + 1 :]])
        try:
            if json.loads(changed) == data:  # white space
                continue
        except ValueError:
            pass
        (made.path / MANIFEST).write_bytes(changed)
        with pytest.raises(StoreError):
            folder_store.get(made.location)


def test_files_that_were_not_published_are_found_but_hidden_ones_are_let_be(folder_store: Store, make: Make) -> None:
    made = make(folder_store, "dedup", FILES)
    (made.path / "documents" / ".DS_Store").write_bytes(b"")
    folder_store.get(made.location)
    (made.path / "documents" / "shard-00009.parquet").write_bytes(b"")
    with pytest.raises(DamagedArtifact, match=r"shard-00009\.parquet was not published with it"):
        folder_store.get(made.location)


def test_what_is_made_again_takes_the_place_of_what_is_damaged(folder_store: Store, make: Make) -> None:
    store = folder_store
    made = make(store, "dedup", FILES)
    child = make(store, "filter", {"c.txt": b"child"}, documents=made)
    refs.move(store, "tiny/dedup", made.location, made.digest)
    refs.move(store, "tiny/filter", child.location, child.digest)
    flip(made.path / "b.txt")
    again = make(store, "dedup", FILES)
    assert (again.location, again.digest) == (f"{made.location}.2", made.digest)
    found = store.find("dedup", key_of(made))
    assert found is not None
    assert (found.path / "b.txt").read_bytes() == b"more"
    refs.move(store, "tiny/dedup", again.location, again.digest)
    assert [node.location for node in inspect.lineage(store, child.location)] == [child.location, again.location]
    assert [*maintain.find_garbage(store, keep_last=1).artifacts] == [made.location]
    maintain.collect(store, maintain.find_garbage(store, keep_last=1))
    assert [node.location for node in inspect.lineage(store, child.location)] == [child.location, again.location]


def test_a_damaged_copy_of_a_buckets_artifact_is_fetched_again(store: Store, make: Make, tmp_path: Path) -> None:
    if store.is_folder:
        pytest.skip("a folder has no second copy")
    made = make(store, "dedup", FILES)
    flip(made.path / "b.txt")
    assert (store.get(made.location).path / "b.txt").read_bytes() == b"more"
    store.fs.pipe_file(f"{store.root}/artifacts/{made.location}/b.txt", b"MORE")
    with pytest.raises(DamagedArtifact, match=r"b\.txt changed"):
        Store(store.url, cache=tmp_path / "fresh").get(made.location).file("b.txt")


def test_what_no_time_of_a_file_tells_is_found_by_a_paranoid_store(folder_store: Store, make: Make) -> None:
    made = make(folder_store, "dedup", FILES)
    assert made.manifest is not None
    flip(made.path / "b.txt")
    remember({made.path / "b.txt": made.manifest.files["b.txt"].sha256})  # as if a disk had lost the bit
    folder_store.get(made.location)
    with pytest.raises(DamagedArtifact, match=r"b\.txt changed"):
        Store(folder_store.url, paranoid=True).get(made.location)
    assert len(inspect.verify(folder_store, made.location)) == 1


@pytest.mark.parametrize("name", ["../../x", "/etc/x", "a/../../x", "a\\x", "a//x", "./x", "."])
def test_a_manifest_that_names_files_outside_is_refused_before_anything_is_read(
    name: str, store: Store, make: Make, tmp_path: Path
) -> None:
    made = make(store, "dedup", {"x": b"text"})
    path = f"artifacts/{made.location}/{MANIFEST}"
    data = json.loads(store.read_bytes(path) or b"")
    del data["checksum"]
    data["files"] = {name: data["files"]["x"]}
    store.write_text(path, json.dumps(data))
    shutil.rmtree(tmp_path / "cache", ignore_errors=True)
    with pytest.raises(DamagedArtifact, match="is not a path inside the folder"):
        store.get(made.location)
    assert not (tmp_path / "x").exists()


def test_a_manifest_that_contradicts_itself_is_refused(folder_store: Store, make: Make) -> None:
    made = make(folder_store, "dedup", FILES)
    manifest = made.manifest
    assert manifest is not None
    fewer = {name: entry for name, entry in manifest.files.items() if name == "b.txt"}
    config = manifest.payload.model_copy(update={"config": {"threshold": 0.1}})
    shutil.rmtree(made.path / "documents")
    for changed, named in (
        (manifest.model_copy(update={"files": fewer}), "another digest than its files"),
        (
            manifest.model_copy(update={"files": fewer, "digest": tree_digest(fewer)}),
            "SHA256SUMS has 154 bytes instead of 72",
        ),
        (manifest.model_copy(update={"payload": config}), "another key than its config"),
        (manifest.model_copy(update={"payload": config, "key": config.key()}), "is that of dedup/"),
    ):
        (made.path / MANIFEST).write_text(changed.to_json())
        with pytest.raises(DamagedArtifact, match=named):
            folder_store.get(made.location)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"format": 1}', "[" * 100_000])
def test_one_broken_manifest_stops_neither_maintenance_nor_a_refresh(
    text: str, folder_store: Store, make: Make
) -> None:
    store = folder_store
    root = make(store, "download", {"raw": b"raw"})
    broken = make(store, "dedup", FILES, raw=root)
    refs.move(store, "tiny/dedup", broken.location, broken.digest)
    (broken.path / MANIFEST).write_text(text)
    assert "anifest of dedup/" in inspect.verify(store, broken.location)[0]
    garbage = maintain.find_garbage(store, keep_last=1)
    assert garbage.unreadable == [broken.location]
    assert not garbage.artifacts, "what the broken one needs is unknown"
    again = make(store, "dedup", FILES, raw=root)
    assert again.location == f"{broken.location}.2"
    refs.move(store, "tiny/dedup", again.location, again.digest)
    assert [*maintain.find_garbage(store, keep_last=1).artifacts] == [broken.location]


def test_a_broken_ref_is_named_and_keeps_what_it_may_need(folder_store: Store, make: Make) -> None:
    made = make(folder_store, "dedup", FILES)
    refs.move(folder_store, "tiny/dedup", made.location, made.digest)
    (folder_store.local / "refs/tiny/dedup.json").write_text("[{")
    with pytest.raises(DamagedArtifact, match="The ref tiny/dedup is damaged") as caught:
        refs.move(folder_store, "tiny/dedup", made.location, made.digest)
    assert "refs/tiny/dedup.json" in caught.value.remedy
    garbage = maintain.find_garbage(folder_store, keep_last=1)
    assert (garbage.unreadable, garbage.artifacts) == (["refs/tiny/dedup.json"], {})


@pytest.mark.parametrize("data", [b"", b"[]", b"\xff\xfe", b'[{"location": 5}]', None])
def test_a_ref_of_any_other_content_is_named(data: bytes | None, folder_store: Store, make: Make) -> None:
    made = make(folder_store, "dedup", FILES)
    refs.move(folder_store, "tiny/dedup", made.location, made.digest)
    assert inspect.verify_refs(folder_store) == {}
    path = folder_store.local / "refs/tiny/dedup.json"
    path.unlink()
    path.mkdir() if data is None else path.write_bytes(data)
    if data is not None:
        (problem,) = inspect.verify_refs(folder_store).values()
        assert "tiny/dedup" in problem
    with pytest.raises(DamagedArtifact, match=r"tiny/dedup(\.json)? is"):
        refs.history(folder_store, "tiny/dedup")


def test_a_ref_to_nothing_or_to_another_digest_is_found_by_verify(folder_store: Store, make: Make) -> None:
    made = make(folder_store, "dedup", FILES)
    refs.move(folder_store, "tiny/dedup", made.location, "0" * 64)
    refs.move(folder_store, "tiny/filter", "filter/0000", "0" * 64)
    assert inspect.verify_refs(folder_store) == {
        "tiny/dedup": f"the ref tiny/dedup names another digest than {made.location} has",
        "tiny/filter": "the ref tiny/filter points to filter/0000, which is gone",
    }


def test_what_is_no_store_is_refused_in_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("text")
    with pytest.raises(StoreError, match="is a file"):
        Store(str(tmp_path / "file"))
    with pytest.raises(StoreError, match="can't be opened"):
        Store("nothing://bucket")
    (tmp_path / "loop").symlink_to("loop")
    for place in (tmp_path / "file" / "store", tmp_path / ("long" * 100), f"{tmp_path}/a\0b", tmp_path / "loop" / "a"):
        with pytest.raises(StoreError, match="can't be opened"):
            Store(str(place)).begin()
    (tmp_path / "loop").unlink()
    (tmp_path / "file").unlink()
    for text in ("", "[]", "{}", '{"format": "one"}'):
        (tmp_path / "gristmill.json").write_text(text)
        with pytest.raises(StoreError, match=r"gristmill\.json is damaged"):
            Store(str(tmp_path))
    (tmp_path / "gristmill.json").unlink()
    (tmp_path / "artifacts").mkdir()
    with pytest.raises(StoreError, match=r"gristmill\.json is missing"):
        Store(str(tmp_path))
    with pytest.raises(StoreError, match="No store exists"):
        Store(str(tmp_path / "nowhere")).check_exists()


def test_a_bucket_that_cant_be_reached_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/dev/null")
    import s3fs

    s3fs.S3FileSystem.clear_instance_cache()
    try:
        with pytest.raises(StoreError, match="can't be reached: Unable to locate credentials"):
            Store("s3://bucket/store")
    finally:
        s3fs.S3FileSystem.clear_instance_cache()


def test_a_hit_writes_nothing(folder_store: Store, make: Make) -> None:
    made = make(folder_store, "dedup", FILES)
    refs.move(folder_store, "tiny/dedup", made.location, made.digest)
    before = {path: path.stat().st_mtime_ns for path in folder_store.local.rglob("*")}
    found = Store(folder_store.url).find("dedup", key_of(made))
    assert found is not None
    refs.move(folder_store, "tiny/dedup", found.location, found.digest)
    assert {path: path.stat().st_mtime_ns for path in folder_store.local.rglob("*")} == before


def test_a_manifest_survives_its_journey(folder_store: Store, make: Make) -> None:
    made = make(folder_store, "dedup", FILES, {"text": "Größe – 大", "share": 0.1, "none": None})
    assert made.manifest is not None
    assert Manifest.from_json(made.manifest.to_json(), made.location) == made.manifest


def test_a_file_in_the_place_of_a_stages_folder_is_named(folder_store: Store, make: Make) -> None:
    made = make(folder_store, "dedup", FILES)
    refs.move(folder_store, "tiny/dedup", made.location, made.digest)
    shutil.rmtree(made.path.parent)
    made.path.parent.write_text("hello")
    with pytest.raises(DamagedArtifact, match="or a folder above it is a file"):
        folder_store.manifest(made.location)
    assert maintain.find_garbage(folder_store, keep_last=1).unreadable == [made.location]
    assert len(inspect.verify_refs(folder_store)) == 1
    assert list(folder_store.locations()) == []
    with pytest.raises(StoreError, match="dedup is a file"):
        make(folder_store, "dedup", FILES)


def test_paranoid_looks_into_the_bucket_itself(store: Store, make: Make) -> None:
    made = make(store, "dedup", FILES)
    if store.is_folder:
        pytest.skip("a folder is its own copy")
    store.fs.rm_file(f"{store.root}/artifacts/{made.location}/{SUMS}")
    assert store.get(made.location).digest == made.digest
    with pytest.raises(DamagedArtifact, match=f"{SUMS} is missing"):
        Store(store.url, cache=store.local, paranoid=True).get(made.location)


def test_copies_of_what_is_not_in_the_bucket_are_collected(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, make: Make, tmp_path: Path
) -> None:
    """An upload that failed at its first request has left one, and so has a collection on another machine."""
    use_s3(request, monkeypatch)
    import s3fs

    s3fs.S3FileSystem().mkdir("copies")
    store = Store("s3://copies/store", cache=tmp_path / "here")
    made, kept = make(store, "dedup", FILES), make(store, "dedup", {"other": b"text"})
    refs.move(store, "tiny/dedup", kept.location, kept.digest)
    Store(store.url, cache=tmp_path / "elsewhere").remove(made.location)
    garbage = maintain.find_garbage(store, keep_last=1)
    assert list(garbage.artifacts) == [made.location]
    assert garbage.size > 0
    with store.lock("dedup", made.location.partition("/")[2]):  # as while it is being uploaded
        assert not maintain.find_garbage(store, keep_last=1).artifacts
    maintain.collect(store, garbage)
    assert not (store.local / "artifacts" / made.location).exists()
    assert store.get(kept.location).path.is_dir()
