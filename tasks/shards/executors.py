"""What an executor is: one small protocol, which threads, processes, Dask and Ray fulfil alike."""

from __future__ import annotations

from collections.abc import Collection
from concurrent.futures import Future
from pathlib import Path
from typing import Protocol

from tasks.shards.shard import Call

RETRIES = 3  # of a shard whose worker was lost
OUTSTANDING = 2  # calls for each worker: one that runs and one that waits for it


class WorkerLost(Exception):
    """A worker died while it had a shard; `times`, if the cluster itself tried again. Control flow, not an error."""

    def __init__(self, times: int = 1) -> None:
        super().__init__(times)
        self.times = times


class Executor(Protocol):
    """Workers. `by_reference` says that the work function must be broadcast, `advice` what to do when one is lost."""

    by_reference: bool
    advice: str

    def begin(self, folder: Path, shards: int) -> None:
        """Before the calls of a map with this folder. Raises ConfigError for workers that can't work there."""

    def room(self) -> int:
        """How many calls it takes now, those that run included."""

    def submit(self, call: Call) -> Future[None]:
        """Have a call run."""

    def meaning(self, error: BaseException) -> BaseException:
        """What the error of a call says: WorkerLost, or what the function raised."""

    def abandon(self, futures: Collection[Future[None]]) -> None:
        """Let go of calls that are no longer wanted."""

    def close(self) -> None:
        """End the workers, if they were started here."""
