"""One training at a time on a device: two on one GPU, or on the cores of one machine, take longer than one after the
other, and may both run out of memory.

A turn is a lock of the kernel, which frees it when its holder is gone, by SIGKILL too: a slot that Prefect's server
counts stays taken for minutes, and for ever where nobody is left to tell it. It lies in the cache folder, so it holds
between the runs of one user, and between containers that share that folder; the name of the machine's boot is in its
name, as many machines may share a home.
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
    """Within the block no other process of this user that asks for a turn trains on the same devices; `waiting` is told
    once who does, where one has to wait."""
    folder = cache_folder() / "locks"
    boot = BOOT.read_text().strip() if BOOT.exists() else "machine"
    with ExitStack() as held:
        on_cpu = compute.device == "cpu" or missing_gpu() is not None
        for name, shared in [("cpu", False)] if on_cpu else wanted_gpus(os.environ):
            held.enter_context(locks.hold(folder / f"training-{name}-{boot}", waiting, shared=shared))
        yield


def wanted_gpus(environment: Mapping[str, str]) -> list[tuple[str, bool]]:
    """The locks of a training on GPUs, in the order in which all take them, and whether each is shared: that of all
    GPUs is, by those that CUDA_VISIBLE_DEVICES restricts to some."""
    some = [name.strip() for name in environment.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    return [("gpus", bool(some)), *((f"gpu-{name.replace('/', '-')}", False) for name in sorted(set(some)))]
