"""Where numba keeps the kernels that it has compiled: in the user's cache, by what they are made of.

By default numba keys kernels by file path, so every clone, wheel and CI run compiles them again, which takes about a
minute. It also checks only the file of a function, not the files of what that calls. Here the key is a digest of all
files that kernels are made of, with numba's version; the CPU is part of numba's own keys. Folders that have long not
been used are deleted.

numba takes the class of `LOCATORS` from its environment and asks it first (docs: *Custom Cache Locators*).
"""

from __future__ import annotations

import errno
import fcntl
import functools
import gc
import hashlib
import os
import pickle
import secrets
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import numba
from numba.core import caching, event
from numba.core.caching import IndexDataCacheFile, UserProvidedCacheLocator
from numba.core.serialize import dumps

from storage.files.cache import cache_folder

TASKS = Path(__file__).parents[1]
# Code that numba compiles, and the constants in it
COMPILED = ("*kernels.py", "characters.py", "comments.py", "phrases.py")
LIMIT_BYTES = 200_000_000  # one version of the kernels takes 8 MB
PATIENCE_SECONDS, POLL_SECONDS = 60.0, 0.02  # for another process to compile what this one needs
DIGEST_BYTES = 32
RARE = (50_000, 20, 1_000)  # of Python's garbage collection, as `gc.set_threshold` takes them
UNUSED_SECONDS = 86_400.0  # before that a folder may be of a run at work


class ByContent(UserProvidedCacheLocator):
    """The place of a kernel of Gristmill. Of other functions it knows none.

    Where nothing can be written it is the place all the same, and each process compiles: numba would write into the
    checkout, and take what it finds there without a look at the kernels that a kernel calls.
    """

    def __init__(self, py_func: Callable[..., Any], py_file: str) -> None:
        super().__init__(py_func, py_file)  # type: ignore[no-untyped-call]
        self._cache_path = str(folder() / Path(py_file).parent.relative_to(TASKS))

    @classmethod
    def from_function(cls, py_func: Callable[..., Any], py_file: str) -> Self | None:
        """See numba."""
        if not Path(py_file).is_relative_to(TASKS):
            return None
        found = cls(py_func, py_file)
        found.ensure_cache_path()  # locks are there before any code is
        return found

    def ensure_cache_path(self) -> None:
        """See numba, which would end the run where this fails."""
        with suppress(OSError):
            Path(self._cache_path).mkdir(parents=True, exist_ok=True)

    def get_source_stamp(self) -> str:
        """The folder says what the source is."""
        return ""


@functools.cache
def folder() -> Path:
    """That of these kernels, in `NUMBA_CACHE_DIR` or the user's cache. A new one has others make room."""
    kept = Path(os.environ.get("NUMBA_CACHE_DIR") or cache_folder() / "kernels")
    found = kept / f"{digest(TASKS)[:16]}-numba-{numba.__version__}-sealed"
    with suppress(OSError):
        if found.is_dir():
            os.utime(found)
        else:
            found.mkdir(parents=True, exist_ok=True)
            make_room(kept)
    return found


def digest(package: Path) -> str:
    """That of all files which kernels are made of, whatever folder the package is in."""
    whole = hashlib.sha256()
    for path in sorted(path for pattern in COMPILED for path in package.rglob(pattern)):
        text = path.read_bytes()
        whole.update(f"{path.relative_to(package).as_posix()} {len(text)}\n".encode() + text)
    return whole.hexdigest()


def make_room(kept: Path, limit: float = LIMIT_BYTES) -> None:
    """Delete those that have not been used for longest, as long as all take more than the limit. Raises OSError."""
    used = {path: path.stat().st_mtime for path in kept.iterdir() if path.is_dir()}
    sizes = {path: sum(file.stat().st_size for file in path.rglob("*") if file.is_file()) for path in used}
    for path in sorted(used, key=lambda each: used[each]):
        if sum(sizes.values()) <= limit or time.time() - used[path] < UNUSED_SECONDS:
            return
        shutil.rmtree(path, ignore_errors=True)
        del sizes[path]


class Compiling(event.Listener):
    """While numba compiles, garbage is rarely looked for: as often as usual it takes a seventh of that time."""

    def __init__(self) -> None:
        self.depth = 0  # a kernel has those that it calls compiled
        self.usual = gc.get_threshold()
        self._seconds, self._began = 0.0, 0.0

    def seconds(self) -> float:
        """How long this process has compiled."""
        return self._seconds + (time.monotonic() - self._began if self.depth else 0.0)

    def on_start(self, event: event.Event) -> None:
        """See numba, which lets one thread compile at a time."""
        if not self.depth:
            self.usual, self._began = gc.get_threshold(), time.monotonic()
            gc.set_threshold(*RARE)
        self.depth += 1

    def on_end(self, event: event.Event) -> None:
        """See numba."""
        self.depth -= 1
        if not self.depth:
            self._seconds += time.monotonic() - self._began
            gc.set_threshold(*self.usual)


class KernelFile(IndexDataCacheFile):
    """The compiled code of a kernel: an index, and a file for each signature. Each begins with a digest of the rest,
    and one that is damaged is as if it were not there. What can't be kept is compiled by each process."""

    def load(self, key: Any) -> Any:
        """The code, from another process that is compiling it, if need be; None if this one is to."""
        code = super().load(key)  # type: ignore[no-untyped-call]
        if code is None and (lock := _taken(f"{self._index_path}.lock")) is not None:
            code = super().load(key)  # type: ignore[no-untyped-call]
            if code is None:
                _HELD[self._index_path] = lock
            else:
                os.close(lock)
        return code

    def save(self, key: Any, data: Any) -> None:
        """Keep it, where there is room."""
        try:
            with suppress(OSError):
                super().save(key, data)  # type: ignore[no-untyped-call]
        finally:
            if (lock := _HELD.pop(self._index_path, None)) is not None:
                os.close(lock)

    def _load_index(self) -> dict[Any, str]:
        return unsealed(Path(self._index_path)) or {}

    def _save_index(self, overloads: dict[Any, str]) -> None:
        with self._open_for_write(self._index_path) as stream:
            stream.write(self._dump(overloads))

    def _load_data(self, name: str) -> Any:
        return unsealed(Path(self._data_path(name)))  # type: ignore[no-untyped-call]

    def _dump(self, obj: Any) -> bytes:
        data: bytes = dumps(obj)  # type: ignore[no-untyped-call]
        return hashlib.sha256(data).digest() + data

    def _data_name(self, number: int) -> str:
        """numba counts the signatures, and of two processes that compile two of them at once one would take the other's
        file for its own."""
        name: str = self._data_name_pattern.format(number=secrets.randbits(62))
        return name


def unsealed(path: Path) -> Any:
    """What a file holds; None where it can't be read or is damaged."""
    try:
        sealed = path.read_bytes()
    except OSError:
        return None
    digest, data = sealed[:DIGEST_BYTES], sealed[DIGEST_BYTES:]
    return pickle.loads(data) if hashlib.sha256(data).digest() == digest else None


def _file(cache_path: str, filename_base: str, source_stamp: str) -> IndexDataCacheFile:
    """That of a kernel of Gristmill, or of another function as numba has it."""
    kind = KernelFile if Path(cache_path).is_relative_to(folder()) else IndexDataCacheFile
    return kind(cache_path, filename_base, source_stamp)  # type: ignore[no-untyped-call]


def _taken(path: str) -> int | None:
    """The lock of a kernel, once no other process has it. None after a while: whoever had it may have failed, or have
    been stopped. None too where it is ours, or can't be had."""
    if path.removesuffix(".lock") in _HELD:
        return None
    try:
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError:
        return None
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return lock
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.EACCES):
                break
            time.sleep(POLL_SECONDS)
    os.close(lock)
    return None


caching.IndexDataCacheFile = _file  # type: ignore[misc,assignment]
_HELD: dict[str, int] = {}  # the locks of kernels that this process compiles
COMPILING = Compiling()
event.register("numba:compile", COMPILING)  # type: ignore[no-untyped-call]
