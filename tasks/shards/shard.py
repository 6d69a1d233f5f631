"""One shard, wherever it is processed: its draft, its result, and whether a result is sound.

A worker writes into a draft with a unique name and renames it when the shard is done, so a shard may run twice at once:
a cluster repeats the task of a worker that it takes for lost, and the first sound result stays. A draft is never made
in a folder that is gone, so a worker that outlives its run leaves nothing behind.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from uuid import uuid4

import xxhash

from storage.errors import LostWorker
from tasks.stage import machine

RESULT = "result.json"
DRAFT = ".draft-"
STOP = "stop"  # in a map's folder: it has ended, by a signal or an error
LOOK_SECONDS = 0.5
THERE = (errno.ENOTEMPTY, errno.EEXIST)

_ONE_AT_A_TIME = threading.Lock()
T = TypeVar("T")


@dataclass(frozen=True)
class ShardResult:
    """The result of a shard's function: its folder, and the counts that it returned."""

    folder: Path
    counts: dict[str, Any]


@dataclass(frozen=True)
class Call:
    """A shard to process: `function(shard, draft)` leaves its files and counts in `folder`. `lost` says that a worker
    died over it, so that it isn't for the run's own process."""

    function: Callable[[Any, Path], dict[str, Any]]
    shard: Any
    folder: Path
    releases_gil: bool
    lost: bool = False


def work_elsewhere(call: Call) -> None:
    """Process a shard in a process that outlives it, with a note of what that took: the system doesn't tell."""
    before, peak = machine.cpu_seconds(), machine.Peak()
    work(call, lambda: {"worker": _worker(), "cpu_seconds": machine.cpu_seconds() - before, "peak": peak.bytes})


def work(call: Call, note: Callable[[], dict[str, Any]] = dict) -> None:
    """Process a shard. Two threads of one process never run a function that holds the interpreter's lock at once: it
    would gain nothing, and the function needn't be thread-safe."""
    draft = call.folder.with_name(f"{call.folder.name}{DRAFT}{uuid4().hex}")
    draft.mkdir()
    with nullcontext() if call.releases_gil else _ONE_AT_A_TIME:
        counts = call.function(call.shard, draft)
    used = note()
    (draft / RESULT).write_text(json.dumps({"counts": counts, "files": _digests(draft), "used": used}))
    _put(draft, call.folder)


def count_workers(folder: Path, done: Iterable[int]) -> None:
    """Count the resources that other processes used for the shards done now."""
    for number in done:
        used = json.loads((shard_folder(folder, number) / RESULT).read_text())["used"]
        if used and used["worker"] != _worker():
            machine.add_worker(used["cpu_seconds"], used["peak"])


def _worker() -> str:
    return f"{socket.gethostname()}:{os.getpid()}"


def clear(folder: Path, count: int) -> list[int]:
    """The numbers of the shards in a map's folder that are still to be done, after removing drafts of dead runs."""
    for draft in folder.glob(f"*{DRAFT}*"):
        shutil.rmtree(draft, ignore_errors=True)
    (folder / STOP).unlink(missing_ok=True)
    waiting = [number for number in range(count) if not is_done(shard_folder(folder, number))]
    for number in waiting:
        shutil.rmtree(shard_folder(folder, number), ignore_errors=True)
    return waiting


class Stopped(Exception):
    """A shard was given up, as its map has ended."""


def check_going_on(draft: Path) -> None:
    """For work that takes long on a shard: raises Stopped if nobody waits for it. `draft` is the folder that it writes
    into."""
    if (draft.parent / STOP).exists():
        raise Stopped


def while_going_on(rows: Iterable[T], draft: Path) -> Iterator[T]:
    """The rows of a shard that takes long, with a look every `LOOK_SECONDS`. Raises Stopped as `check_going_on`."""
    looked = -LOOK_SECONDS
    for row in rows:
        if time.monotonic() - looked >= LOOK_SECONDS:
            check_going_on(draft)
            looked = time.monotonic()
        yield row


def shard_folder(folder: Path, number: int) -> Path:
    """The folder of a shard's result."""
    return folder / f"{number:05d}"


def is_done(folder: Path) -> bool:
    """Whether a shard was finished and its files haven't changed since."""
    try:
        found = json.loads((folder / RESULT).read_text())
        return isinstance(found, dict) and found.get("files") == _digests(folder)
    except (FileNotFoundError, NotADirectoryError, ValueError):  # or another worker is removing a damaged one
        return False


def results_of(folder: Path, count: int) -> list[ShardResult]:
    """The results in a map's folder, in the order of the shards. Raises LostWorker for a missing one."""
    list(folder.iterdir())  # NFS refreshes a folder when it is opened, and otherwise trusts its cache
    found = []
    for number in range(count):
        place = shard_folder(folder, number)
        try:
            counts = json.loads((place / RESULT).read_text())["counts"]
        except FileNotFoundError as error:
            raise LostWorker(
                f"A worker finished {place}, but it isn't there.",
                "Workers and this machine must see the same files at the same paths: put the store on a shared file "
                "system, and run again. The finished shards are kept.",
            ) from error
        found.append(ShardResult(place, counts))
    return found


def _put(draft: Path, folder: Path) -> None:
    while True:
        try:
            draft.rename(folder)
        except OSError as error:
            if error.errno not in THERE:
                raise
        else:
            return
        if is_done(folder):  # by another worker
            shutil.rmtree(draft, ignore_errors=True)
            return
        shutil.rmtree(folder, ignore_errors=True)


def _digests(folder: Path) -> dict[str, str]:
    """xxh3 of each file except the result, to find damage by a crash. Published files have a SHA-256."""
    files = sorted(Path(place, name) for place, _, names in os.walk(folder) for name in names)
    found = {}
    for path in files:
        if path != folder / RESULT:
            with path.open("rb") as file:
                found[path.relative_to(folder).as_posix()] = hashlib.file_digest(file, xxhash.xxh3_128).hexdigest()
    return found
