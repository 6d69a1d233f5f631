"""The store: no partial artifacts, nothing overwritten, damage reported by name."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from storage import inspect, maintain, refs
from storage.artifact import Artifact
from storage.errors import DamagedArtifact, StoreError
from storage.manifest import MANIFEST
from storage.store import Store
from tests.storage.conftest import Make, use_s3


def key_of(artifact: Artifact) -> str:
    assert artifact.manifest is not None
    return artifact.manifest.key


def test_what_is_published_is_found_with_its_bytes(store: Store, make: Make) -> None:
    made = make(store, "dedup", {"documents/00000.parquet": b"one", "ledger/00000.parquet": b"two"})
    found = store.find("dedup", key_of(made))
    assert found is not None
    assert found.digest == made.digest
    assert (found.path / "documents/00000.parquet").read_bytes() == b"one"
    assert list(store.locations()) == [made.location]


def test_a_fresh_machine_fetches_from_the_bucket(store: Store, make: Make, tmp_path: Path) -> None:
    made = make(store, "dedup", {"a/b.txt": b"text"})
    elsewhere = Store(store.url, cache=tmp_path / "another machine")
    assert (elsewhere.get(made.location).path / "a/b.txt").read_bytes() == b"text"


def test_what_another_machine_publishes_is_seen_by_one_that_has_looked_before(
    store: Store, make: Make, tmp_path: Path
) -> None:
    for _ in range(2):  # what a bucket's client has listed it remembers
        store.begin()
        store.fs.find(store.root)
        assert (list(store.locations()), list(refs.names(store))) == ([], [])
    type(store.fs._fs if not store.is_folder else store.fs).clear_instance_cache()
    other = Store(store.url, cache=tmp_path / "other")
    made = make(other, "dedup", {"a.txt": b"one"})
    refs.move(other, "tiny/dedup", made.location, made.digest)
    assert (list(store.locations()), list(refs.names(store))) == ([made.location], ["tiny/dedup"])
    assert store.find("dedup", made.location.split("/")[1]) is not None


def test_without_a_manifest_an_artifact_does_not_exist(store: Store, make: Make) -> None:
    made = make(store, "dedup", {"a.txt": b"text"})
    store.fs.rm_file(f"{store.root}/artifacts/{made.location}/{MANIFEST}")
    assert store.find("dedup", key_of(made)) is None
    assert list(store.locations()) == []


def test_the_same_again_changes_nothing_and_other_bytes_become_the_next_generation(store: Store, make: Make) -> None:
    first = make(store, "dedup", {"a.txt": b"text"})
    assert make(store, "dedup", {"a.txt": b"text"}).location == first.location
    second = make(store, "dedup", {"a.txt": b"other"})
    assert second.location == f"{first.location}.2"
    assert (store.get(first.location).path / "a.txt").read_bytes() == b"text"
    found = store.find("dedup", key_of(first))
    assert found is not None
    assert found.location == second.location


def test_sha256sum_checks_an_artifact_by_hand(folder_store: Store, make: Make) -> None:
    made = make(folder_store, "dedup", {"a.txt": b"text", "b/c.txt": b"more"})
    subprocess.run(["sha256sum", "--check", "--strict", "SHA256SUMS"], cwd=made.path, check=True, capture_output=True)
    listed = subprocess.run(["sha256sum", "SHA256SUMS"], cwd=made.path, check=True, capture_output=True, text=True)
    assert listed.stdout.split()[0] == made.digest


def test_verify_names_the_damaged_file(store: Store, make: Make) -> None:
    made = make(store, "dedup", {"a.txt": b"text", "b.txt": b"more"})
    assert inspect.verify(store, made.location) == []
    store.fs.pipe_file(f"{store.root}/artifacts/{made.location}/b.txt", b"MORE")
    assert len(inspect.verify(store, made.location)) == 1
    with pytest.raises(DamagedArtifact, match=r"b\.txt changed") as caught:
        inspect.check(store, made.location)
    assert "--refresh dedup" in caught.value.remedy


def test_a_deleted_file_is_named_on_the_next_hit(folder_store: Store, make: Make) -> None:
    made = make(folder_store, "dedup", {"a.txt": b"text"})
    (made.path / "a.txt").unlink()
    with pytest.raises(DamagedArtifact, match=r"a\.txt is missing"):
        folder_store.find("dedup", key_of(made))


def test_a_store_or_manifest_of_another_format_is_refused(store: Store, make: Make) -> None:
    made = make(store, "dedup", {"a.txt": b"text"})
    path = f"artifacts/{made.location}/{MANIFEST}"
    data = json.loads(store.read_bytes(path) or b"")
    store.write_text(path, json.dumps({**data, "format": 99}))
    with pytest.raises(StoreError, match="format 99"):
        store.get(made.location)
    store.write_text("gristmill.json", json.dumps({"format": 99}))
    with pytest.raises(StoreError, match="format 99"):
        Store(store.url, cache=store.local)


def test_a_folder_with_other_things_is_not_taken_for_a_store(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("chapter 1")
    with pytest.raises(StoreError, match="not a store"):
        Store(str(tmp_path))


def test_refs_keep_their_history(store: Store, make: Make) -> None:
    first = make(store, "dedup", {"a.txt": b"1"}, {"a": 1})
    second = make(store, "dedup", {"a.txt": b"2"}, {"a": 2})
    assert refs.move(store, "tiny/dedup", first.location, first.digest) == 1
    assert refs.move(store, "tiny/dedup", first.location, first.digest) == 1
    assert refs.move(store, "tiny/dedup", second.location, "0" * 64) == 2
    assert refs.move(store, "tiny/dedup", second.location, second.digest) == 3, "a damaged digest is written anew"
    assert refs.resolve(store, "tiny/dedup") == second.location
    assert refs.resolve(store, "tiny/dedup@1") == first.location
    assert refs.resolve(store, first.location[:14]) == first.location
    assert list(refs.names(store)) == ["tiny/dedup"]
    with pytest.raises(StoreError, match="no version @4"):
        refs.resolve(store, "tiny/dedup@4")
    with pytest.raises(StoreError, match="neither a ref nor an artifact"):
        refs.resolve(store, "tiny/nothing")
    with pytest.raises(StoreError, match="The name is empty"):
        refs.resolve(store, "")


def test_an_error_names_some_of_many_refs(store: Store, make: Make) -> None:
    made = make(store, "dedup", {"a.txt": b"1"})
    for number in range(14):
        refs.move(store, f"run-{number:02}/dedup", made.location, made.digest)
    with pytest.raises(StoreError) as caught:
        refs.resolve(store, "run-03/dedop")
    assert caught.value.remedy.startswith("Did you mean run-03/dedup? Its refs: run-00/dedup, ")
    assert caught.value.remedy.endswith("run-11/dedup and 2 more (`gristmill store ls`).")


def test_lineage_leads_to_the_sources_and_diff_names_the_field(store: Store, make: Make) -> None:
    raw = make(store, "download", {"a.txt": b"1"})
    one = make(store, "dedup", {"a.txt": b"2"}, {"threshold": 0.8}, documents=raw)
    two = make(store, "dedup", {"a.txt": b"3"}, {"threshold": 0.7}, documents=raw)
    nodes = list(inspect.lineage(store, one.location))
    assert [(node.depth, node.location) for node in nodes] == [(0, one.location), (1, raw.location)]
    assert inspect.compare(store, one.location, two.location) == [("config.threshold", 0.8, 0.7)]


def test_gc_keeps_what_a_kept_ref_needs(store: Store, make: Make) -> None:
    raw = make(store, "download", {"a.txt": b"1"})
    old = make(store, "dedup", {"a.txt": b"2"}, {"a": 1}, documents=raw)
    new = make(store, "dedup", {"a.txt": b"3"}, {"a": 2}, documents=raw)
    lost = make(store, "filter", {"a.txt": b"4"})
    for artifact in (old, new):
        refs.move(store, "tiny/dedup", artifact.location, artifact.digest)
    assert set(maintain.find_garbage(store, keep_last=2).artifacts) == {lost.location}
    garbage = maintain.find_garbage(store, keep_last=1)
    assert set(garbage.artifacts) == {old.location, lost.location}
    assert set(store.locations()) == {raw.location, old.location, new.location, lost.location}, (
        "a dry run deletes nothing"
    )
    maintain.collect(store, garbage)
    assert set(store.locations()) == {raw.location, new.location}


def test_what_a_killed_upload_or_removal_leaves_is_garbage_and_in_nobodys_way(store: Store, make: Make) -> None:
    made = make(store, "dedup", {"a.txt": b"text", "b.txt": b"more"})
    store.fs.rm_file(f"{store.root}/artifacts/{made.location}/{MANIFEST}")
    assert [*maintain.find_garbage(store, keep_last=1).artifacts] == [made.location] * store.is_folder, (
        "another machine may still be uploading"
    )
    garbage = maintain.find_garbage(store, keep_last=1, settled=0)
    assert [*garbage.artifacts] == [made.location]
    assert garbage.artifacts[made.location] > 0
    again = make(store, "dedup", {"a.txt": b"text"})
    assert again.location == made.location
    assert inspect.verify(store, again.location) == []
    store.fs.rm_file(f"{store.root}/artifacts/{made.location}/{MANIFEST}")
    maintain.collect(store, maintain.find_garbage(store, keep_last=1, settled=0))
    maintain.collect(store, garbage)  # found before by somebody else
    assert not store.fs.exists(f"{store.root}/artifacts/{made.location}/a.txt")


def test_a_removal_that_ends_after_its_first_file_leaves_no_artifact(
    store: Store, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = make(store, "dedup", {"a.txt": b"text"})
    remove, asked = store.fs.rm, list[str]()

    def killed(path: str, recursive: bool = False) -> None:
        asked.append(path)
        if len(asked) > 1 or recursive:
            raise KeyboardInterrupt
        remove(path, recursive=recursive)

    with monkeypatch.context() as changed:
        changed.setattr(store.fs, "rm", killed)
        with pytest.raises(KeyboardInterrupt):
            store.remove(made.location)
    assert list(store.locations()) == []
    assert store.fs.exists(f"{store.root}/artifacts/{made.location}/a.txt")


def test_a_disk_that_fails_while_a_ref_is_written_leaves_it_as_it_was(
    folder_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder_store.write_text("refs/tiny/dedup.json", "the old text")

    def full(path: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as changed:
        changed.setattr("storage.store.flush", full)
        with pytest.raises(OSError, match="No space"):
            folder_store.write_text("refs/tiny/dedup.json", "the new text")
    assert folder_store.read_bytes("refs/tiny/dedup.json") == b"the old text"
    assert [path.name for path in (folder_store.local / "refs" / "tiny").iterdir()] == ["dedup.json"]


def test_what_is_damaged_in_a_bucket_is_made_again_beside_a_whole_copy(store: Store, make: Make) -> None:
    if store.is_folder:
        pytest.skip("a folder has no second copy")
    made = make(store, "dedup", {"a.txt": b"text"})
    store.fs.pipe_file(f"{store.root}/artifacts/{made.location}/a.txt", b"TEXT")
    again = make(store, "dedup", {"a.txt": b"text"})
    assert again.location == f"{made.location}.2"
    assert inspect.verify(store, again.location) == []


def test_adopt_takes_a_folder_made_elsewhere(store: Store, make: Make, tmp_path: Path) -> None:
    from storage.keys import KeyPayload

    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/tokenizer.json").write_text("{}")
    payload = KeyPayload(stage="tokenizer", version=1, config={"vocab_size": 512}, inputs={})
    made = maintain.adopt(store, tmp_path / "mine", payload, {}, "adopted from mine")
    found = store.find("tokenizer", payload.key())
    assert found is not None
    assert found.digest == made.digest
    assert made.manifest is not None
    assert made.manifest.facts["adopted"] == "adopted from mine"
    assert (tmp_path / "mine/tokenizer.json").exists(), "the original stays where it was"


HOLD = """
import sys, time
from pathlib import Path
from storage.files import locks
with locks.hold(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_lock_is_waited_for_and_freed_by_kill_9(tmp_path: Path) -> None:
    from storage.files import locks

    path = tmp_path / "locks" / "dedup-abc"
    holder = subprocess.Popen([sys.executable, "-c", HOLD, str(path)], stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    assert locks.is_held(path)
    told: list[str] = []

    def waiting(who: str) -> None:
        told.append(who)
        os.kill(holder.pid, signal.SIGKILL)

    with locks.hold(path, waiting):
        assert f"process {holder.pid} on" in told[0]
    holder.wait()
    assert not locks.is_held(path)


PUBLISH = """
import sys
from tests.storage.publish_many import main
main(sys.argv[1])
"""


def test_kill_9_at_any_instant_leaves_the_store_sound(tmp_path: Path) -> None:
    """A process publishes artifacts in a loop and is killed at random moments; every artifact there is complete."""
    url = str(tmp_path / "store")
    store = Store(url)
    for delay in (0.0, 0.05, 0.11, 0.2, 0.35):
        published = len(list(store.locations()))
        child = subprocess.Popen([sys.executable, "-c", PUBLISH, url], cwd=Path(__file__).parents[2])
        while len(list(store.locations())) == published:  # however long it takes to start
            assert child.poll() is None, "the child ended without publishing"
            time.sleep(0.005)
        time.sleep(delay)
        child.kill()
        child.wait()
        for location in store.locations():
            assert inspect.verify(store, location) == []


def test_a_folder_with_links_or_pipes_is_not_adopted(folder_store: Store, tmp_path: Path) -> None:
    """A link would bring in files that nobody has given."""
    (tmp_path / "secret").write_text("of somebody")
    for name in ("to a file", "to a folder", "pipe"):
        folder = tmp_path / name
        (folder / "inner").mkdir(parents=True)
        (folder / "a.txt").write_text("given")
        if name == "pipe":
            os.mkfifo(folder / "inner" / "strange")
        else:
            (folder / "inner" / "strange").symlink_to(tmp_path / "secret" if name == "to a file" else tmp_path)
        with pytest.raises(StoreError, match=r"inner/strange is a (link|pipe)"):
            maintain.adoptable(folder_store, folder)


def test_a_server_of_files_that_does_not_answer_is_a_sentence() -> None:
    with pytest.raises(StoreError, match=r"The store ftp://127\.0\.0\.1:9/store can't be reached"):
        Store("ftp://127.0.0.1:9/store")


def test_who_waits_for_a_server_is_told_for_what(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing is said of one that answers soon."""

    class Slow(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            time.sleep(0.5)
            self.send_error(404)

    with ThreadingHTTPServer(("127.0.0.1", 0), Slow) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/store"
        Store(url)
        assert not caplog.messages
        monkeypatch.setattr("storage.files.remote.SILENT_SECONDS", 0.1)
        Store(url)
        assert caplog.messages == [f"Still waiting for the store {url} to answer (cat_file)."]
        server.shutdown()


def test_no_bucket_is_made(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    use_s3(request, monkeypatch)
    import s3fs

    assert not list(Store("s3://mistyped/store").manifests())  # as before the first run
    with pytest.raises(StoreError, match="The bucket of s3://mistyped/store does not exist"):
        Store("s3://mistyped/store").begin()
    assert not s3fs.S3FileSystem(skip_instance_cache=True).exists("mistyped")


def test_a_draft_that_was_never_renamed_is_garbage(folder_store: Store, make: Make) -> None:
    made = make(folder_store, "dedup", {"a.txt": b"1"})
    refs.move(folder_store, "tiny/dedup", made.location, made.digest)
    drafts = {folder_store.local / ".gristmill.json.7": 2, folder_store.local / "refs/tiny/.dedup.json.7": 2}
    for path in drafts:
        path.write_text("[]")
    assert maintain.find_garbage(folder_store, keep_last=1).drafts == {}
    garbage = maintain.find_garbage(folder_store, keep_last=1, settled=0)
    assert garbage.drafts == drafts
    maintain.collect(folder_store, garbage)
    assert not any(path.exists() for path in drafts)


def test_unfinished_work_is_for_its_owner_only(tmp_path: Path) -> None:
    assert Store(str(tmp_path / "store")).workspace("filter", "0" * 32).stat().st_mode & 0o077 == 0


def test_local_copies_of_a_buckets_artifacts_are_for_their_owner_only(make: Make, tmp_path: Path) -> None:
    made = make(Store("memory://owner", cache=tmp_path / "here"), "filter", {"removed/0.txt": b"personal"})
    assert Store("memory://owner", cache=tmp_path / "there").get(made.location).path.is_dir()
    assert (tmp_path / "there").stat().st_mode & 0o077 == 0


def test_a_store_that_can_not_be_made_is_an_error_with_a_remedy() -> None:
    with pytest.raises(StoreError, match="No store can be created at /proc/nope: No such file") as caught:
        Store("/proc/nope").begin()
    assert "runtime.store" in caught.value.remedy
