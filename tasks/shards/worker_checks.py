"""Checks that the workers of a cluster see the files of this run and have its code and its libraries.

Each worker is checked once, before the first shard: it reads a file that this process wrote and writes one that this
process reads. A worker that joins later gets the same checks at its first shard (`broadcast.py`), except the libraries.
"""

from __future__ import annotations

import os
import shutil
import socket
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from uuid import uuid4

from storage.errors import ConfigError
from tasks.shards.broadcast import code_digest, other_code, unseen

LIBRARIES = ("numpy", "numba", "pyarrow", "tokenizers")  # those that shape the bytes of shards
TOKEN = "token"


@dataclass(frozen=True)
class Witness:
    """A worker's report: `saw` is what it read, `left` what it wrote, `trouble` why it couldn't."""

    host: str
    code: str
    libraries: tuple[str, ...]
    saw: str
    left: str
    trouble: str


def witness(folder: str) -> Witness:
    """On a worker: read the token in `folder`, and leave a file."""
    host = socket.gethostname()
    saw = left = trouble = ""
    try:
        saw = (Path(folder) / TOKEN).read_text()
        left = f"{host}-{os.getpid()}-{uuid4().hex}"
        (Path(folder) / left).write_text(saw)
    except OSError as error:
        trouble = error.strerror or str(error)
    return Witness(host, code_digest(), libraries(), saw, left, trouble)


def check_workers(folder: Path, ask: Callable[[str], Iterable[Witness]]) -> None:
    """`ask` has every worker run `witness` on the folder that it gets. Raises ConfigError for a worker that sees other
    files, or has other code or libraries."""
    token, place = uuid4().hex, folder / f"probe-{uuid4().hex}"
    place.mkdir()
    try:
        (place / TOKEN).write_text(token)
        for found in ask(str(place)):
            check_alike(found.host, (found.code, found.libraries), (code_digest(), libraries()))
            if found.saw != token:
                raise unseen(found.host, folder, found.trouble or "a different file is there")
            list(place.iterdir())  # NFS refreshes a folder when it is opened
            if not (place / found.left).is_file() or (place / found.left).read_text() != token:
                raise unseen(found.host, folder, "the files that it writes don't arrive here")
    finally:
        shutil.rmtree(place, ignore_errors=True)


def check_alike(host: str, has: tuple[str, Sequence[str]], of_run: tuple[str, Sequence[str]]) -> None:
    """Raises ConfigError if a worker's code or libraries differ from the run's, so that it may make other bytes."""
    (code, theirs), (own_code, ours) = has, of_run
    if set(theirs) != set(ours):
        theirs, ours = sorted(set(theirs) - set(ours)), sorted(set(ours) - set(theirs))
        raise ConfigError(
            f"The worker on {host} has {', '.join(theirs)}, but the run has {', '.join(ours)}.",
            "Install the same versions on all hosts, those of constraints.txt: others may make other bytes.",
        )
    if code != own_code:
        raise other_code(host)


def libraries() -> tuple[str, ...]:
    """The versions of Python and of the libraries that shape bytes, on this machine."""
    python = f"Python {sys.version_info.major}.{sys.version_info.minor}"
    return (python, *(f"{name} {version(name)}" for name in LIBRARIES))
