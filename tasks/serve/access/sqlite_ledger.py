"""The ledger in one SQLite file, `serve.sqlite`, that the processes of one host share.

In WAL mode, reads wait for nothing and writes for each other only. With `synchronous=NORMAL` a crash of the machine may
lose the last bookings but never damages the file.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from storage.errors import StoreError
from storage.files.disk import cant_write, disk_full
from storage.files.locks import hold
from tasks.serve.access.config import Limits
from tasks.serve.access.keys import Key
from tasks.serve.access.ledger import LEASE, Request, name_taken
from tasks.serve.access.quota import MINUTE, Ask, Grant, Usage, grant, period

FILE = "serve.sqlite"
PATIENCE_SECONDS = 5.0
VERSION = 1
CREATE = f"""
CREATE TABLE keys (
    id TEXT PRIMARY KEY, name TEXT, salt BLOB, digest BLOB, created INTEGER, expires INTEGER, revoked INTEGER,
    used INTEGER, limits TEXT
);
CREATE UNIQUE INDEX names ON keys (name) WHERE revoked IS NULL;
CREATE TABLE processes (id TEXT PRIMARY KEY, seen INTEGER) WITHOUT ROWID;
CREATE TABLE requests (id INTEGER PRIMARY KEY, key TEXT, at INTEGER, tokens INTEGER, nano INTEGER, process TEXT);
CREATE INDEX windows ON requests (key, at, tokens);
CREATE INDEX running ON requests (key) WHERE process IS NOT NULL;
CREATE TABLE spent (key TEXT, period TEXT, tokens INTEGER, nano INTEGER, PRIMARY KEY (key, period)) WITHOUT ROWID;
PRAGMA user_version = {VERSION};
"""
SWEEP = "UPDATE requests SET tokens = 0, nano = 0, process = NULL WHERE process IS NOT NULL AND process NOT IN "


RECENT = "SELECT count(*), coalesce(sum(tokens), 0) FROM requests WHERE key = ? AND at > ?"
WINDOW = "SELECT at, tokens FROM requests WHERE key = ? AND at > ? ORDER BY at"
RUNNING = """
SELECT count(*), coalesce(sum(tokens) FILTER (WHERE at >= ?), 0), coalesce(sum(nano) FILTER (WHERE at >= ?), 0)
FROM requests INDEXED BY running WHERE key = ? AND process IS NOT NULL
"""  # the other index would be read for all requests of the minute
BOOK = """
INSERT INTO spent VALUES (?, ?, ?, ?)
ON CONFLICT DO UPDATE SET tokens = tokens + excluded.tokens, nano = nano + excluded.nano
"""


class SqliteLedger:
    """Keys and counts in a SQLite file. Any thread may use it, but only one at a time."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / FILE
        with self._faults():
            _make_private(folder)
            with hold(folder / "serve.lock"):  # SQLite doesn't wait for another process that changes to WAL
                os.close(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
                self.path.chmod(0o600)
                self._db = sqlite3.connect(
                    self.path, timeout=PATIENCE_SECONDS, isolation_level=None, check_same_thread=False
                )
                self._prepare()

    def _prepare(self) -> None:
        self._db.execute("PRAGMA journal_mode = WAL")
        self._db.execute("PRAGMA synchronous = NORMAL")
        (version,) = self._db.execute("PRAGMA user_version").fetchone()
        if version == 0:
            self._db.executescript(f"BEGIN; {CREATE} COMMIT;")
        elif version != VERSION:
            raise StoreError(
                f"{self.path} has version {version} of its tables, and this Gristmill knows version {VERSION}.",
                "Use the Gristmill that made it, or another state folder.",
            )
        if self._db.execute("PRAGMA quick_check(1)").fetchone() != ("ok",):
            raise self._damaged()

    def add(self, key: Key) -> None:
        row = (key.id, key.name, key.salt, key.digest, key.created, key.expires, key.revoked, key.used, key.limits)
        with self._writing():
            if self._db.execute("SELECT 1 FROM keys WHERE name = ? AND revoked IS NULL", (key.name,)).fetchone():
                raise name_taken(key.name)
            self._db.execute("INSERT INTO keys VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", row)

    def find(self, identity: str) -> Key | None:
        with self._faults():
            row = self._db.execute("SELECT * FROM keys WHERE id = ?", (identity,)).fetchone()
        return Key(*row) if row else None

    def all_keys(self) -> list[Key]:
        with self._faults():
            return [Key(*row) for row in self._db.execute("SELECT * FROM keys ORDER BY created, id")]

    def revoke(self, identity: str, now: int) -> None:
        with self._writing():
            self._db.execute("UPDATE keys SET revoked = ? WHERE id = ? AND revoked IS NULL", (now, identity))

    def spent(self, key: str, label: str) -> tuple[int, int]:
        with self._faults():
            found = self._db.execute("SELECT tokens, nano FROM spent WHERE key = ? AND period = ?", (key, label))
            tokens, nano = found.fetchone() or (0, 0)
        return tokens, nano

    def admit(self, request: Request, limits: Limits, ask: Ask) -> Grant:
        key, now = request.key, request.at
        with self._writing():
            granted = grant(limits, self._usage(key, limits, now), ask, now, lambda: self._window(key, now))
            row = (request.id, key, now, granted.tokens, granted.nano, request.process)
            self._db.execute("INSERT INTO requests VALUES (?, ?, ?, ?, ?, ?)", row)
            self._db.execute("UPDATE keys SET used = ? WHERE id = ?", (now, key))
        return granted

    def _usage(self, key: str, limits: Limits, now: int) -> Usage:
        current = period(limits.budget_period, now)
        rated = limits.requests_per_minute is not None or limits.tokens_per_minute is not None
        recent = self._db.execute(RECENT, (key, now - MINUTE)).fetchone() if rated else (0, 0)
        running = self._db.execute(RUNNING, (current.start, current.start, key)).fetchone()
        counts: list[int] = [*recent, *running, *self.spent(key, current.label)]
        return Usage(*counts)

    def _window(self, key: str, now: int) -> list[tuple[int, int]]:
        return self._db.execute(WINDOW, (key, now - MINUTE)).fetchall()

    def settle(self, request: Request, tokens: int, nano: int) -> None:
        with self._writing():
            self._db.execute(
                "UPDATE requests SET tokens = ?, nano = ?, process = NULL WHERE id = ?", (tokens, nano, request.id)
            )
            self._db.executemany(BOOK, [(request.key, label, tokens, nano) for label in request.periods()])

    def beat(self, process: str, now: int) -> None:
        with self._writing():
            self._db.execute("REPLACE INTO processes VALUES (?, ?)", (process, now))
            self._db.execute("DELETE FROM processes WHERE seen <= ?", (now - LEASE,))
            self._sweep(now)

    def leave(self, process: str, now: int) -> None:
        with self._writing():
            self._db.execute("DELETE FROM processes WHERE id = ?", (process,))
            self._sweep(now)

    def _sweep(self, now: int) -> None:
        self._db.execute(f"{SWEEP} (SELECT id FROM processes)")
        self._db.execute("DELETE FROM requests WHERE process IS NULL AND at <= ?", (now - MINUTE,))

    def close(self) -> None:
        self._db.close()

    @contextmanager
    def _writing(self) -> Iterator[None]:
        with self._faults():
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._db.execute("COMMIT")
            finally:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")

    @contextmanager
    def _faults(self) -> Iterator[None]:
        """Turn errors of SQLite and the disk into StoreErrors."""
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            code = getattr(error, "sqlite_errorcode", 0) & 0xFF  # the primary code of an extended one
            if code in (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT):
                raise self._damaged() from error
            if disk_full(error):
                raise StoreError(f"The disk of {self.path} is full.", "Free space on it.") from error
            if cant_write(error) or code == sqlite3.SQLITE_CANTOPEN:
                raise StoreError(
                    f"{self.path} can't be written.", "Give this user access, or choose another state folder."
                ) from error
            raise StoreError(
                f"{self.path} can't be used: {error}.", "See whether another process holds it, and check its disk."
            ) from error

    def _damaged(self) -> StoreError:
        return StoreError(
            f"{self.path} is damaged.",
            "Restore it from a backup. Without one, move it and its -wal and -shm files away and make new keys.",
        )


def _make_private(folder: Path) -> None:
    """Make the state folder, or check that only its user can open it."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if folder.stat().st_mode & 0o077:
        raise StoreError(f"Other users can open {folder}, which holds keys.", f"Close it: `chmod 700 {folder}`.")
