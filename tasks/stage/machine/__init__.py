"""The cores and the memory that this process may use, and what it has used: one answer for all, from `plan` to dedup.

A container, a Slurm job or `taskset` may leave a process less than the machine has. The smallest of three bounds
counts: the hardware, the CPU affinity, and the limits of the process's control groups of version 1 and 2, including
those of the groups above (cgroups(7)).
"""

from __future__ import annotations

import ctypes
import math
import os
import resource
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar
from weakref import WeakSet

KERNELS = "tasks.text.kernel_cache"
PROC = Path("/proc")
CGROUPS = Path("/sys/fs/cgroup")


def cores(proc: Path = PROC, cgroups: Path = CGROUPS) -> int:
    """CPU cores that this process can keep busy, at least 1; a quota of 1.5 cores counts as 2."""
    quotas = [
        *(_quota(group / "cpu.max") for group in _groups("", cgroups, proc)),
        *(_quota_v1(group) for group in _groups("cpu", cgroups / "cpu", proc)),
    ]
    return max(1, math.ceil(min([len(os.sched_getaffinity(0)), *quotas])))


def memory(proc: Path = PROC, cgroups: Path = CGROUPS) -> int:
    """Bytes of memory that this process may use."""
    installed = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limits = [
        *(_number(group / "memory.max") for group in _groups("", cgroups, proc)),
        *(_number(group / "memory.limit_in_bytes") for group in _groups("memory", cgroups / "memory", proc)),
    ]
    return int(min([installed, *limits]))


@dataclass
class _Workers:
    """The use that workers report for this process. The system doesn't count workers that still run."""

    seconds: float = 0.0


_WORKERS = _Workers()
_LOCK = threading.Lock()


class Peak:
    """The peak memory from now on of this process, a child that ends or a worker, whichever is largest. Several may be
    open at once, nested or side by side."""

    _open: ClassVar[WeakSet[Peak]] = WeakSet()

    def __init__(self) -> None:
        self._highest = 0
        self._children = _children()
        Peak.settle()
        Peak._open.add(self)

    @property
    def bytes(self) -> int:
        """Bytes, so far."""
        Peak.settle()
        now = _children()  # the largest child that ever ended, perhaps before this peak began
        return max(self._highest, now if now > self._children else 0)

    @classmethod
    def settle(cls, worker: int = 0) -> None:
        """Report to all open peaks what this process, or a worker, reached, and reset the count. If the system refuses
        that (proc(5), clear_refs), a peak is that of the process's whole life."""
        with _LOCK:
            reached = max(worker, _high_water())
            for peak in cls._open:
                peak._highest = max(peak._highest, reached)
            with suppress(OSError):
                (PROC / "self" / "clear_refs").write_text("5")


def give_back() -> None:
    """Return freed memory to the system. The heap and Arrow's pool keep what the largest stage so far needed, which
    would count as memory of all later stages."""
    arrow = sys.modules.get("pyarrow")
    if arrow is not None:
        arrow.default_memory_pool().release_unused()
    with suppress(AttributeError):  # only glibc has it
        ctypes.CDLL(None).malloc_trim(0)


def _high_water() -> int:
    for line in _text(PROC / "self" / "status").splitlines():
        if line.startswith("VmHWM:"):
            return 1024 * int(line.split()[1])
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def _children() -> int:
    return 1024 * resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss


def add_worker(seconds: float, peak: int) -> None:
    """Count the CPU seconds and the peak memory of a worker that outlives its work, here or on another host,
    or of another process that the system does not count as a child of this one."""
    with _LOCK:
        _WORKERS.seconds += seconds
    Peak.settle(peak)


def cpu_seconds() -> float:
    """CPU seconds so far of this process, of its children that have ended, and of its workers."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used) + _WORKERS.seconds


def compiling() -> Any:
    """numba's record of compiling, with `depth` and `seconds`. None if no kernels are loaded, or another thread is
    still loading them, which takes a second."""
    return getattr(sys.modules.get(KERNELS), "COMPILING", None)


def compiled_seconds() -> float:
    """Seconds that this process has spent compiling, as the first run on a machine does."""
    known = compiling()
    return float(known.seconds()) if known is not None else 0.0


def memory_groups(proc: Path = PROC, cgroups: Path = CGROUPS) -> Iterator[Path]:
    """The folders of the memory controller that this process is in, the innermost first, version 2 before 1."""
    yield from _groups("", cgroups, proc)
    yield from _groups("memory", cgroups / "memory", proc)


def _groups(controller: str, top: Path, proc: Path) -> Iterator[Path]:
    """The folder of this process's group of a controller ("" for version 2) and those above it, up to `top`."""
    for line in _text(proc / "self" / "cgroup").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controller in controllers.split(","):
            group = Path(path.lstrip("/"))
            # In a container without a namespace of its own the path is the host's, and only the top is there
            yield from (top / folder for folder in [group, *group.parents] if (top / folder).is_dir())


def _quota(path: Path) -> float:
    """Cores by version 2's `cpu.max`: "QUOTA PERIOD" in microseconds, or "max PERIOD"."""
    quota, _, period = _text(path).partition(" ")
    return int(quota) / int(period) if quota.isdigit() and period.strip().isdigit() else math.inf


def _quota_v1(group: Path) -> float:
    quota, period = _number(group / "cpu.cfs_quota_us"), _number(group / "cpu.cfs_period_us")
    return quota / period if 0 < quota < math.inf and 0 < period < math.inf else math.inf


def _number(path: Path) -> float:
    """The number in a file. Infinite for "max" and for a missing file."""
    text = _text(path).strip()
    return int(text) if text.lstrip("-").isdigit() else math.inf


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:  # missing or unreadable
        return ""
