"""The priority queue of pairs to merge, compiled by numba: a binary heap (Knuth 1998, section 5.2.3) of the frequent
pairs, and an unordered array of the rest, which is sorted into the heap only when the heap is empty."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from storage.shards.arrays import Int64

COUNT, PAIR, FIRST, PLACES = range(4)  # columns of the queue


class Queue(NamedTuple):
    """Rows of (count, pair, index of its first position, number of positions). Rows with a count of at least `limit`
    form the heap; the others wait in `rest`, most of them for ever. `sizes` are the rows in use in heap and rest."""

    heap: Int64
    rest: Int64
    sizes: Int64
    limit: Int64


@njit(cache=True, nogil=True, inline="always")
def precedes(count, pair, row):
    """Whether (count, pair) comes before a row: the higher count, then the smaller pair."""
    return count > row[COUNT] or (count == row[COUNT] and pair < row[PAIR])


@njit(cache=True, nogil=True, inline="always")
def set_row(rows, i, count, pair, first, places):
    """Write a row, column by column: numba compiles this in a tenth of the time that slices take."""
    rows[i, COUNT], rows[i, PAIR], rows[i, FIRST], rows[i, PLACES] = count, pair, first, places


@njit(cache=True, nogil=True)
def copy_row(rows, i, source, k):
    """Copy row k of `source` to row i."""
    set_row(rows, i, source[k, COUNT], source[k, PAIR], source[k, FIRST], source[k, PLACES])


@njit(cache=True, nogil=True)
def longer(rows):
    """A copy of twice the length."""
    copy = np.empty((2 * len(rows), 4), np.int64)
    for i in range(len(rows)):
        copy_row(copy, i, rows, i)
    return copy


@njit(cache=True, nogil=True)
def push(queue, count, pair, first, places):
    """The queue with one row added. Its arrays are replaced by longer ones when full."""
    heap, rest, sizes, limit = queue
    if count < limit[0]:
        if sizes[1] == len(rest):
            rest = longer(rest)
        set_row(rest, sizes[1], count, pair, first, places)
        sizes[1] += 1
        return Queue(heap, rest, sizes, limit)
    if sizes[0] == len(heap):
        heap = longer(heap)
    # Sift up: move parents down until the new row's place is found
    i = sizes[0]
    while i > 0 and precedes(count, pair, heap[(i - 1) // 2]):
        copy_row(heap, i, heap, (i - 1) // 2)
        i = (i - 1) // 2
    set_row(heap, i, count, pair, first, places)
    sizes[0] += 1
    return Queue(heap, rest, sizes, limit)


@njit(cache=True, nogil=True)
def drop_first(queue):
    """Remove the first row of the heap."""
    # Sift down: the last row takes the place of the first, and the greater child moves up until it fits
    heap, sizes = queue.heap, queue.sizes
    sizes[0] -= 1
    last = sizes[0]
    i = 0
    while 2 * i + 1 < last:
        child = 2 * i + 1
        if child + 1 < last and precedes(heap[child + 1, COUNT], heap[child + 1, PAIR], heap[child]):
            child += 1
        if not precedes(heap[child, COUNT], heap[child, PAIR], heap[last]):
            break
        copy_row(heap, i, heap, child)
        i = child
    copy_row(heap, i, heap, last)


@njit(cache=True, nogil=True)
def refill(queue):
    """The queue, whose heap is empty, with the most frequent of the rest moved into the heap: rows with at least a
    quarter of the highest count. So each pass over the rest lowers the limit by a factor of four."""
    rest, left = queue.rest, queue.sizes[1]
    greatest = 0
    for i in range(left):
        greatest = max(greatest, rest[i, COUNT])
    queue.limit[0] = greatest // 4
    # Pushed again, rows that stay move down in place: a row is never written beyond where it was read
    queue.sizes[1] = 0
    for i in range(left):
        queue = push(queue, rest[i, COUNT], rest[i, PAIR], rest[i, FIRST], rest[i, PLACES])
    return queue
