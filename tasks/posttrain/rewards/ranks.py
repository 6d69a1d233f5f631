"""What several processes do of one batch of answers: each samples its share, and the first rewards all of them.

So a reward is asked once about an answer, sees answers in the same batches whatever the processes, and keeps one cache
and one list of failures.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from torch import distributed

from storage.errors import GristmillError

Item = TypeVar("Item")
Made = TypeVar("Made")


def place() -> tuple[int, int]:
    """The rank of this process, and the number of processes."""
    return (distributed.get_rank(), distributed.get_world_size()) if distributed.is_initialized() else (0, 1)


def share_of(number: int) -> slice:
    """The part of `number` items that is this process's, after those of the processes before it."""
    rank, world = place()
    return slice(rank * number // world, (rank + 1) * number // world)


def gathered(items: Sequence[Item]) -> list[Item]:
    """The items of all processes, in the order of these."""
    parts: list[Sequence[Item]] = [items] * place()[1]
    if len(parts) > 1:
        distributed.all_gather_object(parts, list(items))
    return [item for part in parts for item in part]


def on_first(work: Callable[[], Made]) -> Made:
    """What `work` returns on the first process, or raises there of our errors, on every process."""
    outcome: list[tuple[Made | None, GristmillError | None]] = [(None, None)]
    rank, world = place()
    if not rank:
        try:
            outcome = [(work(), None)]
        except GristmillError as raised:
            outcome = [(None, raised)]
    if world > 1:
        distributed.broadcast_object_list(outcome)
    ((made, error),) = outcome
    if error is not None:
        raise error
    return made  # type: ignore[return-value]  # the first process has it, or an error
