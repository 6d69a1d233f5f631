"""The peak of a device's matrix products, measured: what the utilisation of a training is a share of.

A data sheet knows nothing of this clock, this number of threads, or who else works on the machine.
"""

from __future__ import annotations

import functools
import time

import torch

SECONDS = 0.15  # of measuring a size, after a first product that loads libraries
# Of square matrices. On a CPU a small one first: its product fits between two interruptions by whoever else is at work
# (seen: 105 GFLOP/s where matrices of 1,024 gave 15 to 45), while many threads need a large one
SIZES = {"cpu": (384, 1024, 2048), "cuda": (8192,)}


@functools.cache
def measured_peak(device: torch.device, dtype: torch.dtype) -> float:
    """FLOP/s of square matrix products in `dtype` with this process's threads: the best of what little time allows.

    Larger sizes as long as they are faster. Draws from no global random generator, so a training is the same with it
    and without.
    """
    peak = 0.0
    for size in SIZES[device.type]:
        found = _peak_of(size, device, dtype)
        if found <= peak:
            break
        peak = found
    return peak


def _peak_of(size: int, device: torch.device, dtype: torch.dtype) -> float:
    generator = torch.Generator(device).manual_seed(0)
    left, right = (torch.rand(size, size, device=device, generator=generator).to(dtype) for _ in range(2))
    product = left @ right
    best, begun = float("inf"), time.perf_counter()
    while time.perf_counter() - begun < SECONDS:
        best = min(best, _seconds(left, right, product))
    del left, right, product
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)  # these matrices are no part of the training's peak
    return 2.0 * size**3 / best


def _seconds(left: torch.Tensor, right: torch.Tensor, product: torch.Tensor) -> float:
    if left.device.type == "cuda":
        begun, ended = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begun.record()
        torch.mm(left, right, out=product)
        ended.record()
        torch.cuda.synchronize(left.device)
        return begun.elapsed_time(ended) / 1000
    started = time.perf_counter()
    torch.mm(left, right, out=product)
    return time.perf_counter() - started
