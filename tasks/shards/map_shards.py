"""The one seam for work on shards: resume, parallel work, lost workers and progress live only here.

Each shard is processed in its own folder, which is renamed when it is done. After a kill the finished shards are found
again. The half-done one starts over, and so does one whose files have changed, since they may never have reached the
disk. Results come back in the order of the shards, so nothing depends on which worker was faster or where it ran
(law 4).
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from storage.errors import LostWorker
from tasks.shards.broadcast import broadcast
from tasks.shards.choice import executor_for
from tasks.shards.executors import RETRIES, Executor, WorkerLost
from tasks.shards.processes import compiles
from tasks.shards.shard import STOP, Call, ShardResult, clear, count_workers, results_of, shard_folder
from tasks.stage.output import Output

T = TypeVar("T")
SECONDS = 1.0  # between two messages of progress


class LazyShards(Sequence[T]):
    """Shards that are made one by one when needed: all of them together would take too much memory."""

    def __init__(self, make: Callable[[int], T], count: int) -> None:
        self._make, self._count = make, count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, number: Any) -> Any:
        return self._make(number)


def map_shards(
    function: Callable[[T, Path], dict[str, Any]],
    shards: Sequence[T],
    out: Output,
    name: str,
    unit: str = "shards",
    *,
    releases_gil: bool = False,
    accelerators: int = 0,
    isolated: bool = False,
) -> list[ShardResult]:
    """Run `function(shard, folder) -> counts` on every shard, by the executor of `out.runtime.data`.

    `function` writes into `folder` and returns JSON. It must be importable (a module-level function or a `partial` of
    one) and pickle, as must the shards: a worker may be on another host. A call states its needs, not its executor:
    `releases_gil` is for work that releases the interpreter's lock (numba, Arrow) and so can run in threads too,
    `accelerators` is the number of GPUs of this machine, each held by a process that ends with the map, and `isolated`
    is for user code, in processes that run nothing else.

    An error in one shard ends the stage. Finished shards stay for the next run. A shard whose worker was lost is
    retried `RETRIES` times. Raises LostWorker then, and ConfigError for workers that can't do the work.
    """
    folder = out.scratch.absolute() / name
    folder.mkdir(parents=True, exist_ok=True)
    waiting = clear(folder, len(shards))
    progress = _Progress(out, name, unit, len(shards) - len(waiting), len(shards))
    if waiting:
        with executor_for(out.runtime.data, len(waiting), accelerators=accelerators, isolated=isolated) as executor:
            executor.begin(folder, len(waiting), releases_gil)
            with broadcast(function, folder) if executor.by_reference else nullcontext(function) as sent:
                calls = (Call(sent, shards[i], shard_folder(folder, i), releases_gil) for i in waiting)
                _run(executor, calls, progress, folder / STOP)
    found = results_of(folder, len(shards))
    if not (isolated or accelerators):  # those processes have ended, so the system counts them
        count_workers(folder, waiting)
    return found


def collect(results: Sequence[ShardResult], file: str, folder: Path) -> None:
    """Put the file of this name of every shard into `folder`, numbered as the shards. Linked, not copied: a shard's
    result stays where a resume looks for it, and takes no additional space."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, result in enumerate(results):
        made = result.folder / file
        if made.exists():
            (folder / f"{number:05d}{made.suffix}").hardlink_to(made)


def collect_all(results: Sequence[ShardResult], files: Mapping[str, str], folder: Path) -> None:
    """`collect` each of the `files`, into its own folder in `folder`."""
    for file, place in files.items():
        collect(results, file, folder / place)


class _Progress:
    """Reports at most every `SECONDS`, however many workers there are, and at the end."""

    def __init__(self, out: Output, name: str, unit: str, done: int, total: int) -> None:
        self.out, self.name, self._unit, self._done, self._total = out, name, unit, done, total
        self._tell()

    def _tell(self) -> None:
        self._told = time.monotonic()
        note = f"{self.name}, compiling for this machine" if compiles() else self.name
        self.out.progress(self._done, self._total, self._unit, note)

    def wait(self) -> None:
        """No shard was done for a while: report what the map waits for, once it is known."""
        if compiles():
            self._tell()

    def add(self) -> None:
        """Another shard is done."""
        self._done += 1
        if self._done == self._total or time.monotonic() - self._told >= SECONDS:
            self._tell()


def _run(executor: Executor, calls: Iterator[Call], progress: _Progress, stop: Path) -> None:
    """Run the calls, as many at a time as the executor takes. Further calls aren't made yet. Raises the first error of
    a call. If it ends early, long work stops by the file `stop`, and other work is waited for."""
    again, running, losses = deque[Call](), dict[Future[None], Call](), Counter[Path]()
    try:
        while True:
            while len(running) < executor.room() and (call := again.popleft() if again else next(calls, None)):
                running[executor.submit(call)] = call
            if not running:
                break
            lost = 0
            done = wait(running, SECONDS, FIRST_COMPLETED).done
            if not done:
                progress.wait()
            for future in done:
                call = running.pop(future)
                error = future.exception()
                meaning = executor.meaning(error) if error else None
                if isinstance(meaning, WorkerLost):
                    losses[call.folder] += meaning.times
                    _check_losses(losses[call.folder], executor, progress)
                    again.append(replace(call, lost=True))
                    lost += 1
                elif meaning:
                    raise meaning
                else:
                    progress.add()
            if lost:
                progress.out.warn(f"{progress.name}: a worker was lost; its unfinished work ({lost}) starts again")
    finally:
        if running:
            stop.touch()
        executor.abandon(running)


def _check_losses(losses: int, executor: Executor, progress: _Progress) -> None:
    if losses > RETRIES:
        raise LostWorker(
            f"A worker process of {progress.out.stage} was killed ({progress.name}), {losses} times with the same "
            "shard, most often for lack of memory.",
            f"{executor.advice}. The finished shards are kept.",
        )
