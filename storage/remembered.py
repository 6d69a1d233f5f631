"""Digests of files outside the store, remembered while the files stay as they are.

A run names its inputs by their content, and 100 GB take minutes to hash. So the digest of a file is kept in
`digests.sqlite` in the cache folder under its path, and taken from there while inode, size, and the times of the last
change of content and of inode are the same. A file that changed within the last seconds is not remembered: it could
change again within the resolution of its times (the "racy git" problem). Losing the file of digests costs time only,
so one that can't be read or written is gone without.
"""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing
from pathlib import Path

from storage.cache import cache_folder
from storage.digests import file_digest

SETTLED_SECONDS = 2.0
CREATE = """
CREATE TABLE IF NOT EXISTS digests (
    path TEXT PRIMARY KEY, inode INTEGER, size INTEGER, mtime_ns INTEGER, ctime_ns INTEGER, sha256 TEXT
)
"""
State = tuple[int, int, int, int]


def remembered_digest(path: Path, cache: Path | None = None) -> str:
    """SHA-256 of a file: remembered, or hashed now. Raises OSError where the file can't be read."""
    cache = cache or cache_folder() / "digests.sqlite"
    file = path.resolve()
    state = _state(file)
    known = _recall(cache, file, state)
    if known is not None:
        return known
    digest = file_digest(file)
    settled = time.time_ns() - max(state[2:]) > SETTLED_SECONDS * 1e9
    if settled and _state(file) == state:
        _remember(cache, file, state, digest)
    return digest


def _state(file: Path) -> State:
    found = file.stat()
    return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def _recall(cache: Path, file: Path, state: State) -> str | None:
    if not cache.is_file():
        return None
    try:
        with closing(sqlite3.connect(cache, timeout=10)) as connection:
            query = "SELECT inode, size, mtime_ns, ctime_ns, sha256 FROM digests WHERE path = ?"
            row = connection.execute(query, (str(file),)).fetchone()
    except sqlite3.Error:
        return None
    return str(row[4]) if row and tuple(row[:4]) == state else None


def _remember(cache: Path, file: Path, state: State, digest: str) -> None:
    try:
        cache.parent.mkdir(parents=True, exist_ok=True)
        with closing(sqlite3.connect(cache, timeout=10)) as connection, connection:
            connection.execute(CREATE)
            connection.execute("REPLACE INTO digests VALUES (?, ?, ?, ?, ?, ?)", (str(file), *state, digest))
    except (OSError, sqlite3.Error):
        return
