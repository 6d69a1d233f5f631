"""The matrix-product peak of this machine's CPU, measured: what training can't be faster than."""

from __future__ import annotations

import time

SIZE = 1024  # of the square matrices: large enough for the caches' blocking, small enough to be quick
SECONDS = 0.8


def measure_peak(threads: int) -> float:
    """FLOP/s of float32 matrix products with this many threads, the best of what a second allows.

    The best and not the mean: what else runs on the machine is no part of its peak. Torch's threads stay as they were.
    """
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    a, b = torch.rand(SIZE, SIZE), torch.rand(SIZE, SIZE)
    out = a @ b  # the first call starts threads and packs
    best, begun = float("inf"), time.perf_counter()
    while time.perf_counter() - begun < SECONDS:
        started = time.perf_counter()
        torch.mm(a, b, out=out)
        best = min(best, time.perf_counter() - started)
    torch.set_num_threads(before)
    return 2.0 * SIZE**3 / best
