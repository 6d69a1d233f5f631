"""The one seam for work on shards: resume, parallel work and progress live here and nowhere else.

Each shard is worked through in a folder of its own, renamed when it is done: after a kill the finished shards are
found again, the half-done one starts anew, and so does one whose files are not as it left them, since they may never
have reached the disk. Results come back in the order of the shards, so nothing depends on which
worker was faster (law 4).
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import xxhash

from storage.errors import LostWorker
from tasks.shards.processes import processes_of
from tasks.shards.threads import threads_of
from tasks.stage.output import Output

T = TypeVar("T")
R = TypeVar("R")
RESULT = "result.json"


@dataclass(frozen=True)
class ShardResult:
    """What a shard's function left: its folder, and the counts that it returned."""

    folder: Path
    counts: dict[str, Any]


def map_shards(
    function: Callable[[T, Path], dict[str, Any]],
    shards: Sequence[T],
    out: Output,
    name: str,
    unit: str = "shards",
    *,
    threads: bool = False,
    processes: int | None = None,
) -> list[ShardResult]:
    """Run `function(shard, folder) -> counts` on every shard, in `out.runtime.data.workers` processes, or in so many
    `processes`, were it one: what holds a GPU then lets go of it at the end.

    `function` writes into `folder` and returns JSON; it must be importable (a module-level function or a `partial`
    of one), since workers are spawned. `threads` is for work that leaves the interpreter's lock to others (numba,
    Arrow): it saves a second of start-up a process. An error in one shard ends the stage; finished shards stay for
    the next run. Raises LostWorker when a worker process is killed.
    """
    folder = out.scratch / name
    folder.mkdir(parents=True, exist_ok=True)
    waiting = [i for i in range(len(shards)) if not _is_done(folder / f"{i:05d}")]
    done = len(shards) - len(waiting)
    out.progress(done, len(shards), unit, name)
    workers = min(processes or out.runtime.data.workers, len(waiting))
    if not waiting or (workers == 1 and processes is None):
        for i in waiting:
            _work(function, shards[i], folder / f"{i:05d}")
            done += 1
            out.progress(done, len(shards), unit, name)
    else:
        with threads_of(workers) if threads else processes_of(workers) as pool:
            try:
                futures = [pool.submit(_work, function, shards[i], folder / f"{i:05d}") for i in waiting]
                for future in as_completed(futures):
                    future.result()
                    done += 1
                    out.progress(done, len(shards), unit, name)
            except BrokenProcessPool:
                raise LostWorker(
                    f"A worker process of {out.stage} was killed ({name}), most often for lack of memory.",
                    f"Lower runtime.data.workers, now {out.runtime.data.workers}; the finished shards are kept.",
                ) from None
            finally:
                pool.shutdown(wait=True, cancel_futures=True)
    return [_result(folder / f"{i:05d}") for i in range(len(shards))]


def in_threads(function: Callable[[T], R], items: Sequence[T], out: Output) -> Iterator[R]:
    """`function` of each item, in order, in `out.runtime.data.workers` threads: for work in memory that leaves the
    interpreter's lock to others, and need not be resumed."""
    workers = min(out.runtime.data.workers, len(items))
    if workers <= 1:
        yield from map(function, items)
        return
    with threads_of(workers) as pool:
        yield from pool.map(function, items)


def collect(results: Sequence[ShardResult], file: str, folder: Path) -> None:
    """Put the file of this name of every shard into `folder`, numbered as the shards. Linked, not copied: a shard's
    result stays where a resume looks for it, and takes no room twice."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, result in enumerate(results):
        made = result.folder / file
        if made.exists():
            (folder / f"{number:05d}{made.suffix}").hardlink_to(made)


def _work(function: Callable[[T, Path], dict[str, Any]], shard: T, folder: Path) -> None:
    draft = folder.with_name(f"{folder.name}.draft")
    shutil.rmtree(draft, ignore_errors=True)
    shutil.rmtree(folder, ignore_errors=True)
    draft.mkdir(parents=True)
    counts = function(shard, draft)
    (draft / RESULT).write_text(json.dumps({"counts": counts, "files": _digests(draft)}))
    draft.rename(folder)


def _is_done(folder: Path) -> bool:
    """Whether an earlier run has finished a shard, and its files are as they were then."""
    try:
        found = json.loads((folder / RESULT).read_text())
    except (FileNotFoundError, ValueError):
        return False
    return isinstance(found, dict) and found.get("files") == _digests(folder)


def _digests(folder: Path) -> dict[str, str]:
    """xxh3 of each file but the result: against what a crash damages; SHA-256 comes with what is published."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file() and path != folder / RESULT]
    found = {}
    for path in files:
        with path.open("rb") as file:
            found[path.relative_to(folder).as_posix()] = hashlib.file_digest(file, xxhash.xxh3_128).hexdigest()
    return found


def _result(folder: Path) -> ShardResult:
    return ShardResult(folder, json.loads((folder / RESULT).read_text())["counts"])
