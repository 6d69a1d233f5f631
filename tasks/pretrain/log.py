"""Rows of a training run: what each step measured, checked before it is written."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from storage.errors import TrainingError
from tasks.pretrain.healing.divergence import Watch
from tasks.pretrain.world import World
from tasks.training.logs import append_log

MAX_SKIPPED = 40  # in a row: by then the scale has been halved from 65,536 to less than float16 can tell from 0


@dataclass
class Log:
    """Rows of the run. Losses wait on the device until they are needed: reading one would stop a GPU."""

    path: Path
    world: World
    watch: Watch
    rows: list[dict[str, Any]]
    may_skip: bool = False  # a step whose scaled gradient overflowed is left out, and is no divergence
    waiting: list[tuple[int, float, Tensor, Tensor]] = field(default_factory=list)

    def __post_init__(self) -> None:
        for row in self.rows:
            self.watch.see(row)

    def add(self, step: int, rate: float, loss: Tensor, norm: Tensor) -> None:
        """Note a step; this rank's loss and the global gradient norm."""
        self.waiting.append((step, rate, loss, norm))

    def flush(self, validation_loss: float | None = None) -> None:
        """Write what waits; `validation_loss` belongs to the last step. Raises Divergence, alike on every rank."""
        if not self.waiting:
            return
        losses = self.world.mean(torch.stack([loss for _, _, loss, _ in self.waiting])).tolist()
        new = []
        for (step, rate, _, norm), loss in zip(self.waiting, losses, strict=True):
            overflowed = self.may_skip and not math.isfinite(norm)
            found = {"skipped": True} if overflowed else {"gradient_norm": float(norm)}
            new.append({"step": step, "loss": loss, "learning_rate": rate, **found})
        if validation_loss is not None:
            new[-1]["validation_loss"] = validation_loss
        self.waiting = []
        for row in new:
            self.watch.see(row)
        self.rows += new
        if all("skipped" in row for row in self.rows[-MAX_SKIPPED:]) and len(self.rows) >= MAX_SKIPPED:
            raise TrainingError(
                f"The gradients of {MAX_SKIPPED} steps in a row overflowed in float16, whatever their scale.",
                "Lower pretrain.learning_rate, or choose another precision.",
            )
        if self.world.first:
            append_log(self.path, new)
