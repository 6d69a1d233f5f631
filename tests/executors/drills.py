"""A run to token shards by an executor, disturbed or not, and what it leaves."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from subprocess import Popen

from tests.pipeline.runs import digests, finish, start

SHARDS = 200
CORPUS = ("download.sources=[{kind: embedded, limit: null}]", "download.shard_documents=118")
MAP = "language"  # of several seconds, each shard of its own length
LIMIT = 600  # seconds


@dataclass(frozen=True)
class Drilled:
    """How long a run took, its digests, and what is to be said of it."""

    seconds: float
    digests: dict[str, str]
    said: str = ""


def run(store: Path, executor: str, workers: int, then: Callable[[Popen[str], Path], str] | None = None) -> Drilled:
    """A run to its end. `then` is done to it while it is in the middle of a map; a run that it ends is run again."""
    began = time.monotonic()
    sets = (*CORPUS, f"runtime.data.executor={executor}", f"runtime.data.workers={workers}")
    process, said = start(store, "--to=tokenize", sets=sets), ""
    if then is not None:
        said = then(process, in_the_middle(store, process))
        if process.poll() is not None:
            process.communicate()
            process = start(store, "--to=tokenize", sets=sets)
    finish(process)
    return Drilled(time.monotonic() - began, digests(store), said)


def in_the_middle(store: Path, process: Popen[str]) -> Path:
    """The folder of the map, as soon as a quarter of its shards are done."""
    deadline = time.monotonic() + LIMIT
    while time.monotonic() < deadline and process.poll() is None:
        for folder in (store / "work").glob(f"{MAP}*/scratch/measure"):
            if SHARDS // 4 <= len(done(folder)) < SHARDS * 3 // 4:
                return folder
        time.sleep(0.01)
    raise AssertionError(f"{MAP} was never in the middle; the run ended with {process.poll()}")


def done(folder: Path) -> list[Path]:
    """The results of the shards that are finished."""
    return [path for path in folder.glob("*/result.json") if path.parent.name.isdigit()]


def kill_worker(process: Popen[str], folder: Path) -> str:
    """kill -9 of the worker that finished a shard last."""
    newest = max(done(folder), key=lambda path: path.stat().st_mtime)
    pid = int(json.loads(newest.read_text())["used"]["worker"].rpartition(":")[2])
    assert pid != process.pid
    os.kill(pid, signal.SIGKILL)
    return f"killed after {len(done(folder))} shards"


def kill_driver(process: Popen[str], folder: Path) -> str:
    """kill -9 of the run. Says how many shards were done then."""
    process.kill()
    process.wait()
    return f"killed after {len(done(folder))} shards"
