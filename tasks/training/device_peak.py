"""The peak of a device: FLOP/s of its matrix products, which bound training speed, and bytes of memory in use.

FLOP/s are measured, as a data sheet doesn't know this machine's clock, threads or other load. Those of the data sheet,
if any, are for comparisons with published figures."""

from __future__ import annotations

import functools
import time
from typing import TYPE_CHECKING

from models.devices import reported_device

if TYPE_CHECKING:
    import torch

SECONDS = 0.15  # per size, after a first product that loads libraries
# Sides of square matrices. On a CPU a small one comes first: its product fits between two interruptions by other
# processes (measured: 105 GFLOP/s, against 15 to 45 with 1,024), while many threads need a large one
SIZES = {"cpu": (384, 1024, 2048), "cuda": (8192,)}


def cpu_peak_flops(threads: int) -> float:
    """FLOP/s of this CPU's float32 matrix products with `threads` threads. Restores torch's number of threads."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        return peak_flops(torch.device("cpu"), torch.float32, threads)
    finally:
        torch.set_num_threads(before)


@functools.cache
def peak_flops(device: torch.device, dtype: torch.dtype, threads: int) -> float:
    """FLOP/s of square matrix products in `dtype`, with the `threads` that torch is set to. Measured once per process.

    Sizes grow as long as they get faster. The best time of each counts, not the mean, to exclude other load. Doesn't
    use the global random generator, so that it can't affect training.
    """
    peak = 0.0
    for size in SIZES[device.type]:
        flops = _peak_of(size, device, dtype)
        if flops <= peak:
            break
        peak = flops
    return peak


def data_sheet_flops(device: torch.device, precision: str) -> float | None:
    """FLOP/s of the GPU's matrix products by its data sheet, in a profile's `precision`, or None if it isn't known."""
    if device.type != "cuda":
        return None
    import torch

    known = reported_device(torch.cuda.get_device_name(device))
    if known is None:
        return None
    return known.peak("tf32" if precision == "tf32" else "float32" if precision == "float32" else "half")


def peak_memory(device: torch.device | None = None) -> int:
    """Peak bytes so far: of the tensors on a GPU, else of this process's resident set."""
    if device is not None and device.type == "cuda":
        import torch

        return torch.cuda.max_memory_allocated(device)
    with open("/proc/self/status") as status:  # not ru_maxrss, which a process inherits from the one that started it
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM"))


def _peak_of(size: int, device: torch.device, dtype: torch.dtype) -> float:
    import torch

    generator = torch.Generator(device).manual_seed(0)
    left, right = (torch.rand(size, size, device=device, generator=generator).to(dtype) for _ in range(2))
    product = left @ right
    best, begun = float("inf"), time.perf_counter()
    while time.perf_counter() - begun < SECONDS:
        best = min(best, _seconds(left, right, product))
    del left, right, product
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)  # these matrices are not part of the training's peak
    return 2.0 * size**3 / best


def _seconds(left: torch.Tensor, right: torch.Tensor, product: torch.Tensor) -> float:
    import torch

    if left.device.type == "cuda":
        begun, ended = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begun.record()
        torch.mm(left, right, out=product)
        ended.record()
        torch.cuda.synchronize(left.device)
        milliseconds: float = begun.elapsed_time(ended)
        return milliseconds / 1000
    started = time.perf_counter()
    torch.mm(left, right, out=product)
    return time.perf_counter() - started
