"""An executor: one small protocol that threads, processes, Dask and Ray implement."""

from __future__ import annotations

from collections.abc import Collection
from concurrent.futures import Future
from pathlib import Path
from typing import Protocol

from tasks.shards.shard import Call

RETRIES = 3  # of a shard whose worker was lost
OUTSTANDING = 2  # calls for each worker: one running and one waiting


class WorkerLost(Exception):
    """A worker died while it had a shard, `times` if the cluster itself tried again. Control flow, not an error."""

    def __init__(self, times: int = 1) -> None:
        super().__init__(times)
        self.times = times


class Executor(Protocol):
    """Workers. `by_reference`: the work function must be broadcast. `advice`: what to do when a worker is lost."""

    by_reference: bool
    advice: str

    def begin(self, folder: Path, shards: int, releases_gil: bool) -> None:
        """Prepare for the calls of a map with this folder. Raises ConfigError for workers that can't work there."""

    def room(self) -> int:
        """The number of calls that it takes now, running ones included."""

    def submit(self, call: Call) -> Future[None]:
        """Start a call."""

    def meaning(self, error: BaseException) -> BaseException:
        """The meaning of a call's error: WorkerLost, or the error that the function raised."""

    def abandon(self, futures: Collection[Future[None]]) -> None:
        """Give up calls that are no longer needed."""

    def close(self) -> None:
        """End the workers, if they were started here."""
