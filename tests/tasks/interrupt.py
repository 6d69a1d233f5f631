"""A stage that is interrupted at a step, as by Ctrl-C, and run again."""

from __future__ import annotations

import pytest

from storage.artifact import Artifact
from tasks.stage.config import StageConfig
from tasks.stage.decorator import Stage
from tasks.stage.output import Output
from tasks.stage.progress import Observer, Progress


class InterruptAt(Observer):
    """Interrupts the stage when it tells of a step, or of a later one."""

    def __init__(self, step: int) -> None:
        self.step = step

    def progressed(self, progress: Progress) -> None:
        if progress.done >= self.step:
            raise KeyboardInterrupt


def interrupt(stage: Stage, config: StageConfig, inputs: tuple[Artifact, ...], out: Output, *, at: int) -> None:
    """Run a stage until a step, where it ends; what it left in `out` is for the run after it."""
    observer, out.observer = out.observer, InterruptAt(at)
    with pytest.raises(KeyboardInterrupt):
        stage.function(config, *inputs, out)
    out.observer = observer


def interrupt_and_resume(
    stage: Stage, config: StageConfig, inputs: tuple[Artifact, ...], out: Output, *, at: int
) -> None:
    """Run a stage until a step, and again to its end."""
    interrupt(stage, config, inputs, out, at=at)
    stage.function(config, *inputs, out)
