"""Which checkpoints lie in a folder, and how one is taken away. No torch: the stage asks too."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

MARKER = "complete.json"


def tag(step: int) -> str:
    """The name of the folder of a step's checkpoint."""
    return f"step-{step:09d}"


def whole_steps(folder: Path) -> list[int]:
    """The steps of the whole checkpoints in a folder, in order."""
    return sorted(int(path.parent.name.rpartition("-")[2]) for path in folder.glob(f"step-*/{MARKER}"))


def superfluous(steps: Sequence[int], *, newest: int, every: int | None) -> list[int]:
    """Which of the steps with a checkpoint, in order, go: all but the `newest` so many and, of each `every` steps, the
    first one that came."""
    for_good, last = set(), 0
    for step in steps:
        if every and step // every > last // every:
            for_good.add(step)
            last = step
    return [step for step in steps[:-newest] if step not in for_good]


def most_kept(steps: int, *, newest: int, every: int | None, apart: int) -> int:
    """How many checkpoints a run of so many steps keeps at the most, one being saved all `apart` steps."""
    return newest + ((steps - 1) // max(every, apart) if every else 0)


def remove(folder: Path, step: int) -> None:
    """Remove the checkpoint of a step: its marker first, so that a kill in between leaves no half checkpoint."""
    (folder / tag(step) / MARKER).unlink()
    shutil.rmtree(folder / tag(step))
