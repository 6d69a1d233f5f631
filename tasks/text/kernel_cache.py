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
import secrets
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import numba
from numba.core import event
from numba.core.caching import IndexDataCacheFile, UserProvidedCacheLocator

from storage.files.cache import cache_folder

TASKS = Path(__file__).parents[1]
# Code that numba compiles, and the constants in it
COMPILED = ("*kernels.py", "characters.py", "comments.py", "phrases.py")
LIMIT_BYTES = 200_000_000  # one version of the kernels takes 8 MB
PATIENCE_SECONDS, POLL_SECONDS = 60.0, 0.02  # for another process to compile what this one needs
RARE = (50_000, 20, 1_000)  # of Python's garbage collection, as `gc.set_threshold` takes them
UNUSED_SECONDS = 86_400.0  # before that a folder may be of a run at work


class ByContent(UserProvidedCacheLocator):
    """The place of a kernel of Gristmill. Of other functions it knows none, nor where nothing can be written."""

    def __init__(self, py_func: Callable[..., Any], py_file: str) -> None:
        super().__init__(py_func, py_file)  # type: ignore[no-untyped-call]
        self._cache_path = str(folder() / Path(py_file).parent.relative_to(TASKS))

    @classmethod
    def from_function(cls, py_func: Callable[..., Any], py_file: str) -> Self | None:
        """See numba."""
        if not Path(py_file).is_relative_to(TASKS):
            return None
        found = cls(py_func, py_file)
        try:
            found.ensure_cache_path()  # type: ignore[no-untyped-call]
        except OSError:
            return None
        return found

    def get_source_stamp(self) -> str:
        """The folder says what the source is."""
        return ""


@functools.cache
def folder() -> Path:
    """That of these kernels, in `NUMBA_CACHE_DIR` or the user's cache. A new one has others make room."""
    kept = Path(os.environ.get("NUMBA_CACHE_DIR") or cache_folder() / "kernels")
    found = kept / f"{digest(TASKS)[:16]}-numba-{numba.__version__}"
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


def _own_name(self: Any, number: int) -> str:
    name: str = self._data_name_pattern.format(number=secrets.randbits(62))
    return name


def _load(self: Any, signature: Any) -> Any:
    """The code, from another process that is compiling it, if need be; None if this one is to."""
    code = _LOAD(self, signature)
    ours = Path(self._cache_path).is_relative_to(folder())
    if code is None and ours and (lock := _taken(f"{self._index_path}.lock")) is not None:
        code = _LOAD(self, signature)
        if code is None:
            _HELD[self._index_path] = lock
        else:
            os.close(lock)
    return code


def _save(self: Any, signature: Any, code: Any) -> None:
    try:
        _SAVE(self, signature, code)
    finally:
        if (lock := _HELD.pop(self._index_path, None)) is not None:
            os.close(lock)


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


# numba counts the files of a kernel's signatures, and of two processes that compile two of them at once one would take
# the other's file for its own. And workers that begin together would all compile the same
IndexDataCacheFile._data_name = _own_name  # type: ignore[method-assign]
_LOAD: Any = IndexDataCacheFile.load
_SAVE: Any = IndexDataCacheFile.save
IndexDataCacheFile.load, IndexDataCacheFile.save = _load, _save  # type: ignore[method-assign]
_HELD: dict[str, int] = {}  # the locks of kernels that this process compiles
COMPILING = Compiling()
event.register("numba:compile", COMPILING)  # type: ignore[no-untyped-call]
