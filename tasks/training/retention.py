"""Which checkpoints of a run are kept. No torch: the plan asks too."""

from __future__ import annotations

from collections.abc import Sequence


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
