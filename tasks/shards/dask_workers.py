"""Shards on workers of Dask: those of a running cluster, or a cluster on this machine that ends with the run.

Dask only has the calls. The work function and the results go through the store's file system, so no worker spills, and
the scheduler never holds data.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection, Iterable, Mapping
from concurrent.futures import CancelledError, Future
from contextlib import ExitStack
from importlib import import_module
from pathlib import Path
from typing import Any

from storage.errors import ConfigError
from tasks.shards.executors import OUTSTANDING, RETRIES, WorkerLost
from tasks.shards.shard import Call, work_elsewhere
from tasks.shards.temporary import temporary_folder
from tasks.shards.worker_checks import Witness, check_workers, witness

PATIENCE = 30  # seconds to reach a scheduler, and to wait for its first worker
LOCAL: dict[str, Any] = {
    "distributed.scheduler.allowed-failures": 0,  # lost calls come back to us, and are resubmitted as for any executor
    "distributed.scheduler.worker-ttl": None,  # a worker may hold the interpreter's lock for longer than it lives
    "distributed.nanny.pre-spawn-environ": {},  # one thread for BLAS would round sums differently from other executors
    "distributed.admin.system-monitor.gil.enabled": False,
}


class DaskWorkers:
    """See the module's docstring. Raises ConfigError if Dask isn't installed or the scheduler doesn't answer."""

    by_reference = True

    def __init__(self, workers: int, address: str | None) -> None:
        try:
            import_module("distributed")
        except ImportError as error:
            raise ConfigError(
                f"runtime.data.executor=dask needs Dask: {error}.", "Install the extra: pip install 'gristmill[dask]'."
            ) from error
        self.address, self._checked, self._room = address, False, OUTSTANDING
        self.advice = "Give the workers more memory, or start fewer on a host"
        with ExitStack() as stack:
            if address is None:
                self.advice = f"Lower runtime.data.workers, now {workers}"
            cluster = address or _cluster(stack, workers)
            try:
                self.client = stack.enter_context(_client(cluster))
                self.client.wait_for_workers(1, timeout=PATIENCE)
            except OSError as error:  # TimeoutError is one
                raise ConfigError(
                    f"No Dask scheduler with a worker answers at {address or 'this machine'} in {PATIENCE} seconds.",
                    "Start both, `dask scheduler` and `dask worker ADDRESS`, or remove runtime.data.address.",
                ) from error
            self._pool = self.client.get_executor(pure=False)
            self._stack = stack.pop_all()

    def begin(self, folder: Path, shards: int, releases_gil: bool) -> None:
        """The first time, check what each worker sees."""
        if not self._checked:
            check_workers(folder, self._ask)
            self._checked = True
        threads: Mapping[str, int] = self.client.nthreads()
        self._room = OUTSTANDING * max(1, sum(threads.values()))

    def room(self) -> int:
        """Calls for each thread of all workers, as they were when the map began."""
        return self._room

    def submit(self, call: Call) -> Future[None]:
        """Run a call on a worker."""
        submitted: Future[None] = self._pool.submit(work_elsewhere, call)
        return submitted

    def meaning(self, error: Any) -> BaseException:
        """Dask raises KilledWorker when it gives a call up. It cancels calls when the scheduler is gone."""
        if isinstance(error, import_module("distributed").KilledWorker):
            return WorkerLost(error.allowed_failures + 1)
        gone = CancelledError, import_module("distributed.comm").CommClosedError
        return WorkerLost(RETRIES + 1) if isinstance(error, gone) else error

    def abandon(self, futures: Collection[Future[None]]) -> None:
        """Cancel them. A running call goes on to its end, which is harmless."""
        for future in futures:
            future.cancel()

    def close(self) -> None:
        """Leave the cluster, and end it if it was started here."""
        self._stack.close()

    def _ask(self, folder: str) -> Iterable[Witness]:
        answers: Mapping[str, Any] = self.client.run(witness, folder, on_error="return")
        for address, answer in answers.items():
            if not isinstance(answer, Witness):
                raise ConfigError(
                    f"The Dask worker at {address} can't run Gristmill: {answer!r}.",
                    "Install the same version there, and start the worker again.",
                )
            yield answer


def _client(cluster: Any) -> Any:
    """A client of a cluster or an address. Raises OSError, also if something other than Dask answers: its client would
    then wait for ever, whatever its timeout, so a thread opens it that nobody needs to wait for."""
    opened: Future[Any] = Future()

    def open_it() -> None:
        try:
            options = {"timeout": PATIENCE, "set_as_default": False}
            opened.set_result(import_module("distributed").Client(cluster, **options))
        except OSError as error:
            opened.set_exception(error)

    threading.Thread(target=open_it, daemon=True).start()
    return opened.result(PATIENCE + 5)


def _cluster(stack: ExitStack, workers: int) -> Any:
    """Start a cluster on this machine, which the stack ends."""
    folder = stack.enter_context(temporary_folder())
    with import_module("dask.config").set(LOCAL):
        cluster = import_module("distributed").LocalCluster(
            n_workers=workers,
            threads_per_worker=1,
            processes=True,
            host="127.0.0.1",
            # Any port, and no dashboard: on the usual port it would meet other clusters
            scheduler_kwargs={"dashboard": False, "dashboard_address": "127.0.0.1:0"},
            silence_logs=logging.WARNING,
            security=True,  # its own keys: otherwise any user of this machine could run anything on our workers
            memory_limit=0,  # nothing to spill, and a worker that needs much must not be stopped half-way
            local_directory=str(folder),
            preload=["tasks.shards.dask_preload"],
        )
    return stack.enter_context(cluster)
