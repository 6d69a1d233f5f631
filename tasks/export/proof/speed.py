"""How fast a format reads and writes, and the memory that it takes, in its own runtime on this machine."""

from __future__ import annotations

import ctypes
import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from models.runtimes.protocol import ModelRuntime
from tasks.training.device_peak import peak_memory

GENERATED = 32  # tokens
_STATUS, _RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")


@dataclass(frozen=True)
class Speed:
    """Tokens per second of a prompt and of greedy generation, and the peak bytes beyond those that the process held
    before."""

    prompt: float
    generation: float
    peak_memory: int


def measure(opened: Callable[[], ModelRuntime], window: tuple[int, ...]) -> tuple[ModelRuntime, Speed]:
    """Open a model, have it read a window and continue it. Returns the open model, for the proof, and its speed."""
    with _peak() as above:
        runtime = opened()
        runtime.all_log_probabilities(window)  # a first pass loads libraries and takes memory
        start = time.perf_counter()
        runtime.all_log_probabilities(window)
        read = time.perf_counter()
        written = runtime.greedy(window[: len(window) // 2], GENERATED)
        end = time.perf_counter()
    return runtime, Speed(len(window) / (read - start), max(len(written), 1) / (end - read), above())


@contextmanager
def _peak() -> Iterator[Callable[[], int]]:
    """Yields a function for the peak bytes since entry, beyond those held on entry. Linux resets the peak for this."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    _RESET.write_text("5")
    before = peak_memory()
    yield lambda: peak_memory() - before
