"""The cache of kernels that numba has compiled: in the user's cache folder, keyed by their source.

By default numba keys kernels by file path, so every clone, wheel and CI run compiles them again, which takes about a
minute. It also checks only the file of a function, not the files of the functions that it calls. Here the key is a
digest of all source files of kernels, with numba's version. The CPU is part of numba's own keys. Folders that haven't
been used for long are deleted.

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
from numba.core.caching import Cache, IndexDataCacheFile, UserProvidedCacheLocator
from numba.core.runtime.nrt import rtsys
from numba.core.serialize import dumps

from storage.files.cache import cache_folder

TASKS = Path(__file__).parents[1]
# Code that numba compiles, and the constants in it
COMPILED = ("*kernels.py", "characters.py", "comments.py", "phrases.py")
LIMIT_BYTES = 200_000_000  # one version of the kernels takes 8 MB
PATIENCE_SECONDS, POLL_SECONDS = 60.0, 0.02  # for another process to compile what this one needs
DIGEST_BYTES = 32
RARE = (50_000, 20, 1_000)  # thresholds of Python's garbage collection, for `gc.set_threshold`
UNUSED_SECONDS = 86_400.0  # a folder used more recently may belong to an active run


class ByContent(UserProvidedCacheLocator):
    """The place of Gristmill's kernels. Other functions have none here.

    It stays the place even if it can't be written, and then each process compiles. Otherwise numba would write into the
    checkout, and trust what it finds there without checking the kernels that a kernel calls.
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
        found.ensure_cache_path()  # locks come before any code
        return found

    def ensure_cache_path(self) -> None:
        """See numba, which would end the run if this failed."""
        with suppress(OSError):
            Path(self._cache_path).mkdir(parents=True, exist_ok=True)

    def get_source_stamp(self) -> str:
        """Constant: the folder already identifies the source."""
        return ""


@functools.cache
def folder() -> Path:
    """The folder of these kernels, in `NUMBA_CACHE_DIR` or the user's cache. To make room for a new one, others go."""
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
    """The digest of all source files of kernels, whatever folder the package is in."""
    whole = hashlib.sha256()
    for path in sorted(path for pattern in COMPILED for path in package.rglob(pattern)):
        text = path.read_bytes()
        whole.update(f"{path.relative_to(package).as_posix()} {len(text)}\n".encode() + text)
    return whole.hexdigest()


def make_room(kept: Path, limit: float = LIMIT_BYTES) -> None:
    """Delete the least recently used folders while all take more than the limit. Raises OSError."""
    used = {path: path.stat().st_mtime for path in kept.iterdir() if path.is_dir()}
    sizes = {path: sum(file.stat().st_size for file in path.rglob("*") if file.is_file()) for path in used}
    for path in sorted(used, key=lambda each: used[each]):
        if sum(sizes.values()) <= limit or time.time() - used[path] < UNUSED_SECONDS:
            return
        shutil.rmtree(path, ignore_errors=True)
        del sizes[path]


class Compiling(event.Listener):
    """Collects garbage rarely while numba compiles: at the usual rate it takes a seventh of that time."""

    def __init__(self) -> None:
        self.depth = 0  # compiling a kernel compiles those that it calls
        self.usual = gc.get_threshold()
        self._seconds, self._began = 0.0, 0.0

    def seconds(self) -> float:
        """Seconds that this process has spent compiling."""
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
    and a damaged one counts as missing. Each process compiles code that can't be kept."""

    def load(self, key: Any) -> Any:
        """The code, if need be once another process has compiled it. None if this process must compile it."""
        code = super().load(key)  # type: ignore[no-untyped-call]
        if code is None and (lock := _taken(f"{self._index_path}.lock")) is not None:
            code = super().load(key)  # type: ignore[no-untyped-call]
            if code is None:
                _HELD[self._index_path] = lock
            else:
                os.close(lock)
        return code

    def save(self, key: Any, data: Any) -> None:
        """Keep the code, if there is room."""
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
        """A unique name. numba numbers the signatures, so if two processes compiled two of them at once, one would take
        the other's file for its own."""
        name: str = self._data_name_pattern.format(number=secrets.randbits(62))
        return name


def unsealed(path: Path) -> Any:
    """The content of a file. None if it can't be read or is damaged."""
    try:
        sealed = path.read_bytes()
    except OSError:
        return None
    digest, data = sealed[:DIGEST_BYTES], sealed[DIGEST_BYTES:]
    return pickle.loads(data) if hashlib.sha256(data).digest() == digest else None


def _file(cache_path: str, filename_base: str, source_stamp: str) -> IndexDataCacheFile:
    """The cache file of a kernel of Gristmill, or numba's own for another function."""
    kind = KernelFile if Path(cache_path).is_relative_to(folder()) else IndexDataCacheFile
    return kind(cache_path, filename_base, source_stamp)  # type: ignore[no-untyped-call]


def _taken(path: str) -> int | None:
    """The lock of a kernel, once no other process has it. None after a while, as its holder may have failed or been
    stopped. None too if this process holds it, or it can't be locked."""
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


def _load_overload(cache: Cache, signature: Any, context: Any) -> Any:
    """See numba, which first loads everything that a kernel may be compiled from. That takes 0.3 s, and compiled code
    needs none of it: `compile` loads it too."""
    if not isinstance(cache._cache_file, KernelFile):
        return _usual_load(cache, signature, context)  # type: ignore[no-untyped-call]
    rtsys.initialize(context)
    return cache._load_overload(signature, context)  # type: ignore[no-untyped-call]


caching.IndexDataCacheFile = _file  # type: ignore[misc,assignment]
_usual_load, Cache.load_overload = Cache.load_overload, _load_overload  # type: ignore[method-assign]
_HELD: dict[str, int] = {}  # the locks of kernels that this process compiles
COMPILING = Compiling()
event.register("numba:compile", COMPILING)  # type: ignore[no-untyped-call]
