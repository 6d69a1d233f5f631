"""Muon where processes hold shards of matrices (FSDP, tensor parallelism).

Only a whole matrix can be made orthogonal. So each is sent to one process, its owner, which computes its factor once
and sends every other process its shard of it (as in Liu et al. 2025, "Muon is scalable for LLM training", section 2.3,
Distributed Muon). Owners take turns. Momentum and weight decay need no other shard.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import ProcessGroup

from tasks.pretrain.engines.shard_layout import ShardLayout, local
from tasks.pretrain.engines.states import Parameters
from tasks.pretrain.recipe.muon import Whole, orthogonal


class Place(NamedTuple):
    """Which part of a matrix a process holds: these rows of its shard, and these rows and columns of the matrix."""

    held: slice
    rows: slice
    columns: slice


def place_of(layout: ShardLayout, start: int, stop: int) -> Place:
    """The place in the matrix of rows `start` to `stop` of a whole parameter. A shard has at most one range of it."""
    begun = 0
    columns = slice(*(layout.columns or (None,)))
    for first, last in layout.rows:
        low, high = max(first, start), min(last, stop)
        if low < high:
            return Place(slice(begun + low - first, begun + high - first), slice(low - start, high - start), columns)
        begun += last - first
    return Place(slice(0, 0), slice(0, 0), columns)


class Owners(Whole):
    """Shards of matrices, of which the processes of `group` together hold each whole. All must ask for the same."""

    def __init__(self, parameters: Parameters, group: ProcessGroup, device: torch.device) -> None:
        self.group, self.device, self.ranks, self.rank = group, device, group.size(), group.rank()
        gathered: list[dict[str, ShardLayout]] = [{}] * self.ranks
        dist.all_gather_object(gathered, {name: layout for name, (_, layout) in parameters.items()}, group=group)
        self.layouts: dict[nn.Parameter, list[ShardLayout]] = {
            held: [layouts[name] for layouts in gathered] for name, (held, _) in parameters.items()
        }

    def local(self, tensor: Tensor) -> Tensor:
        return local(tensor)

    def matrices(self, parameter: Tensor, parts: Sequence[int]) -> Iterator[tuple[torch.Size, slice, list[Place]]]:
        layouts = self.layouts[parameter]  # type: ignore[index]
        size = layouts[0].size
        ways, start = size[0] // sum(parts), 0  # tensor parallelism has an equal share of each part's rows
        for rows in (part * ways for part in parts):
            places = [place_of(layout, start, start + rows) for layout in layouts]
            yield torch.Size((rows, *size[1:])), places[self.rank].held, places
            start += rows

    def orthogonal(
        self, shape: torch.Size, held: Sequence[Tensor], places: Sequence[Sequence[Place]], before: int
    ) -> Iterable[Tensor]:
        owned = [range((rank - before) % self.ranks, len(held), self.ranks) for rank in range(self.ranks)]
        mine = owned[self.rank]
        whole = torch.empty(len(mine), *shape, device=self.device)
        views = [
            [whole[number][places[index][rank].rows, ..., places[index][rank].columns]
             for number, index in enumerate(mine)] for rank in range(self.ranks)
        ]  # fmt: skip
        sent = [[held[index] for index in indices] for indices in owned]
        for own, shards in zip(views, self._exchange(sent, views), strict=True):
            for view, shard in zip(own, shards, strict=True):
                view.copy_(shard)
        if len(mine):
            whole.copy_(orthogonal(whole))
        changes = list(held)
        for indices, shards in zip(owned, self._exchange(views, sent), strict=True):
            for index, shard in zip(indices, shards, strict=True):
                changes[index] = shard.to(held[index].device)
        return changes

    def _exchange(self, sent: Sequence[Sequence[Tensor]], like: Sequence[Sequence[Tensor]]) -> list[list[Tensor]]:
        """Send each process its tensors, and receive some of the shapes `like` from each."""
        nothing = torch.empty(0, device=self.device)  # of a process without a matrix in this turn
        out = torch.cat([nothing, *(tensor.to(self.device).flatten() for tensors in sent for tensor in tensors)])
        sizes = [[sum(tensor.numel() for tensor in tensors) for tensors in each] for each in (sent, like)]
        received = out.new_empty(sum(sizes[1]))
        dist.all_to_all_single(received, out, sizes[1], sizes[0], group=self.group)
        pieces = iter(received.split([*(tensor.numel() for tensors in like for tensor in tensors), 0]))
        return [[next(pieces).view(tensor.shape) for tensor in tensors] for tensors in like]
