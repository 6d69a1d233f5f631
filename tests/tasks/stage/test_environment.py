"""A manifest records where an artifact was made: commit, changes since, processor, but no host name."""

from __future__ import annotations

import platform
import subprocess
from pathlib import Path

from tasks.stage.environment import _commit, environment


def git(folder: Path, *arguments: str) -> str:
    command = ["git", "-C", str(folder), "-c", "user.name=a", "-c", "user.email=a@b", *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def commit_of(folder: Path) -> dict[str, str]:
    _commit.cache_clear()
    return _commit(folder)


def test_the_commit_and_every_change_since_are_told_apart(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    (tmp_path / "code.py").write_text("one\n")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "first")
    clean = commit_of(tmp_path)
    assert clean == {"commit": git(tmp_path, "rev-parse", "HEAD"), "changes": "none"}
    (tmp_path / "code.py").write_text("two\n")
    changed = commit_of(tmp_path)
    (tmp_path / "new.py").write_text("three\n")
    with_new = commit_of(tmp_path)
    (tmp_path / "new.py").write_text("four\n")
    other_new = commit_of(tmp_path)
    assert {found["commit"] for found in (changed, with_new, other_new)} == {clean["commit"]}
    assert len({found["changes"] for found in (clean, changed, with_new, other_new)}) == 4
    _commit.cache_clear()


def test_without_a_checkout_there_is_no_commit(tmp_path: Path) -> None:
    assert commit_of(tmp_path) == {}
    _commit.cache_clear()


def test_the_processor_is_named_and_the_host_is_not() -> None:
    found = environment()
    assert found["cpu"]
    assert found["gpu"]
    assert platform.node() not in found.values()
