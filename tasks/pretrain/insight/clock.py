"""Where the time of the training loop goes: all that passed since the last lap belongs to one kind of work."""

from __future__ import annotations

import time

import torch

KINDS = ("data", "training", "validation", "checkpoints", "logging", "insight")


class Clock:
    """Laps of a loop, in seconds by kind. Nothing is left over, so the shares add up to one."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.seconds = dict.fromkeys(KINDS, 0.0)
        self.last = time.perf_counter()

    def lap(self, kind: str, *, wait: bool = False) -> None:
        """All since the last lap was `kind`. `wait` for a GPU first, whose work would else fall into the next lap."""
        if wait and self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        now = time.perf_counter()
        self.seconds[kind] += now - self.last
        self.last = now

    def take(self) -> dict[str, float]:
        """The seconds by kind since the last call."""
        taken, self.seconds = self.seconds, dict.fromkeys(KINDS, 0.0)
        return taken
