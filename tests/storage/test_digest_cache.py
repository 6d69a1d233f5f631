"""Remembered digests: never a wrong one, whatever happens to the file or the database."""

from __future__ import annotations

import hashlib
import os
import sqlite3
import time
from contextlib import closing
from pathlib import Path

import pytest

from storage import digest_cache, digests
from storage.digest_cache import remembered_digest
from storage.digests import file_digest


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The files that were hashed, in order."""
    hashed: list[Path] = []

    def noted(path: Path) -> str:
        hashed.append(path)
        return file_digest(path)

    monkeypatch.setattr(digests, "file_digest", noted)
    return hashed


def settle(path: Path) -> None:
    """Wait until the file's times are old enough to be believed."""
    time.sleep(max(0.0, path.stat().st_ctime_ns / 1e9 + digest_cache.SETTLED_SECONDS + 0.1 - time.time()))


def test_an_unchanged_file_is_read_once_and_a_changed_one_again(tmp_path: Path, reads: list[Path]) -> None:
    file, cache = tmp_path / "data.jsonl", tmp_path / "cache" / "digests.sqlite"
    file.write_text("one")
    settle(file)
    assert [remembered_digest(file, cache) for _ in range(3)] == [hashlib.sha256(b"one").hexdigest()] * 3
    assert len(reads) == 1
    before = file.stat()
    file.write_text("two")  # the same size, and the same time of change as far as utime can say so
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert remembered_digest(file, cache) == hashlib.sha256(b"two").hexdigest()
    other = tmp_path / "other"
    other.write_text("six")
    os.replace(other, file)
    assert remembered_digest(file, cache) == hashlib.sha256(b"six").hexdigest()


def test_a_file_that_has_just_changed_is_not_remembered(tmp_path: Path, reads: list[Path]) -> None:
    file, cache = tmp_path / "data.jsonl", tmp_path / "digests.sqlite"
    file.write_text("one")
    remembered_digest(file, cache)
    remembered_digest(file, cache)
    assert len(reads) == 2


def test_what_remembers_may_be_damaged_or_have_no_place(tmp_path: Path) -> None:
    file = tmp_path / "data.jsonl"
    file.write_text("one")
    settle(file)
    damaged = tmp_path / "digests.sqlite"
    damaged.write_bytes(b"no database" * 500)
    for cache in (damaged, file / "digests.sqlite"):
        assert remembered_digest(file, cache) == hashlib.sha256(b"one").hexdigest()
    assert remembered_digest(file, damaged) == hashlib.sha256(b"one").hexdigest()
    assert damaged.read_bytes().startswith(b"SQLite format 3"), "a damaged one is replaced"


def test_what_another_process_keeps_locked_is_waited_for_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, cache = tmp_path / "data.jsonl", tmp_path / "digests.sqlite"
    file.write_text("one")
    settle(file)
    remembered_digest(file, cache)
    monkeypatch.setattr(digest_cache, "PATIENCE_SECONDS", 1.0)
    with closing(sqlite3.connect(cache)) as other:
        other.execute("BEGIN EXCLUSIVE")
        started = time.monotonic()
        for _ in range(5):
            assert remembered_digest(file, cache) == hashlib.sha256(b"one").hexdigest()
        assert time.monotonic() - started < 4
