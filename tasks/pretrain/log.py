"""The log of a training run: the measurements of each step, checked before they are written."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from storage.errors import TrainingError
from tasks.pretrain.healing.divergence import DivergenceMonitor
from tasks.pretrain.world import World
from tasks.training.logs import append_log

MAX_SKIPPED = 40  # in a row: by then the loss scale, halved each time from 65,536, has underflowed float16


@dataclass
class Log:
    """The rows of a run. Losses stay on the device until they are needed: reading one would stall a GPU."""

    path: Path
    world: World
    monitor: DivergenceMonitor
    rows: list[dict[str, Any]]
    may_skip: bool = False  # float16: a step with an overflowing gradient is skipped and not a divergence
    waiting: list[tuple[int, float, Tensor, Tensor]] = field(default_factory=list)

    def __post_init__(self) -> None:
        for row in self.rows:
            self.monitor.see(row)

    def add(self, step: int, rate: float, loss: Tensor, norm: Tensor) -> None:
        """Record a step: this rank's loss and the global gradient norm."""
        self.waiting.append((step, rate, loss, norm))

    def flush(self, validation_loss: float | None = None) -> None:
        """Write pending rows. `validation_loss` is that of the last step.

        Raises Divergence, on every rank, and TrainingError for float16 gradients that overflow at any scale.
        """
        if not self.waiting:
            return
        losses = self.world.mean(torch.stack([loss for _, _, loss, _ in self.waiting])).tolist()
        new = []
        for (step, rate, _, norm), loss in zip(self.waiting, losses, strict=True):
            overflowed = self.may_skip and not math.isfinite(norm)
            outcome = {"skipped": True} if overflowed else {"gradient_norm": float(norm)}
            new.append({"step": step, "loss": loss, "learning_rate": rate, **outcome})
        if validation_loss is not None:
            new[-1]["validation_loss"] = validation_loss
        self.waiting = []
        for row in new:
            self.monitor.see(row)  # before it is written: a diverged step never enters the log
        self.rows += new
        if all("skipped" in row for row in self.rows[-MAX_SKIPPED:]) and len(self.rows) >= MAX_SKIPPED:
            raise TrainingError(
                f"The gradients of {MAX_SKIPPED} steps in a row overflowed in float16, whatever their scale.",
                "Lower pretrain.learning_rate (muon_learning_rate too, if set), or choose another precision.",
            )
        if self.world.first:
            append_log(self.path, new)
