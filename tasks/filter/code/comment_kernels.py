"""Comments in source code, counted in one pass that is compiled by numba. See `comments.py`."""

from __future__ import annotations

import numpy as np
from numba import njit

from tasks.filter.code.comments import HASHES, QUOTES, SLASHES, SPACED, TICKS, TRIPLE


@njit(cache=True, nogil=True, inline="always")
def _line_end(data, i, stop):
    while i < stop and data[i] != 10:
        i += 1
    return i


@njit(cache=True, nogil=True)
def _string_end(data, i, stop, marks, lines):
    """The end of the string that `marks` quotes open at `i`. Unless it may span `lines`, it ends with its line."""
    quote = data[i]
    i += marks
    while i < stop:
        b = data[i]
        if b == 92:
            i += 2
            continue
        if b == 10 and not lines:
            return i
        if b == quote and (marks == 1 or (i + 2 < stop and data[i + 1] == quote and data[i + 2] == quote)):
            return i + marks
        i += 1
    return stop


@njit(cache=True, nogil=True)
def _is_first(data, start, i):
    """Whether only white space and a string's prefix come before `i` in its line."""
    if i > start and data[i - 1] | 32 in (114, 117):  # r, u
        i -= 1
    while i > start and (data[i - 1] == 32 or data[i - 1] == 9):
        i -= 1
    return i == start or data[i - 1] == 10


@njit(cache=True, nogil=True)
def _next(data, start, i, stop, family):
    """(end, whether it is a comment) of the piece that begins at `i`."""
    b = data[i]
    following = data[i + 1] if i + 1 < stop else np.uint8(0)
    if family & SLASHES and b == 47:
        if following == 47:
            return _line_end(data, i, stop), True
        if following == 42:
            i += 2
            while i < stop and not (data[i] == 42 and i + 1 < stop and data[i + 1] == 47):
                i += 1
            return min(stop, i + 2), True
    behind = not family & SPACED or i == start or data[i - 1] in (9, 10, 32)
    if family & HASHES and b == 35 and behind:
        return _line_end(data, i, stop), True
    if b == 34 or (family & QUOTES and b == 39):
        if family & TRIPLE and following == b and i + 2 < stop and data[i + 2] == b:
            return _string_end(data, i, stop, 3, True), _is_first(data, start, i)
        return _string_end(data, i, stop, 1, False), False
    if family & TICKS and b == 96:
        return _string_end(data, i, stop, 1, True), False
    return i + 1, False


@njit(cache=True, nogil=True)
def count_comments(data, offsets, families, characters):
    """Write the characters in comments of D texts `data[offsets[d]:offsets[d + 1]]`, by their languages' families."""
    for d in range(len(families)):
        start, stop = offsets[d], offsets[d + 1]
        i = start
        while i < stop and families[d]:
            end, comment = _next(data, start, i, stop, families[d])
            if comment:
                for place in range(i, end):
                    characters[d] += (data[place] & 0xC0) != 0x80
            i = end
