"""Where what one rank holds of a tensor lies in the whole of it.

Tensor parallelism and FSDP both cut tensors, one inside the other, and the model's fused matrices (query, key and value
in one; gate and up in one) make a rank's rows several runs of the whole. States are saved and gathered by this
description alone, so that files know only whole tensors, and any engine on any number of ranks reads them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

Run = tuple[int, int]  # from, up to


@dataclass(frozen=True)
class Piece:
    """Rows and columns of a tensor of one or two dimensions. A number (no dimension) is always whole."""

    size: torch.Size  # of the whole
    rows: tuple[Run, ...]  # runs of the whole, as they follow each other here
    columns: Run | None = None  # None for all

    @staticmethod
    def whole(tensor: Tensor) -> Piece:
        """All of it."""
        return Piece(tensor.shape, ((0, tensor.shape[0]),) if tensor.dim() else ())

    def cut(self, start: int, stop: int) -> Piece:
        """The rows `start` up to `stop` of this piece."""
        rows, begun = [], 0
        for first, last in self.rows:
            low, high = max(start, begun), min(stop, begun + last - first)
            if low < high:
                rows.append((first + low - begun, first + high - begun))
            begun += last - first
        return Piece(self.size, tuple(rows), self.columns)

    def of(self, whole: Tensor) -> Tensor:
        """This piece of a whole tensor, copied."""
        rows = torch.cat([whole[start:stop] for start, stop in self.rows]) if self.rows else whole[:0]
        return (rows if self.columns is None else rows[:, slice(*self.columns)]).contiguous()

    def chunks(self, held: Tensor) -> Iterator[tuple[tuple[int, ...], Tensor]]:
        """Where each run begins in the whole, and its part of `held`, which has this piece's shape."""
        if not self.size:
            yield (), held
        begun = 0
        for start, stop in self.rows:
            view = held[begun : begun + stop - start]
            begun += stop - start
            yield (start, *(0 if self.columns is None else self.columns[0],) * (held.dim() - 1)), view

    def fill(self, whole: Tensor, held: Tensor) -> None:
        """Put `held` into its place in a whole tensor."""
        for offsets, view in self.chunks(held):
            whole[tuple(slice(at, at + size) for at, size in zip(offsets, view.shape, strict=True))] = view


def local(tensor: Tensor) -> Tensor:
    """What this rank holds of a tensor, sharing its memory."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def share_of(ranges: Sequence[int], rank: int, ranks: int) -> tuple[Run, ...]:
    """This rank's even share of each of several parts of the given lengths that follow one another."""
    runs, begun = [], 0
    for length in ranges:
        share = length // ranks
        runs.append((begun + rank * share, begun + (rank + 1) * share))
        begun += length
    return tuple(runs)
