"""Finds the ranks that the others wait for, when steps are slow but nothing hangs.

Ranks that train together all take equally long for a step. So each measures the work that it does by itself: the
forward passes of its blocks, and its wait for data. With DDP, FSDP, a pipeline and ZeRO 0 to 2 a block runs without
collectives. Tensor- and context-parallel ranks, and those of ZeRO 3, wait for each other within a block and look alike:
a slow group can be named, but not the slow rank in it.

Times are compared when progress is reported. On a GPU only that step is timed, by events of its stream, which cost the
host nothing until they are read.
"""

from __future__ import annotations

import socket
import statistics
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from tasks.pretrain.world import World

FACTOR, WELL = 1.5, 1.25  # times the median of the other ranks: slow, and recovered, so that it may be named again
REPORTS, SECONDS = 5, 5.0  # fewest reports, and time, that a median is over: a busy machine is slow now and then
BACKWARD_TOO = 3  # the forward and backward pass together, in forward passes


class OwnTime:
    """The time of this rank's own work, by hooks on its blocks."""

    def __init__(self, blocks: Iterable[nn.Module], device: torch.device) -> None:
        self.cuda = device.type == "cuda"
        self.timing = False
        self._forget()
        for block in blocks:
            # Inside FSDP's hooks, which gather the weights before and free them after: waiting there is not own work
            block.register_forward_pre_hook(self._begin)
            block.register_forward_hook(self._end, prepend=True)

    def start(self, *, reported: bool) -> None:
        """Call when a step begins. `reported` says whether progress is reported after it."""
        self.steps += 1
        self.timing = reported or not self.cuda
        self.timed += self.timing

    def stop(self) -> None:
        """Call when the step has ended."""
        self.timing = False

    def take(self, data: float) -> float:
        """Seconds since the last call for each block and micro-batch, as pipeline stages differ in their number of
        blocks. This rank waited `data` seconds for data in that time. The device must be idle."""
        spans = [(begun.elapsed_time(ended) / 1000 if self.cuda else ended - begun) for begun, ended in self.spans]
        a_step = BACKWARD_TOO * sum(spans) / self.timed + data / self.steps
        blocks = len(spans) / self.timed
        self._forget()
        return a_step / blocks

    def _forget(self) -> None:
        self.steps = self.timed = 0
        self.spans: list[tuple[Any, Any]] = []

    def _now(self) -> Any:
        if not self.cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def _begin(self, block: nn.Module, inputs: object) -> None:
        if self.timing:
            self.begun = self._now()

    def _end(self, block: nn.Module, inputs: object, output: Tensor) -> None:
        if self.timing:
            self.spans.append((self.begun, self._now()))


class Stragglers:
    """The stragglers of a run. Every rank has one of these. All see the same times, and differ only in their clocks."""

    def __init__(self, world: World, blocks: Iterable[nn.Module]) -> None:
        self.world = world
        self.own = OwnTime(blocks, world.device) if world.size > 1 else None
        self.hosts: list[str] = world.gathered(socket.gethostname())
        self.window: deque[tuple[float, list[float]]] = deque()  # when, and the times of all ranks
        self.named: set[int] = set()

    def before_step(self, *, reported: bool) -> None:
        """Call before the forward pass of a step."""
        if self.own is not None:
            self.own.start(reported=reported)

    def after_step(self) -> None:
        """Call after its backward pass."""
        if self.own is not None:
            self.own.stop()

    def report(self, data: float) -> tuple[list[dict[str, Any]], list[str]]:
        """A row for each host that has been slow for long enough, and a sentence for each that wasn't named yet. `data`
        is how many seconds this rank waited for data since the last report. Every rank must call it."""
        if self.own is None:
            return [], []
        times = torch.zeros(self.world.size, dtype=torch.float64, device=self.world.device)
        times[self.world.rank] = self.own.take(data)
        typical = self._typical(self.world.sum(times).tolist(), time.monotonic())
        slow = slow_ranks(typical)
        new = {rank: factor for rank, factor in slow.items() if rank not in self.named}
        # Two limits, so that a rank near one of them isn't named again and again
        self.named = set(slow) | self.named & set(slow_ranks(typical, WELL))
        return by_host(slow, self.hosts), [sentence(row) for row in by_host(new, self.hosts)]

    def _typical(self, times: list[float], now: float) -> list[float]:
        """The median of each rank over the last reports, empty until there are enough."""
        self.window.append((now, times))
        while len(self.window) > REPORTS and now >= self.window[1][0] + SECONDS:
            self.window.popleft()
        if len(self.window) < REPORTS or now < self.window[0][0] + SECONDS:
            return []
        return [statistics.median(own) for own in zip(*(times for _, times in self.window), strict=True)]


def slow_ranks(times: Sequence[float], factor: float = FACTOR) -> dict[int, float]:
    """The ranks that take at least `factor` times the median of the others, each with its own factor."""
    slow = {}
    for rank, own in enumerate(times):
        others = statistics.median([*times[:rank], *times[rank + 1 :]])
        if own >= factor * others > 0:
            slow[rank] = own / others
    return slow


def by_host(slow: Mapping[int, float], hosts: Sequence[str]) -> list[dict[str, Any]]:
    """A row for each host of these ranks. Its factor is that of its slowest rank."""
    rows = []
    for host in sorted({hosts[rank] for rank in slow}):
        ranks = [rank for rank in slow if hosts[rank] == host]
        rows.append({"slow_host": host, "ranks": ranks, "factor": round(max(slow[rank] for rank in ranks), 2)})
    return rows


def sentence(row: Mapping[str, Any]) -> str:
    """The note that names a slow host."""
    return (
        f"slow host: {row['slow_host']} (rank {', '.join(map(str, row['ranks']))}) takes {row['factor']:.1f} times as "
        "long as the others for its own part of a step, and they wait for it"
    )
