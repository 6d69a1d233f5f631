"""Chooses the executor of a map, by the needs of its calls and by the profile. A call never names one.

Work that holds a GPU and user code run in their own processes on this machine, which end with the map. Everything else
goes to the executor of the profile, whose workers are started once a run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager

from tasks.shards.dask_workers import DaskWorkers
from tasks.shards.executors import Executor
from tasks.shards.processes import PerhapsProcesses, Processes
from tasks.shards.ray_workers import RayWorkers
from tasks.shards.threads import Here, Threads
from tasks.stage.runtime import DataRuntime
from tasks.stage.session import resources


@contextmanager
def executor_for(data: DataRuntime, count: int, *, accelerators: int, isolated: bool) -> Iterator[Executor]:
    """The executor for a map of `count` shards with these needs; see `map_shards`."""
    if accelerators or isolated:
        with closing(Processes(min(accelerators or data.workers, count))) as processes:
            yield processes
        return
    kind: str = data.executor
    if kind == "auto":
        kind = "here" if min(data.workers, count) == 1 else "perhaps processes"
    with resources() as kept:
        yield kept.get(f"{kind} {data.workers} {data.address}", lambda: _open(kind, data))


def _open(kind: str, data: DataRuntime) -> AbstractContextManager[Executor]:
    opened: dict[str, Callable[[], Executor]] = {
        "here": Here,
        "thread": lambda: Threads(data.workers),
        "process": lambda: Processes(data.workers),
        "perhaps processes": lambda: PerhapsProcesses(data.workers),
        "dask": lambda: DaskWorkers(data.workers, data.address),
        "ray": lambda: RayWorkers(data.workers, data.address),
    }
    return closing(opened[kind]())
