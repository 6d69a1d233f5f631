"""Divides a global batch evenly among ranks, and each rank's share into micro-batches.

No torch: the plan uses it too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from storage.errors import ConfigError


class BatchShare(NamedTuple):
    """One data-parallel rank's share of each global batch."""

    micro_batch: int  # sequences of a forward pass
    micro_steps: int  # forward passes of an optimizer step

    @property
    def sequences(self) -> int:
        """Sequences of an optimizer step."""
        return self.micro_batch * self.micro_steps


def share_batch(
    global_batch: int, ranks: int, *, micro_batch: int | None, default: Callable[[int], int], names: tuple[str, str]
) -> BatchShare:
    """The share of each of `ranks`, in micro-batches of the size `micro_batch`, or `default(share)` if that is None.

    `names` are the settings' names of `global_batch` and `micro_batch`. Raises ConfigError if the batch can't be
    divided evenly, since results must not depend on the number of ranks.
    """
    share, left = divmod(global_batch, ranks)
    if left or not share or (micro_batch and share % micro_batch):
        raise ConfigError(
            f"{names[0]} is {global_batch}, which {ranks} processes can't share evenly with a {names[1]} of "
            f"{micro_batch or 'any size'}.",
            "Choose a global batch that is a multiple of processes × micro_batch.",
        )
    size = micro_batch or default(share)
    return BatchShare(size, share // size)
