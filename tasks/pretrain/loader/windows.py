"""Windows of a token stream, in an order that follows only from the seed.

Window i of a stream is its tokens i·T to i·T + T, and the token after them as the last target, or it holds whole
documents, packed by packing.py. Each epoch visits each window once, in the order of a keyed permutation that is
computed, not stored: sample s of the endless run is window π_e(s mod n) of epoch e = s div n. So the loader's only
state is the number of samples served, and a step sees the same samples whatever the number of processes and the
micro-batch.

Shapes: B samples, T tokens of context.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from typing import Protocol

import numpy as np

from storage.errors import EmptyOutput
from storage.shards.arrays import Int64, UInt64
from storage.shards.token_stream import Ranges, Stretches
from tasks.pretrain.loader.batch import Batch
from tasks.pretrain.loader.packing import PackedWindows
from tasks.pretrain.loader.permutation import permute

CHUNK = np.uint64(1024)  # samples whose order is computed together, at hardly more than the cost of one
ALL = "all"  # sources, in natural proportions
SUMMED = 1 << 14  # samples whose padding is summed together


class Windows(Protocol):
    """How a stream is divided into `count` windows, each a sample. An epoch serves them in `tiers`, numbers of windows
    that are shuffled among themselves."""

    stream: Stretches
    context: int
    count: int
    tiers: tuple[int, ...]

    def require_one(self, name: str) -> None:
        """Raises EmptyOutput for a stream without a whole window. `name` is the stream's."""

    def read_into(self, row: Int64, window: int) -> None:
        """Fill `row` with the T + 1 tokens of a window."""

    def holding(self, ranges: Ranges) -> Int64:
        """The windows, ascending, with a token of these ranges of the stream."""


class StreamWindows:
    """The stream cut every T tokens."""

    def __init__(self, stream: Stretches, context: int) -> None:
        self.stream, self.context = stream, context
        self.count = max(0, stream.tokens - 1) // context
        self.tiers: tuple[int, ...] = (self.count,)

    def require_one(self, name: str) -> None:
        if self.count < 1:
            raise EmptyOutput(
                f"{name} has {self.stream.tokens:,} tokens: less than one window of {self.context:,} and its target.",
                "Add documents, or lower model.context.",
            )

    def read_into(self, row: Int64, window: int) -> None:
        self.stream.read_into(row, window * self.context)

    def holding(self, ranges: Ranges) -> Int64:
        # The first token of a window is the last target of the window before it
        first = np.maximum(ranges.starts - 1, 0) // self.context
        last = np.minimum((ranges.ends - 1) // self.context, self.count - 1)
        sizes = np.maximum(last - first + 1, 0)
        return np.unique(np.repeat(first - np.cumsum(sizes) + sizes, sizes) + np.arange(sizes.sum()))


class ShuffledWindows:
    """Shuffled windows, epoch after epoch. Raises EmptyOutput as `require_one` does."""

    def __init__(self, windows: Windows, *, key: str, name: str) -> None:
        windows.require_one(name)
        self.windows, self.key, self.count = windows, key, windows.count
        windows.stream.expect_random_reads()

    def order(self, served: UInt64) -> Int64:
        """The window of each of these samples of the stream."""
        chunks = served // CHUNK
        windows = np.empty(len(served), np.int64)
        for chunk in np.unique(chunks).tolist():
            inside = chunks == chunk
            windows[inside] = _chunk(chunk, self.windows.tiers, self.key)[served[inside] % CHUNK]
        return windows

    def read_into(self, row: Int64, window: int) -> None:
        """Fill `row` with the T + 1 tokens of a window."""
        self.windows.read_into(row, window)

    def serving(self, windows: Int64, served: int) -> Iterator[tuple[int, Int64]]:
        """For each epoch among the first `served` samples: its number, and the samples that are these windows. The
        inverse of `order`."""
        tiers = self.windows.tiers
        ends = np.cumsum(tiers)
        tier_of = np.searchsorted(ends, windows, side="right")
        for epoch in range(-(-served // self.count)):
            places = np.empty(len(windows), np.int64)
            for tier in np.unique(tier_of).tolist():
                mine, first = tier_of == tier, ends[tier] - tiers[tier]
                inside = (windows[mine] - first).astype(np.uint64)
                key = _key(self.key, epoch, tier)
                places[mine] = first + permute(inside, tiers[tier], key, inverse=True).astype(np.int64)
            samples = epoch * self.count + places
            yield epoch, np.sort(samples[samples < served])

    def report(self, source: str, served: int) -> dict[str, object]:
        """The use of the windows by the first `served` samples, as a row of a table, with padding if packed."""
        row = {"source": source, "windows": self.count, "served": served, "epochs": round(served / self.count, 4)}
        if isinstance(self.windows, PackedWindows):
            row["padding"] = self._padding(self.windows.packing.padding(), served)
        return row

    def _padding(self, padding_W: Int64, served: int) -> int:
        epochs, rest = divmod(served, self.count)
        begun = range(0, rest, SUMMED)
        first = epochs * self.count
        parts = (np.arange(first + start, first + min(start + SUMMED, rest), dtype=np.uint64) for start in begun)
        return epochs * int(padding_W.sum()) + sum(int(padding_W[self.order(part)].sum()) for part in parts)


@functools.lru_cache(maxsize=1024)  # 8 MB. A batch has samples of one chunk of each source
def _chunk(chunk: int, tiers: tuple[int, ...], key: str) -> Int64:
    """The windows of samples chunk · CHUNK to (chunk + 1) · CHUNK of a stream whose windows are in these tiers."""
    samples = np.arange(chunk * int(CHUNK), (chunk + 1) * int(CHUNK), dtype=np.uint64)
    ends = np.cumsum(tiers, dtype=np.uint64)
    epochs, places = np.divmod(samples, ends[-1])
    tier_of = np.searchsorted(ends, places, side="right")
    windows = np.empty(len(samples), np.int64)
    for epoch, tier in np.unique(np.stack((epochs.astype(np.int64), tier_of)), axis=1).T.tolist():
        mine, size = (epochs == epoch) & (tier_of == tier), tiers[tier]
        first = ends[tier] - np.uint64(size)
        windows[mine] = first + permute(places[mine] - first, size, _key(key, epoch, tier))
    return windows


def _key(key: str, epoch: int, tier: int) -> str:
    return f"{key} {epoch} {tier}" if tier else f"{key} {epoch}"


class WindowLoader:
    """Windows of the whole split: documents in the order of the shards, sources in natural proportions."""

    def __init__(self, windows: Windows, *, seed: int) -> None:
        self.context = windows.context
        self._shuffled = ShuffledWindows(windows, key=f"{seed}", name="The training split")
        self.windows = self._shuffled.count
        self.taken: dict[str, Windows] = {ALL: windows}

    def served(self, samples: int) -> dict[str, int]:
        """All of the first `samples` of the run."""
        return {ALL: samples}

    def report(self, samples: int) -> list[dict[str, object]]:
        """The use of the windows by the first `samples` of the run, as a row of a table."""
        return [self._shuffled.report(ALL, samples)]

    def serving(self, ranges: Mapping[str, Ranges], samples: int) -> Iterator[tuple[int, Int64]]:
        """For each epoch among the first `samples` of the run: its number, and the samples with a token of these
        ranges of the stream, by source."""
        for name, found in ranges.items():
            yield from self._shuffled.serving(self.taken[name].holding(found), samples)

    def batch(self, first: int, count: int) -> Batch:
        """Samples `first` to `first + count` of the run."""
        rows = np.empty((count, self.context + 1), np.int64)
        windows = self._shuffled.order(np.arange(first, first + count, dtype=np.uint64))
        for row, window in zip(rows, windows.tolist(), strict=True):
            self._shuffled.read_into(row, window)
        return Batch(rows[:, :-1], rows[:, 1:])
