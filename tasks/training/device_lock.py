"""One training at a time on a device: two at once on a GPU, or on the cores of a machine, take longer than one after
the other, and may both run out of memory.

A turn is a file lock, which the kernel frees when its holder dies, even by SIGKILL. A concurrency slot of Prefect's
server would stay taken for minutes, or for ever if nobody reports the end. The lock lies in the cache folder, so it
holds between all runs of one user, and between containers that share that folder. The id of the machine's boot is in
its name, as several machines may share a home.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from storage.files import locks
from storage.files.cache import cache_folder
from tasks.children.devices import missing_gpu
from tasks.stage.runtime import ComputeRuntime

BOOT = Path("/proc/sys/kernel/random/boot_id")


@contextmanager
def own_turn(compute: ComputeRuntime, waiting: Callable[[str], None]) -> Iterator[None]:
    """Within the block no other process of this user that takes a turn trains on the same devices. If it has to wait,
    `waiting` is called once with the holder."""
    folder = cache_folder() / "locks"
    boot = BOOT.read_text().strip() if BOOT.exists() else "machine"
    with ExitStack() as held:
        on_cpu = compute.device == "cpu" or missing_gpu() is not None
        for name, shared in [("cpu", False)] if on_cpu else wanted_gpus(os.environ):
            held.enter_context(locks.hold(folder / f"training-{name}-{boot}", waiting, shared=shared))
        yield


def wanted_gpus(environment: Mapping[str, str]) -> list[tuple[str, bool]]:
    """The locks of a training on GPUs, in the order in which everyone takes them, and whether each is shared. The lock
    of all GPUs is, among trainings that CUDA_VISIBLE_DEVICES restricts to some."""
    some = [name.strip() for name in environment.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    return [("gpus", bool(some)), *((f"gpu-{name.replace('/', '-')}", False) for name in sorted(set(some)))]
