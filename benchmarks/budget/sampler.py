"""`python -m benchmarks.budget.sampler STACKS.json MODULE ARGUMENTS…`: runs a module and writes where its CPU went.

A thread wakes every few milliseconds and asks each Python thread for its CPU time. What was added since is counted for
the stack that the thread is in. A kernel that holds the interpreter's lock delays the sampler, but not the clock: its
time is counted for its caller, as it should be. What threads without Python took (Arrow's, OpenMP's) is the process's
CPU time less that of these threads. Only the standard library is imported here, so that imports are the module's own.
"""

from __future__ import annotations

import json
import runpy
import sys
import threading
import time
from collections import defaultdict
from types import FrameType

EVERY = 0.004  # seconds
NATIVE = "threads without Python"


class Sampler(threading.Thread):
    """CPU and wall seconds by stack, from `start()` to `stop()`."""

    def __init__(self) -> None:
        super().__init__(name="sampler", daemon=True)
        self.cpu, self.wall = defaultdict[str, float](float), defaultdict[str, float](float)
        self._over = threading.Event()
        self._seen: dict[int, float] = {}  # CPU seconds of each thread at the last sample
        self.own = 0.0  # CPU seconds of the sampler
        self._main = threading.main_thread().ident

    def run(self) -> None:
        """Sample until the end."""
        last = time.monotonic()
        while not self._over.wait(EVERY):
            now = time.monotonic()
            self._sample(now - last)
            last = now
        self.own = time.thread_time()

    def _sample(self, elapsed: float) -> None:
        alive = {thread.ident for thread in threading.enumerate()}
        for ident, frame in sys._current_frames().items():
            if ident == self.ident or ident not in alive:
                continue
            cpu = time.clock_gettime(time.pthread_getcpuclockid(ident))
            spent = cpu - self._seen.get(ident, 0.0)
            self._seen[ident] = cpu
            if spent or ident == self._main:
                stack = _stack(frame)
                self.cpu[stack] += spent
                if ident == self._main:
                    self.wall[stack] += elapsed

    def stop(self) -> None:
        """End, and count what nobody's stack explains."""
        self._over.set()
        self.join()
        self.cpu[NATIVE] += max(0.0, time.process_time() - self.own - sum(self.cpu.values()))


def _stack(frame: FrameType | None) -> str:
    """`file:function;…`, the outermost first. A thread that held the interpreter's lock in C lets go of it where the
    next function begins: what it took belongs to the caller."""
    while frame is not None and frame.f_lineno == frame.f_code.co_firstlineno and frame.f_back is not None:
        frame = frame.f_back
    names = []
    while frame is not None:
        names.append(f"{frame.f_code.co_filename}:{frame.f_code.co_qualname}")
        frame = frame.f_back
    return ";".join(reversed(names))


def main() -> None:
    """Run the module under the sampler."""
    path, module, *arguments = sys.argv[1:]
    sampler = Sampler()
    sampler.start()
    sys.argv = [module, *arguments]
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    finally:
        sampler.stop()
        with open(path, "w") as file:
            json.dump({"cpu": sampler.cpu, "wall": sampler.wall, "sampler": sampler.own}, file)


if __name__ == "__main__":
    main()
