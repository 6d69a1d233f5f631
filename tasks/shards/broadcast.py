"""The work function of a map, sent to workers once and by reference.

It is often a `partial` of megabytes: tables, an index, the rows to remove. It is pickled once into the map's folder,
and a call carries the path and the digest. A worker process loads it once and keeps the last few. It unpickles only
bytes that match the digest, and refuses to run with other code, which could make other bytes.
"""

from __future__ import annotations

import functools
import hashlib
import os
import pickle
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from storage.errors import ConfigError

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("storage", "models", "tasks")  # the code that a worker runs
KEPT = 2  # functions in a worker's memory

Work = Callable[[Any, Path], dict[str, Any]]

_SENT: dict[str, Work] = {}  # sent by this process, which needn't read them


@dataclass(frozen=True)
class Broadcast:
    """A work function in a file, to be called as the function itself."""

    path: Path
    digest: str
    code: str

    def __call__(self, shard: Any, folder: Path) -> dict[str, Any]:
        """Call the function, loading it if needed. Raises ConfigError if it can't be read or the code differs."""
        return (_SENT.get(self.digest) or _load(self))(shard, folder)


@contextmanager
def broadcast(function: Work, folder: Path) -> Iterator[Broadcast]:
    """Within the block the function lies in `folder`, which workers see."""
    content = pickle.dumps(function, pickle.HIGHEST_PROTOCOL)
    digest = hashlib.sha256(content).hexdigest()
    path = folder / f"function-{digest[:16]}.pickle"
    draft = path.with_suffix(f".{os.getpid()}")
    draft.write_bytes(content)
    draft.replace(path)
    del content
    _SENT[digest] = function
    try:
        yield Broadcast(path, digest, code_digest())
    finally:
        _SENT.pop(digest, None)
        path.unlink(missing_ok=True)


@functools.cache
def code_digest() -> str:
    """SHA-256 over the source of the packages that a worker runs, as on this machine."""
    digest = hashlib.sha256()
    for path in sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py")):
        digest.update(f"{path.relative_to(ROOT)}\n".encode() + path.read_bytes())
    return digest.hexdigest()


@functools.lru_cache(KEPT)
def _load(sent: Broadcast) -> Work:
    if sent.code != code_digest():
        raise other_code(socket.gethostname())
    try:
        content = sent.path.read_bytes()
    except OSError as error:
        raise unseen(socket.gethostname(), sent.path.parent, error.strerror or str(error)) from error
    if hashlib.sha256(content).hexdigest() != sent.digest:
        raise unseen(socket.gethostname(), sent.path.parent, "different bytes there")
    function: Work = pickle.loads(content)
    return function


def other_code(host: str) -> ConfigError:
    """The error for a worker that could make other bytes."""
    return ConfigError(
        f"The worker on {host} has different code of Gristmill.",
        "Install the same version on all hosts, from the same commit, and start the workers again.",
    )


def unseen(host: str, folder: Path, why: str) -> ConfigError:
    """The error for a worker that doesn't see the folder of the run."""
    return ConfigError(
        f"The worker on {host} doesn't see the files of this run in {folder}: {why}.",
        "Put the store (for a bucket, its cache) on a file system that all hosts mount at the same path.",
    )
