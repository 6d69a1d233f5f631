"""The condition of a text, compiled by numba: defects to repair, characters in lines of text and in other lines.

One pass over the UTF-8 of the original text, since normalisation hides white space and takes the lines away. A line of
ASCII is counted a block at a time, by masks; each character of another line is looked up in a table of traits.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from storage.shards.arrays import Int64, UInt8, UInt32
from tasks.text.block_kernels import BLOCK, bars, blanks, colons, lowest, newlines, ones, unprintable, zeros
from tasks.text.characters import SIZE
from tasks.text.kernels import code_point

VISIBLE, BLANK, NEUTRAL, END, BAR, DEFECT, TRAIL = 1, 2, 4, 8, 16, 32, 64  # traits; condition.py says what they mean
LONG = 45  # characters other than white space that make a line one of text: a wrapped line has more, a menu entry fewer
LONGEST = 1000  # characters other than white space after which a line lacks a break
BARS = 3  # a line with at least this many of "|", "•", "›" is a row of links, however long
RETURN, COLON = 13, 58


@njit(cache=True, nogil=True, inline="always")
def misread(before, c, kind):
    """Whether two characters look like UTF-8 read as Windows-1252 or Latin-1: "Ã©", "â€", "Â°", "ï»", "ðŸ", "Ð¿"."""
    if kind & TRAIL == 0:
        return 0
    if before == 0xE2:  # â: General Punctuation, whose second byte is 80, or another of 81 to 86
        return np.int64(c == 0x20AC or 0x80 <= c <= 0x86 or c == 0x201A or c == 0x201E or c == 0x2020 or c == 0x2026)
    if before == 0xEF or before == 0xF0:  # ï»¿, ï¿½ and emoji
        return np.int64(c == 0xBB or c == 0xBF or c == 0x0178 or c == 0x9F)
    return np.int64(before in (0xC2, 0xC3, 0xC5, 0xD0, 0xD1))


@njit(cache=True, nogil=True, inline="always")
def line_end(data, i, last):
    """Where the line that begins at `i` ends, at the latest at `last`."""
    while i < last:
        skip = max(0, i + BLOCK - len(data))  # the last block of the data begins before the text that is left
        length = zeros(newlines(data, i - skip) >> np.uint64(skip))
        if length < BLOCK:
            return min(i + length, last)
        i += BLOCK
    return last


@njit(cache=True, nogil=True, inline="always")
def plain_line(data, i, end):
    """(whether it is plain, defects, characters, bars, colons before a blank) of a line. A plain line has only
    printable ASCII and tabs."""
    one, two = np.uint64(1), np.uint64(2)
    odd = np.uint64(0)
    visible = doubled = barred = parted = 0
    full_before = empty_before = stop_before = np.uint64(0)  # the last bits of the block before
    if end - i > 1 and data[end - 1] <= 32 and data[end - 2] > 32:
        doubled = 1
    while i < end:
        skip = max(0, i + BLOCK - len(data))
        skipped = np.uint64(skip)
        size = min(BLOCK - skip, end - i)
        taken = lowest(size)
        empty = (blanks(data, i - skip) >> skipped) & taken
        full = taken & ~empty
        odd |= (unprintable(data, i - skip) >> skipped) & taken
        stops = (colons(data, i - skip) >> skipped) & taken
        if visible == 0:
            stops &= ~(full & (~full + one))  # not the line's first character
        doubled += ones(empty & (empty << one | empty_before) & (full << two | full_before))
        parted += ones(empty & (stops << one | stop_before))
        visible += ones(full)
        barred += ones((bars(data, i - skip) >> skipped) & taken)
        full_before, empty_before, stop_before = full >> np.uint64(62), empty >> np.uint64(63), stops >> np.uint64(63)
        i += BLOCK
    return odd == 0, doubled, visible, barred, parted


@njit(cache=True, nogil=True)
def any_line(data, i, end, traits, weights):
    """(defects, characters, their weight, bars, colons before a blank, whether it ends a sentence) of any line."""
    defects = size = length = bars = colons = ends = 0
    run = 0  # blanks in a row, after the line's first character
    before = np.uint32(0)
    while i < end:
        c, used = code_point(data, i, end)
        i += used
        kind = np.int64(traits[c]) if c < SIZE else VISIBLE
        defects += np.int64(kind & DEFECT != 0) + misread(before, c, kind)
        size += kind & VISIBLE
        length += np.int64(weights[c]) if c < SIZE else 1
        bars += np.int64(kind & BAR != 0)
        ends = np.int64(kind & END != 0) | (ends & np.int64(kind & NEUTRAL != 0))
        run = run + 1 if kind & BLANK and size else 0
        defects += np.int64(run == 2)
        colons += np.int64(kind & BLANK != 0 and before == COLON and i < end)
        before = c
    return defects + np.int64(run == 1), size, length, bars, colons, ends


@njit(cache=True, nogil=True)
def examine(
    data: UInt8,
    offsets: Int64,
    traits: UInt8,
    weights: UInt8,
    repairs: UInt32,
    text: Int64,
    other: Int64,
    longest: Int64,
) -> None:
    """Write the number of defects of each text to `repairs`, its characters without white space, by the kind of their
    line, to `text` and `other`, and those of its longest line to `longest`.

    Defects: control characters, U+FFFD, zero-width spaces, soft hyphens, byte-order marks; marks that NFC would
    compose; pairs of misread characters; spaces other than U+0020; runs of blanks after a line's start, and blanks at
    its end; CR; a blank line after a blank line; each 1,000 characters without a line's end. A line is one of text if
    it is long or has a colon within and isn't a row of links, or if it ends like a sentence or a clause, quotation
    marks and brackets aside.
    """
    for d in range(len(offsets) - 1):
        i, last = offsets[d], offsets[d + 1]
        found = prose = rest = most = 0
        empty = 0  # blank lines in a row
        while i < last:
            end = line_end(data, i, last)
            after = end + 1
            if end > i and data[end - 1] == RETURN:
                end -= 1
                found += 1
            plain, defects, size, bars, colons = plain_line(data, i, end)
            length = size
            ends = 0
            if plain:
                k = end - 1
                while k >= i and traits[data[k]] & NEUTRAL:
                    k -= 1
                ends = np.int64(k >= i and traits[data[k]] & END != 0)
            else:
                defects, size, length, bars, colons, ends = any_line(data, i, end, traits, weights)
            found += defects
            if size:
                is_text = ends | np.int64((length >= LONG or colons > 0) and bars < BARS)
                prose += size * is_text
                rest += size * (1 - is_text)
                found += size // LONGEST
                most = max(most, size)
                empty = 0
            else:
                found += np.int64(empty > 0)
                empty += 1
            i = after
        repairs[d], text[d], other[d], longest[d] = found, prose, rest, most
