"""Devices for training: figures of their data sheets, and two assumptions that you can override.

Peaks are dense (without sparsity): of 16-bit products accumulated in float32, of TF32, and of float32. Memory is
decimal, a few per cent below the device's own figure, which leaves room for the CUDA context. Utilisation is the share
of the peak that training reaches (PaLM 46 %, Llama 3 405B 38 to 43 %), for Hopper as measured on an H200. Prices are
rough on-demand prices as of `PRICED`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Products = Literal["half", "tf32", "float32"]  # precision of matrix products

PRICED = "mid-2025"
UTILISATION = 0.4
SEEN = {"h200": 0.45, "h100": 0.45}  # on an H200, compiled: 0.45 to 0.56 for models of 124M to 1.3B


class UnknownDevice(ValueError):
    """Not a known device."""


@dataclass(frozen=True)
class Device:
    """One accelerator, or this machine's CPU. None is unknown."""

    name: str
    title: str
    memory: int  # bytes
    half: float | None  # peak FLOP/s in bfloat16
    tf32: float | None  # peak FLOP/s in TF32
    single: float | None  # peak FLOP/s in float32
    price: float | None  # USD an hour, assumed
    utilisation: float = UTILISATION  # share of the peak, assumed
    float8: bool = False  # whether it multiplies in 8 bits
    reported: tuple[str, ...] = ()  # what the driver calls it

    def peak(self, products: Products) -> float | None:
        """Peak FLOP/s in a precision of matrix products."""
        return {"half": self.half, "tf32": self.tf32, "float32": self.single}[products]


def _device(
    name: str,
    title: str,
    gigabytes: int,
    half: float,
    tf32: float,
    single: float,
    price: float,
    *reported: str,
    float8: bool = False,
) -> Device:
    peaks = (half * 1e12, tf32 * 1e12, single * 1e12)
    share = SEEN.get(name, UTILISATION)
    return Device(name, title, gigabytes * 10**9, *peaks, price, share, float8=float8, reported=reported or (title,))


DEVICES = {
    device.name: device
    for device in (  # data sheets: gigabytes, TFLOP/s in bfloat16, TF32, float32, and the assumed price
        _device("h200", "NVIDIA H200 SXM", 141, 989.4, 494.7, 66.9, 3.80, "NVIDIA H200", float8=True),
        _device("h100", "NVIDIA H100 SXM", 80, 989.4, 494.7, 66.9, 3.00, "NVIDIA H100 80GB HBM3", float8=True),
        _device("a100", "NVIDIA A100 80GB SXM", 80, 312.0, 156.0, 19.5, 1.80, "NVIDIA A100-SXM4-80GB"),
        _device("a100-40", "NVIDIA A100 40GB SXM", 40, 312.0, 156.0, 19.5, 1.30, "NVIDIA A100-SXM4-40GB"),
        _device("mi300x", "AMD Instinct MI300X", 192, 1307.4, 653.7, 163.4, 3.00, float8=True),
        _device("l40s", "NVIDIA L40S", 48, 362.0, 183.0, 91.6, 1.00, float8=True),
        _device("l4", "NVIDIA L4", 24, 121.0, 60.0, 30.3, 0.70, float8=True),
        _device("a10", "NVIDIA A10", 24, 125.0, 62.5, 31.2, 0.75),
        _device("rtx4090", "NVIDIA GeForce RTX 4090", 24, 165.2, 82.6, 82.6, 0.40, float8=True),
        _device("rtx3090", "NVIDIA GeForce RTX 3090", 24, 71.0, 35.6, 35.6, 0.25),
    )
}


def find_device(name: str) -> Device:
    """The device of this name. Raises UnknownDevice, listing the known ones."""
    if name not in DEVICES:
        raise UnknownDevice(f"{name} is not one of {', '.join(DEVICES)}")
    return DEVICES[name]


def reported_device(reported: str) -> Device | None:
    """The device that the driver calls `reported`, None without a data sheet for it: variants with the same number,
    such as an H100 PCIe, an A10G or a slice of a GPU, are slower."""
    return next((device for device in DEVICES.values() if reported in device.reported), None)
