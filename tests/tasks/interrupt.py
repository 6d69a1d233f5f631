"""A stage that is interrupted at a step, as by Ctrl-C, and run again.

Unless the stop may take its time, the children end at once and leave the checkpoints that they had.
"""

from __future__ import annotations

import pytest

from storage.artifact import Artifact
from tasks.stage.config import StageConfig
from tasks.stage.decorator import Stage
from tasks.stage.display.progress import Observer, Progress
from tasks.stage.output import Output


class InterruptAt(Observer):
    """Interrupts the stage at a step or later. Batches are those of a stage that it needs, and don't count."""

    def __init__(self, step: float) -> None:
        self.step = step

    def progressed(self, progress: Progress) -> None:
        if progress.done >= self.step and progress.unit != "batches":
            raise KeyboardInterrupt


def interrupt(
    stage: Stage,
    config: StageConfig,
    inputs: tuple[Artifact | None, ...],
    out: Output,
    *,
    at: float,
    grace: float = 0.0,
) -> None:
    """Run a stage until a step, where it ends; what it left in `out` is for the run after it."""
    observer, runtime = out.observer, out.runtime
    out.observer = InterruptAt(at)
    out.runtime = runtime.with_changes("training", stop_grace_seconds=grace)
    with pytest.raises(KeyboardInterrupt):
        stage.function(config, *inputs, out)
    out.observer, out.runtime = observer, runtime


def interrupt_and_resume(
    stage: Stage, config: StageConfig, inputs: tuple[Artifact, ...], out: Output, *, at: float, grace: float = 0.0
) -> None:
    """Run a stage until a step, and again to its end."""
    interrupt(stage, config, inputs, out, at=at, grace=grace)
    stage.function(config, *inputs, out)
