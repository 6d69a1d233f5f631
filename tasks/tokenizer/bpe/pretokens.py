"""Distinct pre-tokens with their counts: all that BPE training needs to know about a corpus.

Each shard is counted separately, then the counts are summed. Words are sorted by their bytes, so the result does not
depend on order, shards or workers. Text goes from Arrow's buffers to a hash table without creating Python objects.

Memory: twice the bytes of the distinct words, and at most 192 bytes per word while the table grows; when shards are
summed, that for the sum and one shard. It grows with the number of distinct words, not with the text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from storage.shards.arrays import Int64, UInt8
from tasks.tokenizer.bpe.count_kernels import LENGTH, PLACE, TIMES, count_words, rehash_words

T = TypeVar("T")
Pieces = tuple[UInt8, Int64, Int64]  # data, starts, ends
ROWS, LETTERS = 1 << 12, 1 << 16  # initial size of a table


class Pretokens(NamedTuple):
    """W distinct words sorted by their bytes: word i is `words[ends[i - 1]:ends[i]]`, seen `counts[i]` times."""

    words: UInt8
    ends: Int64
    counts: Int64

    def save(self, path: Path) -> None:
        """Write to a file, whose name must end in .npz."""
        np.savez(path, **self._asdict())

    @staticmethod
    def load(path: Path) -> Pretokens:
        """Read a file written by `save`."""
        with np.load(path) as file:
            return Pretokens(file["words"], file["ends"], file["counts"])


def count_pretokens(splitter: Callable[[T], Pieces], texts: Iterable[T]) -> Pretokens:
    """Count the pieces into which `splitter` cuts each portion of text: piece i is `data[starts[i]:ends[i]]`."""
    table = _Table()
    for portion in texts:
        data, starts, ends = splitter(portion)
        table.add(data, starts, ends, np.ones(len(starts), np.int64))
    return table.sorted()


def merge_pretokens(parts: Iterable[Pretokens]) -> Pretokens:
    """The summed counts of several shards, with one of them in memory at a time."""
    table = _Table()
    for words, ends, counts in parts:
        table.add(words, np.concatenate([np.zeros(1, np.int64), ends])[:-1], ends, counts)
    return table.sorted()


class _Table:
    """A hash table of words, and the words' bytes, concatenated in order of first occurrence."""

    def __init__(self) -> None:
        self._rows = np.zeros((ROWS, 4), np.int64)
        self._letters = np.empty(LETTERS, np.uint8)
        self._used = np.zeros(2, np.int64)

    def add(self, data: UInt8, starts: Int64, ends: Int64, times: Int64) -> None:
        """Add `times[i]` to the count of piece i, for each i."""
        data = data.view()
        data.setflags(write=False)  # like Arrow's buffers, so that numba compiles for one type only
        done = 0
        while (done := count_words(data, starts, ends, times, done, self._rows, self._letters, self._used)) < len(ends):
            words, letters = self._used.tolist()
            if 2 * words >= len(self._rows):
                rows = np.zeros((2 * len(self._rows), 4), np.int64)
                rehash_words(self._rows, rows)
                self._rows = rows
            needed = letters + int(ends[done] - starts[done])
            if needed > len(self._letters):
                longer = np.empty(max(needed, 2 * len(self._letters)), np.uint8)
                longer[:letters] = self._letters[:letters]
                self._letters = longer

    def sorted(self) -> Pretokens:
        """All words with their counts, sorted by bytes."""
        rows = self._rows[self._rows[:, TIMES] > 0]
        rows = rows[np.argsort(rows[:, PLACE])]
        offsets = np.append(0, np.cumsum(rows[:, LENGTH]))
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(self._letters)]
        words = pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(rows), buffers)
        order = pc.array_sort_indices(words)
        _, ends, letters = words.take(order).buffers()
        return Pretokens(
            np.frombuffer(letters or b"", np.uint8, offsets[-1]),
            np.frombuffer(ends, np.int64, len(rows), offsets.itemsize),
            rows[order.to_numpy(), TIMES],
        )
