"""Digests of files, remembered while the files stay as they are.

A run names its inputs by their content, and every file of an artifact is checked before a stage reads it: 100 GB take
minutes to hash. So `digests.sqlite` in the cache folder keeps the digest of each file under its path, valid while
inode, size, and the times of the last change of content and inode stay the same. A file that changed within the last
seconds is not remembered: it could change again within the resolution of its times (the "racy git" problem). Losing the
database costs only time: an unreadable or unwritable one is ignored, a locked one is not waited for again, and a
damaged one is removed.
"""

from __future__ import annotations

import functools
import sqlite3
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing, suppress
from pathlib import Path
from typing import TypeVar

from storage.digests import file_digests
from storage.files.cache import cache_folder

SETTLED_SECONDS = 2.0
PATIENCE_SECONDS = 5.0  # other processes write for milliseconds
CREATE = """
CREATE TABLE IF NOT EXISTS digests (
    path TEXT PRIMARY KEY, inode INTEGER, size INTEGER, mtime_ns INTEGER, ctime_ns INTEGER, sha256 TEXT
)
"""
State = tuple[int, int, int, int]
_locked: set[Path] = set()
T = TypeVar("T")


def remembered_digest(path: Path, cache: Path | None = None) -> str:
    """SHA-256 of a file, remembered or hashed now. Raises OSError if the file can't be read."""
    return remembered_digests([path], cache)[path]


def remembered_digests(
    paths: Iterable[Path],
    cache: Path | None = None,
    *,
    anew: bool = False,
    hashed: Callable[[int], None] = lambda size: None,
) -> dict[Path, str]:
    """SHA-256 of each file, remembered or hashed now. `anew` hashes all of them now. `hashed` is called with the bytes
    of each hashed file. Raises OSError if a file can't be read."""
    cache = cache or cache_folder() / "digests.sqlite"
    states = {path: (file, _state(path)) for path, file in _resolved(paths).items()}
    known = {} if anew else _recall(cache, states.values())
    learned: dict[tuple[Path, State], str] = {}
    unknown = [about for about in states.values() if about not in known]
    for (file, state), digest in zip(unknown, file_digests(file for file, _ in unknown), strict=True):
        known[file, state] = digest
        hashed(state[1])
        settled = time.time_ns() - max(state[2:]) > SETTLED_SECONDS * 1e9
        if settled and _state(file) == state:
            learned[file, state] = digest
    _remember(cache, learned)
    return {path: known[about] for path, about in states.items()}


def remember(digests: Mapping[Path, str], cache: Path | None = None) -> None:
    """Store the digests of files that this process wrote and hashed, and that won't change."""
    _remember(
        cache or cache_folder() / "digests.sqlite",
        {(file, _state(file)): digests[path] for path, file in _resolved(digests).items()},
    )


def path_text(path: Path) -> str:
    """A path as printable text: a file's name may be any bytes."""
    return str(path).encode("utf-8", "backslashreplace").decode()


def _resolved(paths: Iterable[Path]) -> dict[Path, Path]:
    """Each path with the links among its folders followed, once for each folder. A file's own is told by its state."""
    resolve = functools.cache(Path.resolve)
    return {path: resolve(path.parent) / path.name for path in paths}


def _state(file: Path) -> State:
    about = file.stat()
    return about.st_ino, about.st_size, about.st_mtime_ns, about.st_ctime_ns


def _recall(cache: Path, states: Iterable[tuple[Path, State]]) -> dict[tuple[Path, State], str]:
    def ask(connection: sqlite3.Connection) -> dict[tuple[Path, State], str]:
        known = {}
        for file, state in states:
            query = "SELECT inode, size, mtime_ns, ctime_ns, sha256 FROM digests WHERE path = ?"
            row = connection.execute(query, (path_text(file),)).fetchone()
            if row and tuple(row[:4]) == state:
                known[file, state] = str(row[4])
        return known

    return _transact(cache, ask) or {} if cache.is_file() else {}


def _remember(cache: Path, learned: Mapping[tuple[Path, State], str]) -> None:
    def keep(connection: sqlite3.Connection) -> None:
        connection.execute(CREATE)
        rows = [(path_text(file), *state, digest) for (file, state), digest in learned.items()]
        connection.executemany("REPLACE INTO digests VALUES (?, ?, ?, ?, ?, ?)", rows)

    if learned:
        with suppress(OSError):
            cache.parent.mkdir(parents=True, exist_ok=True)
        _transact(cache, keep)


def _transact(cache: Path, ask: Callable[[sqlite3.Connection], T]) -> T | None:
    """Call `ask` in a transaction and return its result, or None if the database can't be used."""
    if cache in _locked:
        return None
    try:
        with closing(sqlite3.connect(cache, timeout=PATIENCE_SECONDS)) as connection, connection:
            return ask(connection)
    except UnicodeDecodeError:
        _discard(cache)
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF  # the primary code of an extended one
        if code == sqlite3.SQLITE_BUSY:
            _locked.add(cache)
        elif code in (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT):
            _discard(cache)
    return None


def _discard(cache: Path) -> None:
    with suppress(OSError):
        cache.unlink()
