"""Unreadable files are neither lost nor taken for missing, and other users can use what they may read."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from storage import inspect, leases, maintain, refs
from storage.errors import DamagedArtifact
from storage.store import Store
from tests.file_systems import read_only
from tests.storage.conftest import Make

ASKED = """
import json, sys
from storage import inspect, maintain, refs
from storage.store import Store
store = Store(sys.argv[1])
try:
    print(json.dumps(eval(sys.argv[2])))
except OSError as error:
    print(json.dumps(type(error).__name__))
"""


def asked(store: Store, question: str) -> Any:
    """What a user who may pass by no permission is answered."""
    command = [sys.executable, "-c", ASKED, store.url, question]
    if os.geteuid() == 0:
        if not shutil.which("setpriv"):
            pytest.skip("setpriv, which takes root's privileges, is not here")
        command = ["setpriv", "--bounding-set=-all", "--inh-caps=-all", *command]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def test_refs_that_cant_be_listed_delete_nothing(folder_store: Store, make: Make) -> None:
    made = make(folder_store, "dedup", {"a": b"1"})
    refs.move(folder_store, "tiny/dedup", made.location, made.digest)
    closed = folder_store.local / "refs/tiny"
    closed.chmod(0)
    try:
        assert asked(folder_store, "sorted(maintain.find_garbage(store, 1).artifacts)") == "PermissionError"
        assert asked(folder_store, "inspect.verify_refs(store)") == "PermissionError"
    finally:
        closed.chmod(0o755)
    assert maintain.find_garbage(folder_store, 1).artifacts == {}


@pytest.mark.parametrize("what", ["folder", "link to nothing", "link to itself", "pipe"])
def test_what_lies_in_the_place_of_a_ref_is_a_ref_that_cant_be_read(what: str, folder_store: Store, make: Make) -> None:
    made = make(folder_store, "dedup", {"a": b"1"})
    refs.move(folder_store, "tiny/dedup", made.location, made.digest)
    path = folder_store.local / "refs/tiny/dedup.json"
    path.unlink()
    if what == "folder":
        path.mkdir()
    elif what == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("nothing" if what == "link to nothing" else path.name)
    garbage = maintain.find_garbage(folder_store, keep_last=1)
    assert (garbage.unreadable, garbage.artifacts) == (["refs/tiny/dedup.json"], {})
    assert [*inspect.verify_refs(folder_store).values()] == [f"{path} is not a file"]
    with pytest.raises(DamagedArtifact, match="is not a file"):
        refs.history(folder_store, "tiny/dedup")


def test_a_folder_that_is_closed_to_a_user_hides_no_other_damage(folder_store: Store, make: Make) -> None:
    made = make(folder_store, "filter", {"documents/a": b"1", "removed/b": b"2", "own": b"3"})
    (made.path / "removed").chmod(0)
    (made.path / "own").chmod(0)
    try:
        damage = asked(folder_store, f"inspect.verify(store, {made.location!r})")
        assert damage == [f"{made.location}/removed is closed to this user", f"{made.location}/own can't be read"]
        assert asked(folder_store, f"store.get({made.location!r}).digest") == "PermissionError"
        (made.path / "own").chmod(0o644)
        assert asked(folder_store, f"store.get({made.location!r}).digest") == made.digest
        (made.path / "documents/a").write_bytes(b"x")
        assert "changed" in asked(folder_store, f"inspect.verify(store, {made.location!r})")[1]
    finally:
        (made.path / "removed").chmod(0o700)
    assert len(inspect.verify(folder_store, made.location)) == 1


def test_a_file_that_a_library_left_to_its_owner_can_be_read_by_all_who_may_read_the_others(
    tmp_path: Path, folder_store: Store, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = folder_store.workspace

    def with_private_files(stage: str, key: str) -> Path:
        folder = real(stage, key)
        (folder / "out/removed").mkdir(parents=True)
        (folder / "out/removed").chmod(0o700)
        for name in ("out/weights", "out/removed/text"):
            (folder / name).write_text("1")
            (folder / name).chmod(0o600)
        return folder

    monkeypatch.setattr(folder_store, "workspace", with_private_files)
    before = os.umask(0o027)
    try:
        made = make(folder_store, "sft", {"a": b"1"})
    finally:
        os.umask(before)
    assert (made.path / "weights").stat().st_mode & 0o777 == 0o640
    assert (made.path / "removed").stat().st_mode & 0o777 == 0o700


def test_garbage_can_be_listed_in_a_store_that_can_only_be_read(folder_store: Store, make: Make) -> None:
    made = make(folder_store, "dedup", {"a": b"1"})
    with leases.Lease(folder_store) as lease:
        lease.add("download/" + "0" * 32)
        with read_only(folder_store.local):
            assert set(maintain.find_garbage(folder_store, keep_last=1).artifacts) == {made.location}
