"""Shards on workers of Ray: those of a running cluster, or a cluster on this machine that ends with the run.

Ray only has the calls: the work function and the results go through the store's file system, so the object store has
its smallest size. Ray's own retries are off, since lost calls are resubmitted as for any executor.
"""

from __future__ import annotations

import functools
import logging
import os
import secrets
import signal
import socket
import threading
from collections.abc import Collection, Iterable, Iterator
from concurrent.futures import CancelledError, Future
from contextlib import ExitStack, contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from storage.errors import ConfigError
from tasks.children.reap_orphans import descendants, ended_with_us
from tasks.shards.executors import OUTSTANDING, RETRIES, WorkerLost
from tasks.shards.shard import Call, work_elsewhere
from tasks.shards.temporary import temporary_folder
from tasks.shards.worker_checks import Witness, check_workers, witness
from tasks.stage import machine

REACHED_WITHIN = 10  # seconds to connect to a port
PATIENCE = 120  # seconds for all hosts to answer
OBJECT_STORE = 80_000_000  # bytes; Ray refuses less than 75 MB


class RayWorkers:
    """See the module's docstring. Raises ConfigError if Ray isn't installed or no cluster answers."""

    by_reference = True

    def __init__(self, workers: int, address: str | None) -> None:
        self._checked, self._room, self._refs = False, OUTSTANDING, dict[Future[None], Any]()
        self.advice = "Give the workers more memory, or start fewer on a host"
        with ExitStack() as stack:
            stack.enter_context(_kept_signals())
            try:
                ray = _ray()
            except ImportError as error:
                raise ConfigError(
                    f"runtime.data.executor=ray needs Ray: {error}.", "Install the extra: pip install 'gristmill[ray]'."
                ) from error
            settings: dict[str, Any] = {"address": address}
            if address is None:
                self.advice = f"Lower runtime.data.workers, now {workers}"
                settings = _local(str(stack.enter_context(temporary_folder())), workers)
            if not ray.is_initialized():  # a notebook that calls us may have, and then ends it too
                before = descendants(os.getpid())
                _connect(settings)
                stack.enter_context(ended_with_us(descendants(os.getpid()) - before))
                stack.callback(ray.shutdown)
            self._remote = ray.remote(num_cpus=1, max_retries=0)(work_elsewhere)
            self._stack = stack.pop_all()

    def begin(self, folder: Path, shards: int, releases_gil: bool) -> None:
        """The first time, check what each host sees."""
        if not self._checked:
            check_workers(folder, _ask)
            self._checked = True
        self._room = OUTSTANDING * max(1, int(_ray().cluster_resources().get("CPU", 1)))

    def room(self) -> int:
        """Calls for each CPU of the cluster, as it was when the map began."""
        return self._room

    def submit(self, call: Call) -> Future[None]:
        """Run a call on a worker."""
        ref = self._remote.remote(call)
        future: Future[None] = ref.future()
        self._refs[future] = ref
        future.add_done_callback(lambda done: self._refs.pop(done, None))
        return future

    def meaning(self, error: BaseException) -> BaseException:
        """Ray's error holds the one that the function raised. Other errors are of workers, hosts and the cluster."""
        exceptions = _ray().exceptions
        if isinstance(error, exceptions.RayTaskError):
            cause: BaseException = error.cause
            return cause
        worker = exceptions.WorkerCrashedError, exceptions.OutOfMemoryError, exceptions.NodeDiedError
        if isinstance(error, worker):
            return WorkerLost()
        return WorkerLost(RETRIES + 1) if isinstance(error, exceptions.RayError | CancelledError) else error

    def abandon(self, futures: Collection[Future[None]]) -> None:
        """Cancel them. A running call is interrupted, and the next run sweeps its draft."""
        for ref in [self._refs[future] for future in futures if future in self._refs]:
            _ray().cancel(ref)

    def close(self) -> None:
        """Leave the cluster, and end it if it was started here."""
        self._stack.close()


def _ray() -> Any:
    return import_module("ray")


def _local(folder: str, workers: int) -> dict[str, Any]:
    """The settings of a cluster on this machine that nobody else reaches."""
    return {
        "address": "local",
        "num_cpus": workers,
        "num_gpus": 0,
        "include_dashboard": False,
        "object_store_memory": OBJECT_STORE,
        "_temp_dir": folder,
        "_node_ip_address": "127.0.0.1",
    }


def _connect(settings: dict[str, Any]) -> None:
    _check_answers(settings["address"])
    # BLAS gets the same threads as elsewhere: with one, Ray's default, it would round sums differently
    threads = os.environ.get("OMP_NUM_THREADS", str(machine.cores()))
    variables = {"RAY_USAGE_STATS_ENABLED": "0", "OMP_NUM_THREADS": threads}
    local = settings["address"] == "local"
    if local:
        variables["RAY_AUTH_TOKEN"] = _token()
        variables["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
    # If clusters are disabled, as by default on some systems, Ray listens only on 127.0.0.1. Otherwise it takes an
    # address that other hosts reach, whatever it is given. It has read the variable when it was imported
    constants: Any = import_module("ray._private.ray_constants")
    constants.ENABLE_RAY_CLUSTER = not local
    logging.getLogger("ray").setLevel(logging.ERROR)
    try:
        with _environment(variables):
            _ray().init(log_to_driver=False, configure_logging=False, **settings)
    except (OSError, ValueError, RuntimeError, ImportError) as error:  # Ray's errors for no address, no node, no client
        raise _no_answer(settings["address"], error) from error


def _check_answers(address: str) -> None:
    """Raises ConfigError for a host and port where nothing listens: Ray would retry for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if port.isdigit():
        try:
            socket.create_connection((host.strip("[]"), int(port)), REACHED_WITHIN).close()
        except OSError as error:
            raise _no_answer(address, error) from error


def _no_answer(address: str, why: BaseException) -> ConfigError:
    return ConfigError(
        f"No Ray cluster answers at {address}: {why}.", "Start one, `ray start --head`, or remove runtime.data.address."
    )


@functools.cache
def _token() -> str:
    """The secret that admits a process to our cluster, and keeps other users of this machine out. Ray keeps the first
    one that it sees. Without one, it would leave one in the home folder."""
    return secrets.token_hex(32)


def _ask(folder: str) -> Iterable[Witness]:
    """A witness of each host, whose workers all see the same."""
    ray = _ray()
    affinity = import_module("ray.util.scheduling_strategies").NodeAffinitySchedulingStrategy
    nodes = [node for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU")]
    asked = ray.remote(num_cpus=1, max_retries=0)(witness)
    refs = [asked.options(scheduling_strategy=affinity(node["NodeID"], soft=False)).remote(folder) for node in nodes]
    for node, ref in zip(nodes, refs, strict=True):
        try:
            yield ray.get(ref, timeout=PATIENCE)
        except ray.exceptions.RayError as error:
            raise ConfigError(
                f"The Ray worker on {node['NodeManagerHostname']} can't run Gristmill: {error}.",
                "Install the same version there, and start Ray again.",
            ) from error


@contextmanager
def _kept_signals() -> Iterator[None]:
    """Take back the handler of SIGTERM, which Ray sets as its own."""
    mine = threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if mine:
            signal.signal(signal.SIGTERM, before)


@contextmanager
def _environment(values: dict[str, str]) -> Iterator[None]:
    """Set these variables for the block. Variables that Ray sets within it are removed too."""
    before = dict(os.environ)
    os.environ.update(values)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
