"""Lines, classes of characters and encoded data of source code in one pass, compiled by numba.

Encoded data is as StarCoder 2 defines it (Lozhkov et al. 2024):

- runs of at least 64 characters of base64, line ends counted
- at least 8 pairs of hexadecimal digits, bare or after 0x or \\x, between commas and white space
- at least 8 escapes \\uXXXX
"""

from __future__ import annotations

import numpy as np
from numba import njit

from storage.shards.arrays import Int64, UInt8
from tasks.text.kernels import code_point

ALPHABETIC, NUMERIC, SPACE, BREAK = 1, 2, 4, 8  # classes of characters
BASE64, HEX, NUMBER, GAP, WORD = 1, 2, 4, 8, 16  # classes of bytes
CHARACTERS, LINES, LONGEST, LETTERS, ALPHANUMERIC, WHITE, ENCODED, LONGEST_ENCODED, NUMBERS, IN_LINES = range(10)
FIELDS = 10
LEAST_BASE64, LEAST_UNITS = 64, 8


@njit(cache=True, nogil=True)
def count(data: UInt8, offsets: Int64, characters: UInt8, bytes_: UInt8, rows: Int64) -> None:
    """Measure D texts `data[offsets[d]:offsets[d + 1]]` into `rows` (D, FIELDS).

    Lines end where `str.splitlines` ends them. Lengths are in characters, without the line end. Encoded data is ASCII,
    so its bytes are characters.
    """
    for d in range(len(offsets) - 1):
        _lines(data, offsets[d], offsets[d + 1], characters, bytes_, rows[d])
        _encoded(data, offsets[d], offsets[d + 1], bytes_, rows[d])


@njit(cache=True, nogil=True)
def _lines(data, start, stop, characters, bytes_, row):
    i, length, digits, numeric = start, 0, 0, True
    beyond = len(characters)
    while i < stop:
        c, used = code_point(data, i, stop)
        kind = characters[c] if c < beyond else 0
        row[CHARACTERS] += 1
        row[LETTERS] += (kind & ALPHABETIC) != 0
        row[ALPHANUMERIC] += (kind & NUMERIC) != 0
        row[WHITE] += (kind & SPACE) != 0
        if kind & BREAK:
            # \r\n is one line end
            if c == 13 and i + 1 < stop and data[i + 1] == 10:
                row[CHARACTERS] += 1
                row[WHITE] += 1
                used = 2
            _end_line(row, length, digits, numeric)
            length, digits, numeric = 0, 0, True
        else:
            length += 1
            numeric = numeric and c < 128 and (bytes_[c] & NUMBER) != 0
            digits += 48 <= c <= 57
        i += used
    if length:
        _end_line(row, length, digits, numeric)


@njit(cache=True, nogil=True, inline="always")
def _end_line(row, length, digits, numeric):
    row[LINES] += 1
    row[IN_LINES] += length
    row[LONGEST] = max(row[LONGEST], length)
    if numeric and digits:
        row[NUMBERS] += length


@njit(cache=True, nogil=True)
def _encoded(data, start, stop, bytes_, row):
    covered = start  # everything before is counted
    base64 = start  # where the run of base64 began
    i = start
    while i <= stop:
        if i == stop or not bytes_[data[i]] & BASE64:
            if i - base64 >= LEAST_BASE64:
                covered = _found(row, base64, i, covered)
            base64 = i + 1
        i += 1
    i = start
    covered_pairs = covered_escapes = start
    while i < stop:
        b = data[i]
        if b == 92 and i + 1 < stop and data[i + 1] == 117:  # \u
            units, end = 0, i
            while _escape(data, end, stop, bytes_):
                end += 6
                units += 1
            if units >= LEAST_UNITS:
                covered_escapes = _found(row, i, end, covered_escapes)
            i = max(end, i + 2)
        elif (bytes_[b] & HEX and not (i > start and bytes_[data[i - 1]] & WORD)) or b == 92:
            units, end = _pairs(data, i, stop, bytes_)
            if units >= LEAST_UNITS:
                covered_pairs = _found(row, i, end, covered_pairs)
            i = max(end, i + 1)
        else:
            i += 1


@njit(cache=True, nogil=True, inline="always")
def _found(row, begin, end, covered):
    row[ENCODED] += end - max(begin, covered)
    row[LONGEST_ENCODED] = max(row[LONGEST_ENCODED], end - begin)
    return end


@njit(cache=True, nogil=True, inline="always")
def _escape(data, i, stop, bytes_):
    if i + 6 > stop or data[i] != 92 or data[i + 1] != 117:
        return False
    every = HEX
    for k in range(2, 6):
        every &= bytes_[data[i + k]]
    return every != 0


@njit(cache=True, nogil=True, inline="always")
def _pairs(data, i, stop, bytes_):
    """(number of pairs, index after the last of them) from `i` on."""
    units, end = 0, i
    while True:
        k = i
        escaped = k + 1 < stop and data[k] == 92 and data[k + 1] == 120  # \x
        if escaped or (k + 1 < stop and data[k] == 48 and data[k + 1] == 120):  # 0x
            k += 2
        if k + 2 > stop or not bytes_[data[k]] & HEX or not bytes_[data[k + 1]] & HEX:
            return units, end
        k += 2
        if k < stop and bytes_[data[k]] & WORD:
            return units, end
        units += 1
        end = k
        while k < stop and bytes_[data[k]] & GAP:
            k += 1
        if k == end and not (k < stop and data[k] == 92):
            return units, end
        i = k


def byte_classes() -> UInt8:
    """The classes of the 256 bytes."""
    table = np.zeros(256, np.uint8)
    letters = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
    digits = b"0123456789"
    for kind, members in (
        (BASE64, letters + digits + b"+/=\n"),
        (HEX, digits + b"abcdefABCDEF"),
        (NUMBER, digits + b"+-.,;:eE \t()[]{}"),
        (GAP, b", \t\r\n"),
        (WORD, letters + digits + b"_"),
    ):
        table[list(members)] |= kind
    return table
