"""Which conversations lie in which row of which micro-batch.

A step takes a whole global batch, and its loss is a mean over all supervised tokens of that, wherever they lie. So how
conversations share rows changes a step by the rounding of sums alone, and is a matter of the runtime. Packed, several
lie in one row, in as few micro-batches as hold them. Rows are as long as the longest conversation of the step, or as
the context allows, whichever has less padding, and of about the same length.

Places are those in the order of training (batches.py), so they say which conversation comes in which step.
"""

from __future__ import annotations

import bisect
import heapq
from collections.abc import Iterable, Sequence
from typing import NamedTuple

Row = tuple[int, ...]  # the places of the conversations in it
MicroBatch = list[Row]


class Layout(NamedTuple):
    """The micro-batches of a run in the order of steps, `micro_steps` × processes a step; each process takes every
    processes-th of them."""

    batches: list[MicroBatch]
    micro_steps: int
    processes: int

    def of_process(self, process: int) -> list[MicroBatch]:
        """The micro-batches that one process works through."""
        return self.batches[process :: self.processes]

    def of_steps(self, begin: int, end: int) -> list[MicroBatch]:
        """Those of the steps from `begin` until before `end`, over all processes."""
        a_step = self.micro_steps * self.processes
        return self.batches[begin * a_step : end * a_step]


def padded(samples: int, micro_batch: int, micro_steps: int, processes: int) -> Layout:
    """A row for each conversation, in the order of training."""
    batches: list[MicroBatch] = [
        [(place,) for place in range(start, start + micro_batch)] for start in range(0, samples, micro_batch)
    ]
    return Layout(batches, micro_steps, processes)


def packed(lengths: Sequence[int], global_batch: int, context: int, micro_batch: int, processes: int) -> Layout:
    """Rows of up to `context` tokens, at most `micro_batch` of them in a micro-batch. `lengths` are those of the
    conversations in the order of training, a multiple of the global batch.

    Every step has equally many micro-batches, as the trainer and its engines ask for, each of at least one row.
    """
    steps = [range(start, start + global_batch) for start in range(0, len(lengths), global_batch)]
    fullest = [_best_fit(places, lengths, context) for places in steps]
    micro_steps = -(-max(map(len, fullest)) // (micro_batch * processes))
    count = micro_steps * processes
    batches: list[MicroBatch] = []
    for places, rows in zip(steps, fullest, strict=True):
        longest = max(lengths[place] for place in places)
        short = _best_fit(places, lengths, longest)
        possible = [(short, longest)] if len(short) <= count * micro_batch else []
        found = []
        for kept, capacity in (*possible, (rows, context)):
            level = _levelled(places, lengths, max(len(kept), count), capacity) or _at_least(count, kept)
            found.append(_shared(level, count, lengths))
        batches += min(found, key=lambda made: tokens_and_places(made, lengths)[1])
    return Layout(batches, micro_steps, processes)


def tokens_and_places(batches: Iterable[MicroBatch], lengths: Sequence[int]) -> tuple[int, int]:
    """The tokens of conversations in micro-batches, and the places there are, padding included."""
    tokens = places = 0
    for batch in batches:
        rows = [sum(lengths[place] for place in row) for row in batch]
        tokens += sum(rows)
        places += max(rows) * len(rows)
    return tokens, places


def _best_fit(places: Iterable[int], lengths: Sequence[int], capacity: int) -> list[list[int]]:
    """Few rows of up to `capacity` tokens: the longest conversations first, each in the fullest row that has room."""
    rows: list[list[int]] = []
    room: list[tuple[int, int]] = []  # left in a row, and its number; in order
    for place in sorted(places, key=lambda place: -lengths[place]):
        found = bisect.bisect_left(room, (lengths[place], 0))
        left, number = room.pop(found) if found < len(room) else (capacity, len(rows))
        if number == len(rows):
            rows.append([])
        rows[number].append(place)
        bisect.insort(room, (left - lengths[place], number))
    return rows


def _levelled(places: Iterable[int], lengths: Sequence[int], count: int, capacity: int) -> list[list[int]] | None:
    """So many rows of about equal length: the longest conversations first, each in the shortest row. None where a row
    would have more than `capacity` tokens."""
    rows: list[list[int]] = [[] for _ in range(count)]
    filled = [(0, number) for number in range(count)]
    for place in sorted(places, key=lambda place: -lengths[place]):
        tokens, number = filled[0]
        if tokens + lengths[place] > capacity:
            return None
        rows[number].append(place)
        heapq.heapreplace(filled, (tokens + lengths[place], number))
    return rows


def _at_least(count: int, rows: list[list[int]]) -> list[list[int]]:
    """The rows, of which the fullest were halved until there are `count`."""
    rows = list(rows)
    while len(rows) < count:
        most = max(range(len(rows)), key=lambda number: len(rows[number]))
        rows.append(rows[most][::2])
        rows[most] = rows[most][1::2]
    return rows


def _shared(rows: list[list[int]], count: int, lengths: Sequence[int]) -> list[MicroBatch]:
    """The rows in so many micro-batches, as evenly as can be; those of like length lie together."""
    in_order = [tuple(row) for row in sorted(rows, key=lambda row: -sum(lengths[place] for place in row))]
    return [in_order[len(rows) * number // count : len(rows) * (number + 1) // count] for number in range(count)]
