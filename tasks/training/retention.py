"""Which checkpoints of a run are kept. No torch: the plan asks too."""

from __future__ import annotations

from collections.abc import Sequence


def superfluous(steps: Sequence[int], *, newest: int, every: int | None) -> list[int]:
    """Which of the checkpoints' steps, in order, to remove: all but the `newest` so many, and the first one in each
    interval of `every` steps."""
    for_good, last = set(), 0
    for step in steps:
        if every and step // every > last // every:
            for_good.add(step)
            last = step
    return [step for step in steps[:-newest] if step not in for_good]


def most_kept(steps: int, *, newest: int, every: int | None, apart: int) -> int:
    """The most checkpoints that a run of so many steps keeps at a time, one being saved every `apart` steps."""
    return newest + ((steps - 1) // max(every, apart) if every else 0)
