"""Open-addressing hash tables with linear probing (Knuth 1998, section 6.4), compiled by numba.

The caller defines keys, hashes and what marks a free row. At least one row must be free, or a search never ends. Rows
are never deleted, so a search can stop at the first free one.
"""

from __future__ import annotations

import numpy as np
from numba import njit

HALF = np.uint64(32)
NO_KEY = np.uint64(0)


@njit(cache=True, nogil=True, inline="always")
def probe(rows, start, end, row, key, free):
    """The row of `key` in `rows[start:end]`, searching from `row`, or the free row where it would go.

    Column 0 holds the keys; it is `free` in a free row.
    """
    while rows[row, 0] != key and rows[row, 0] != free:
        row += 1
        if row == end:
            row = start
    return row


@njit(cache=True, nogil=True, inline="always")
def locate(table, start, size, key):
    """`probe` for keys that are 64-bit hashes, in `size` rows from `start` on; 0 marks a free row."""
    # Multiply and shift maps the upper 32 bits to 0 … size - 1 without a division, for any size (Lemire 2019,
    # "Fast random integer generation in an interval")
    row = start + np.int64(((key >> HALF) * np.uint64(size)) >> HALF)
    return probe(table, start, start + size, row, key, NO_KEY)


@njit(cache=True, nogil=True, inline="always")
def free_row(rows, row, column):
    """The first free row from `row` on, of 2**k rows; a free row has 0 in `column`. For keys known to be absent."""
    while rows[row, column] != 0:
        row = (row + 1) & (len(rows) - 1)
    return row
