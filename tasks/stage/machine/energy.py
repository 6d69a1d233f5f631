"""The energy that this host used while a stage worked, where its hardware counts that.

Processors count by Intel's RAPL, which AMD's have too (Linux: Documentation/power/powercap), packages and memory apart.
Only root may read it on most systems. NVIDIA's GPUs count since Volta (NVML, nvmlDeviceGetTotalEnergyConsumption). The
counters are the host's: they count other work on it too. Nothing is estimated where there is no counter.
"""

from __future__ import annotations

import ctypes
import functools
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

POWERCAP = Path("/sys/class/powercap")
NVML = "libnvidia-ml.so.1"
TICK_SECONDS = 60.0  # a package's counter comes round after some minutes at the soonest
KINDS = {"package": "cpu", "dram": "memory"}  # RAPL's names of domains begin with these


class Counter(NamedTuple):
    """A counter of one device. `read` gives microjoules, or None if it fails; at `wraps` it begins again at 0."""

    kind: str
    read: Callable[[], int | None]
    wraps: int = 0


class Energy:
    """The energy that this host has used from now on."""

    def __init__(self, powercap: Path = POWERCAP, nvml: str = NVML) -> None:
        self._counters = [*_domains(powercap), *_gpus(nvml)]
        self._last = [counter.read() for counter in self._counters]
        self._used = [0] * len(self._counters)
        self._lock = threading.Lock()
        if any(counter.wraps for counter in self._counters):
            threading.Thread(target=_tick, args=(weakref.ref(self),), daemon=True).start()

    def settle(self) -> None:
        """Read the counters. One that failed once is left out for good."""
        with self._lock:
            for number, counter in enumerate(self._counters):
                last, now = self._last[number], counter.read()
                self._last[number] = None if last is None else now
                if last is not None and now is not None:
                    self._used[number] += now - last + (counter.wraps if now < last else 0)

    @property
    def joules(self) -> dict[str, float]:
        """Joules so far, by kind of device: cpu, memory, gpu. Empty without counters."""
        self.settle()
        used: dict[str, float] = {}
        for counter, last, microjoules in zip(self._counters, self._last, self._used, strict=True):
            if last is not None:
                used[counter.kind] = round(used.get(counter.kind, 0.0) + microjoules / 1e6, 3)
        return used


def _tick(watched: weakref.ref[Energy]) -> None:
    while (energy := watched()) is not None:
        energy.settle()
        del energy
        time.sleep(TICK_SECONDS)


def _domains(powercap: Path) -> Iterator[Counter]:
    """RAPL's packages, and their memory."""
    for folder in sorted(powercap.glob("intel-rapl:*")):
        with suppress(OSError, ValueError):
            name = (folder / "name").read_text().strip()
            kind = next((kind for start, kind in KINDS.items() if name.startswith(start)), None)
            if kind is not None:
                wraps = int((folder / "max_energy_range_uj").read_text())
                yield Counter(kind, functools.partial(_microjoules, folder / "energy_uj"), wraps)


def _microjoules(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


def _gpus(nvml: str) -> Iterator[Counter]:
    """The GPUs that this process's container shows it."""
    try:
        library = ctypes.CDLL(nvml)
        if library.nvmlInit_v2():
            return
    except (OSError, AttributeError):  # no driver, or an old one
        return
    count = ctypes.c_uint()
    library.nvmlDeviceGetCount_v2(ctypes.byref(count))
    for number in range(count.value):
        handle = ctypes.c_void_p()
        if not library.nvmlDeviceGetHandleByIndex_v2(number, ctypes.byref(handle)):
            yield Counter("gpu", functools.partial(_of_gpu, library, handle))


def _of_gpu(library: ctypes.CDLL, handle: ctypes.c_void_p) -> int | None:
    millijoules = ctypes.c_ulonglong()
    failed = library.nvmlDeviceGetTotalEnergyConsumption(handle, ctypes.byref(millijoules))
    return None if failed else 1000 * millijoules.value
