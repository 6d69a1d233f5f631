"""The database of a run's own Prefect server: nothing of it remains, and it holds nothing of another run."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from flows.database import Database, own_database

HOLD = """
import time
from flows.database import own_database
with own_database() as database:
    print(database.path, flush=True)
    time.sleep(60)
"""


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path))
    return tmp_path


def fill(database: Database) -> None:
    """As Prefect's server makes its tables, in a file beside the database until a checkpoint."""
    with closing(sqlite3.connect(database.path)) as opened:
        opened.execute("PRAGMA journal_mode=WAL")
        opened.execute("CREATE TABLE alembic_version (version_num TEXT)")
        opened.execute("INSERT INTO alembic_version VALUES ('1')")
        opened.commit()
        database.keep_empty()


def test_the_second_starts_from_what_the_first_kept_and_each_goes_with_its_run(home: Path) -> None:
    with own_database() as first:
        assert not first.copied
        fill(first)
        with closing(sqlite3.connect(first.path)) as opened:
            opened.execute("CREATE TABLE flow_run (id TEXT)")
    with own_database() as second:
        assert second.copied
        assert "MIGRATE_ON_START" in str(second.settings)
        with closing(sqlite3.connect(second.path)) as opened:
            assert opened.execute("PRAGMA journal_mode").fetchone() == ("wal",)
            assert opened.execute("SELECT name FROM sqlite_master").fetchall() == [("alembic_version",)]
    assert sorted(path.name for path in second.empty.parent.iterdir()) == ["lock", second.empty.name]
    assert not list(home.glob("gristmill/run-*"))


@pytest.mark.parametrize("content", [b"", b"SQLite format 3\0 of which a power cut left this"])
def test_an_empty_database_that_is_damaged_is_made_anew(content: bytes) -> None:
    with own_database() as first:
        fill(first)
    first.empty.write_bytes(content)
    with own_database() as second:
        assert not second.copied
        fill(second)
    with own_database() as third:
        assert third.copied


def test_what_a_killed_run_left_is_removed_and_what_a_running_one_uses_is_not(home: Path) -> None:
    runs = [
        subprocess.Popen([sys.executable, "-c", HOLD], env=dict(os.environ), stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    try:
        killed, running = (Path(run.stdout.readline().strip()).parent for run in runs if run.stdout)
        os.kill(runs[0].pid, signal.SIGKILL)
        runs[0].wait()
        with own_database():
            assert not killed.exists()
            assert running.exists()
    finally:
        for run in runs:
            run.kill()
            run.communicate()
