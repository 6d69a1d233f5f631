"""The hot loop of counting, compiled by numba: pre-tokens to a table of the distinct ones, compared byte by byte."""

from __future__ import annotations

import numpy as np
from numba import njit

from tasks.text.kernels import FNV_OFFSET, fnv, mix64, same_bytes
from tasks.text.table_kernels import free_row

HASH, PLACE, LENGTH, TIMES = range(4)  # columns of the table; a free row was seen no time


@njit(cache=True, nogil=True)
def count_words(data, starts, ends, times, begin, rows, letters, used):
    """Add the words `data[starts[i]:ends[i]]`, from `begin` on, to the table, each `times[i]` times.

    Ends early when the table is half full or `letters` has no room: the number of the first word not added. `used` is
    (words, letters).
    """
    mask = np.uint64(len(rows) - 1)
    for i in range(begin, len(starts)):
        first, end = starts[i], ends[i]
        length = end - first
        if 2 * used[0] >= len(rows) or used[1] + length > len(letters):
            return i
        h = FNV_OFFSET
        for k in range(first, end):
            h = fnv(h, data[k])
        h = mix64(h)
        slot = h & mask
        while rows[slot, TIMES] != 0 and not (
            rows[slot, HASH] == np.int64(h)
            and rows[slot, LENGTH] == length
            and same_bytes(letters, rows[slot, PLACE], data, first, length)
        ):
            slot = (slot + np.uint64(1)) & mask
        if rows[slot, TIMES] == 0:
            rows[slot, HASH], rows[slot, PLACE], rows[slot, LENGTH] = np.int64(h), used[1], length
            for k in range(length):
                letters[used[1] + k] = data[first + k]
            used[0] += 1
            used[1] += length
        rows[slot, TIMES] += times[i]
    return len(starts)


@njit(cache=True, nogil=True)
def rehash_words(rows, target):
    """The table's words into a larger, empty one."""
    for i in range(len(rows)):
        if rows[i, TIMES] != 0:
            slot = free_row(target, rows[i, HASH] & (len(target) - 1), TIMES)
            for k in range(4):  # compiled in a tenth of the time that slices take
                target[slot, k] = rows[i, k]
