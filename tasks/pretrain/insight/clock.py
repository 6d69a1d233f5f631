"""Divides the time of the training loop by kind of work: each lap counts all time since the last one."""

from __future__ import annotations

import time

import torch

KINDS = ("data", "training", "validation", "checkpoints", "logging", "insight")


class Clock:
    """Seconds of a loop by kind of work, which add up to its whole time."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.seconds = dict.fromkeys(KINDS, 0.0)
        self.last = time.perf_counter()

    def lap(self, kind: str, *, wait: bool = False) -> None:
        """Count the time since the last lap as `kind`; first `wait` for the GPU, or its work counts to the next lap."""
        if wait and self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        now = time.perf_counter()
        self.seconds[kind] += now - self.last
        self.last = now

    def take(self) -> dict[str, float]:
        """The seconds by kind since the last call."""
        taken, self.seconds = self.seconds, dict.fromkeys(KINDS, 0.0)
        return taken
