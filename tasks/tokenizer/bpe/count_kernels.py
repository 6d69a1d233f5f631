"""Counting pre-tokens, compiled by numba: a hash table with linear probing (Knuth 1998, section 6.4) whose keys are
compared byte by byte, so no hash collision can merge two words."""

from __future__ import annotations

import numpy as np
from numba import njit

from tasks.text.kernels import FNV_OFFSET, fnv, mix64, same_bytes
from tasks.text.table_kernels import free_row

HASH, PLACE, LENGTH, TIMES = range(4)  # columns of the table; TIMES is 0 in a free row


@njit(cache=True, nogil=True)
def count_words(data, starts, ends, times, begin, rows, letters, used):
    """Add the words `data[starts[i]:ends[i]]` for i ≥ `begin` to the table, each `times[i]` times.

    Stops when the table is half full or `letters` is full. Returns the index of the first word that was not added.
    `used` holds the numbers of words in `rows` and of bytes in `letters`.
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
        # The hash and the length are compared first: the bytes are read for a match only
        slot = h & mask
        while rows[slot, TIMES] != 0 and not (
            rows[slot, HASH] == np.int64(h)
            and rows[slot, LENGTH] == length
            and same_bytes(letters, rows[slot, PLACE], data, first, length)
        ):
            slot = (slot + np.uint64(1)) & mask
        if rows[slot, TIMES] == 0:  # a new word: copy its bytes
            rows[slot, HASH], rows[slot, PLACE], rows[slot, LENGTH] = np.int64(h), used[1], length
            for k in range(length):
                letters[used[1] + k] = data[first + k]
            used[0] += 1
            used[1] += length
        rows[slot, TIMES] += times[i]
    return len(starts)


@njit(cache=True, nogil=True)
def rehash_words(rows, target):
    """Insert the table's words into a larger, empty one. They are distinct, so any free row will do."""
    for i in range(len(rows)):
        if rows[i, TIMES] != 0:
            slot = free_row(target, rows[i, HASH] & (len(target) - 1), TIMES)
            for k in range(4):  # numba compiles this in a tenth of the time that slices take
                target[slot, k] = rows[i, k]
