"""Which conversations are in which row of which micro-batch.

A step takes a whole global batch, and its loss is a mean over all its supervised tokens, in whichever rows they are. So
how conversations share rows changes a step only by the rounding of sums, and is a runtime setting. When packed, rows
hold several conversations, in as few micro-batches as possible. Rows are as long as the longest conversation of the
step, or as the context allows, whichever needs less padding, and of about the same length.

A place is a position in the order of training (batches.py), so it says in which step a conversation comes.
"""

from __future__ import annotations

import bisect
import heapq
from collections.abc import Iterable, Sequence
from typing import NamedTuple

Row = tuple[int, ...]  # the places of the conversations in it
MicroBatch = list[Row]


class Layout(NamedTuple):
    """The micro-batches of a run in the order of steps, `micro_steps` × `processes` for each step. Process number p
    takes micro-batches p, p + `processes`, p + 2 × `processes`, and so on."""

    batches: list[MicroBatch]
    micro_steps: int
    processes: int

    def of_process(self, process: int) -> list[MicroBatch]:
        """The micro-batches of one process."""
        return self.batches[process :: self.processes]

    def of_steps(self, begin: int, end: int) -> list[MicroBatch]:
        """The micro-batches of the steps from `begin` up to but not including `end`, over all processes."""
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
    conversations in the order of training, whose number is a multiple of the global batch.

    Every step has the same number of micro-batches, as the trainer and its engines need, each with at least one row.
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
        candidates = []
        for kept, capacity in (*possible, (rows, context)):
            level = _level_rows(places, lengths, max(len(kept), count), capacity) or _at_least(count, kept)
            candidates.append(_share_out(level, count, lengths))
        batches += min(candidates, key=lambda candidate: tokens_and_places(candidate, lengths)[1])
    return Layout(batches, micro_steps, processes)


def tokens_and_places(batches: Iterable[MicroBatch], lengths: Sequence[int]) -> tuple[int, int]:
    """The tokens of the conversations in micro-batches, and the same with padding."""
    tokens = places = 0
    for batch in batches:
        rows = [sum(lengths[place] for place in row) for row in batch]
        tokens += sum(rows)
        places += max(rows) * len(rows)
    return tokens, places


def _best_fit(places: Iterable[int], lengths: Sequence[int], capacity: int) -> list[list[int]]:
    """Few rows of up to `capacity` tokens: the longest conversations first, each in the fullest row that has room."""
    rows: list[list[int]] = []
    room: list[tuple[int, int]] = []  # sorted: tokens left in a row, and its number
    for place in sorted(places, key=lambda place: -lengths[place]):
        index = bisect.bisect_left(room, (lengths[place], 0))
        left, number = room.pop(index) if index < len(room) else (capacity, len(rows))
        if number == len(rows):
            rows.append([])
        rows[number].append(place)
        bisect.insort(room, (left - lengths[place], number))
    return rows


def _level_rows(places: Iterable[int], lengths: Sequence[int], count: int, capacity: int) -> list[list[int]] | None:
    """`count` rows of about equal length: the longest conversations first, each in the shortest row. None if a row
    would exceed `capacity` tokens."""
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
    """The rows, with those of most conversations halved until they are `count`."""
    rows = list(rows)
    while len(rows) < count:
        most = max(range(len(rows)), key=lambda number: len(rows[number]))
        rows.append(rows[most][::2])
        rows[most] = rows[most][1::2]
    return rows


def _share_out(rows: list[list[int]], count: int, lengths: Sequence[int]) -> list[MicroBatch]:
    """The rows in `count` micro-batches, as evenly as possible. Rows of similar length are together."""
    in_order = [tuple(row) for row in sorted(rows, key=lambda row: -sum(lengths[place] for place in row))]
    return [in_order[len(rows) * number // count : len(rows) * (number + 1) // count] for number in range(count)]
