"""Which part of a tensor a rank holds.

Tensor parallelism and FSDP both shard tensors, one inside the other. The model fuses matrices (query, key and value, or
gate and up), so a rank holds several ranges of rows. States are saved and gathered by this description only, so that
files contain whole tensors, and any engine on any number of ranks reads them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

Range = tuple[int, int]  # start, stop


@dataclass(frozen=True)
class ShardLayout:
    """Rows and columns of a tensor of one or two dimensions. A number (no dimension) is always whole."""

    size: torch.Size  # of the whole
    rows: tuple[Range, ...]  # ranges of the whole tensor's rows, in the order of the shard's
    columns: Range | None = None  # None for all

    @staticmethod
    def whole(tensor: Tensor) -> ShardLayout:
        """The layout of an unsharded tensor."""
        return ShardLayout(tensor.shape, ((0, tensor.shape[0]),) if tensor.dim() else ())

    def cut(self, start: int, stop: int) -> ShardLayout:
        """The layout of rows `start` to `stop` of this shard."""
        rows, begun = [], 0  # `begun` is the shard's row that a range starts at
        for first, last in self.rows:
            low, high = max(start, begun), min(stop, begun + last - first)
            if low < high:
                rows.append((first + low - begun, first + high - begun))
            begun += last - first
        return ShardLayout(self.size, tuple(rows), self.columns)

    def of(self, whole: Tensor) -> Tensor:
        """A copy of this shard of a whole tensor."""
        rows = torch.cat([whole[start:stop] for start, stop in self.rows]) if self.rows else whole[:0]
        return (rows if self.columns is None else rows[:, slice(*self.columns)]).contiguous()

    def chunks(self, held: Tensor) -> Iterator[tuple[tuple[int, ...], Tensor]]:
        """The offsets of each range in the whole tensor, and a view of its part of the shard `held`."""
        if not self.size:
            yield (), held
        begun = 0
        for start, stop in self.rows:
            view = held[begun : begun + stop - start]
            begun += stop - start
            yield (start, *(0 if self.columns is None else self.columns[0],) * (held.dim() - 1)), view

    def fill(self, whole: Tensor, held: Tensor) -> None:
        """Copy the shard `held` to its place in a whole tensor."""
        for offsets, view in self.chunks(held):
            whole[tuple(slice(at, at + size) for at, size in zip(offsets, view.shape, strict=True))] = view


def local(tensor: Tensor) -> Tensor:
    """This rank's shard of a tensor, sharing its memory."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def share_of(ranges: Sequence[int], rank: int, ranks: int) -> tuple[Range, ...]:
    """This rank's equal share of each of several consecutive parts of the given lengths."""
    runs, begun = [], 0
    for length in ranges:
        share = length // ranks
        runs.append((begun + rank * share, begun + (rank + 1) * share))
        begun += length
    return tuple(runs)
