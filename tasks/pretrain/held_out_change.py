"""What training changes of a base on held-out text, by source: a gain on the domain, a loss on general text.

The same windows are measured before the first step and after the last, in groups of a forward pass.
"""

from __future__ import annotations

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from models.kernels.attention import for_any_shape
from storage.shards.token_stream import Stretches, source_streams
from tasks.pretrain.engines import Engine
from tasks.pretrain.evaluation import group_losses
from tasks.pretrain.spec import TrainSpec
from tasks.training.bits_per_byte import spread_windows

Losses = dict[str, list[list[float]]]  # nats and tokens of each group of windows, by source


class Change(ABC):
    """A measurement before the first step, kept in a file for a run that resumes, and again after the last."""

    def __init__(self, before: Path) -> None:
        self._before = before

    @abstractmethod
    def measured(self, engine: Engine, heartbeat: Callable[[], None]) -> dict[str, Any]:
        """What is measured, as JSON values. Every rank must call it."""

    def begin(self, engine: Engine, begun: int, heartbeat: Callable[[], None]) -> None:
        """Measure the base, unless the run resumes from a step. Every rank must call it."""
        if begun:
            return
        measured = self.measured(engine, heartbeat)
        if engine.world.first:
            draft = self._before.with_suffix(".draft")
            draft.write_text(json.dumps(measured))
            draft.replace(self._before)

    def end(self, engine: Engine, heartbeat: Callable[[], None]) -> dict[str, dict[str, Any]]:
        """The values before and after, by name. Every rank must call it."""
        after = self.measured(engine, heartbeat)
        before = json.loads(self._before.read_bytes()) if self._before.exists() else {}
        return {name: {"before": before[name], "after": after[name]} for name in after if name in before}


class HeldOutChange(Change):
    """The losses of the held-out windows of each source, `validation_tokens` of each."""

    def __init__(self, spec: TrainSpec) -> None:
        super().__init__(spec.scratch / "before.json")
        self._spec = spec
        self._streams = source_streams(spec.validation, tokenizer_digest=spec.tokenizer_digest)

    @for_any_shape()  # as `Validation.loss`
    def measured(self, engine: Engine, heartbeat: Callable[[], None]) -> Losses:
        return {name: self._losses(stream, engine, heartbeat) for name, stream in self._streams.items()}

    def _losses(self, stream: Stretches, engine: Engine, heartbeat: Callable[[], None]) -> list[list[float]]:
        context, size, ranks = self._spec.context, engine.micro_batch, engine.data_ranks
        windows = spread_windows(stream, context, self._spec.config.validation_tokens)
        rounds = math.ceil(len(windows) / (size * ranks))
        totals = torch.zeros((rounds * ranks, 2), dtype=torch.float64, device=engine.world.device)
        for group, sums in group_losses(engine, stream, windows, context, heartbeat):
            totals[group] = sums
        return [group for group in engine.world.sum(totals).tolist() if group[1]]
