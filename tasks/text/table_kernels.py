"""Open-addressing tables with linear probing (Knuth 1998, section 6.4), compiled by numba.

What a key is, how it is hashed and what marks a free row is the caller's; there must always be a free one.
"""

from __future__ import annotations

import numpy as np
from numba import njit

HALF = np.uint64(32)
NO_KEY = np.uint64(0)


@njit(cache=True, nogil=True, inline="always")
def probe(rows, start, end, row, key, free):
    """The row of a key among those from `start` to `end`, looked for from `row` on, or the free one where it would go.

    The first column holds the keys, `free` in a free row.
    """
    while rows[row, 0] != key and rows[row, 0] != free:
        row += 1
        if row == end:
            row = start
    return row


@njit(cache=True, nogil=True, inline="always")
def locate(table, start, size, key):
    """`probe` for 64-bit hashes as keys, among `size` rows from `start` on: any number of them, and 0 in a free one."""
    row = start + np.int64(((key >> HALF) * np.uint64(size)) >> HALF)
    return probe(table, start, start + size, row, key, NO_KEY)


@njit(cache=True, nogil=True, inline="always")
def free_row(rows, row, column):
    """The first free row from `row` on, of 2**k rows; it has 0 in this column."""
    while rows[row, column] != 0:
        row = (row + 1) & (len(rows) - 1)
    return row
