"""Which checkpoints of a run are kept. No torch: the plan uses it too."""

from __future__ import annotations

from collections.abc import Sequence


def superfluous(steps: Sequence[int], *, newest: int, every: int | None) -> list[int]:
    """The checkpoints to remove, by their steps in order: all but the last `newest`, and the first in each interval of
    `every` steps."""
    for_good, last = set(), 0
    for step in steps:
        if every and step // every > last // every:
            for_good.add(step)
            last = step
    return [step for step in steps[:-newest] if step not in for_good]


def most_kept(steps: int, *, newest: int, every: int | None, apart: int) -> int:
    """The most checkpoints that a run of `steps` steps keeps at a time, if it saves one every `apart` steps."""
    return newest + ((steps - 1) // max(every, apart) if every else 0)
