"""The preparation of texts for language identification, compiled by numba: removes addresses and tags, and puts lines
of capitals in lower case.

fastText's vector of a text is a mean over its n-grams, and those of `https://`, `href` and `RIVER` say little about the
language, or suggest another. Addresses are `scheme://…`, `www.…` and `name@host.tld`. The first two end at white space,
a quote or a bracket of a tag. Beyond ASCII they end at a sign or at a letter of a script without spaces, in which text
continues right after them. A line is in capitals if they are more than four fifths of the letters that have a case.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from tasks.text.block_kernels import (
    BLOCK,
    beyond_ascii,
    capitals,
    colons,
    copy_block,
    first_in,
    lowest,
    newlines,
    ones,
    slashes,
    small_letters,
    tags_or_mail,
    ws,
    zeros,
)
from tasks.text.kernels import code_point, encode

LONGEST_TAG = 300  # bytes
# Classes of bytes: part of the name in an e-mail address, end of an address, letter or digit
NONE, NAME, STOP, ALNUM = 0, 1, 2, 4
KINDS = np.zeros(256, np.uint8)
KINDS[[*b'\t\n\v\f\r <>"']] = STOP
KINDS[[*b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"]] = NAME | ALNUM
KINDS[[*b"._+-"]] = NAME
FOLLOWED = np.uint64(1 << 63)  # the last byte of a block, whose next one isn't seen


@njit(cache=True, nogil=True, inline="always")
def _is_letter(b):
    return 97 <= (b | 32) <= 122


@njit(cache=True, nogil=True)
def _address_end(data, i, end, kinds, ending):
    while i < end and not kinds[data[i]] & STOP:
        used = 1
        if data[i] >= 128:
            c, used = code_point(data, i, end)
            if c < len(ending) and ending[c]:
                break
        i += used
    return i


@njit(cache=True, nogil=True)
def _found(data, begin, i, end, out, first, at, kinds, ending):
    """(end in `data`, start in `out[first:at]`) of the tag or address that the sign at `i` marks, or (i, at)."""
    b = data[i]
    if b == 60:
        j = i + 2 if i + 1 < end and data[i + 1] == 47 else i + 1
        if j < end and _is_letter(data[j]):
            last = min(end, j + 2 + LONGEST_TAG)
            j += 1
            while j < last and data[j] != 62 and data[j] != 60:
                j += 1
            if j < last and data[j] == 62:
                return j + 1, at
        return i, at
    start = at
    if b == 58:
        if i + 3 < end and data[i + 1] == 47 and data[i + 2] == 47:
            while start > first and _is_letter(out[start - 1]):
                start -= 1
            last = _address_end(data, i + 3, end, kinds, ending)
            if start < at and last > i + 3:
                return last, start
        return i, at
    if b == 64:
        j = i + 1
        while j < end and (kinds[data[j]] & ALNUM or data[j] == 45):
            j += 1
        if j == i + 1 or j + 1 >= end or data[j] != 46 or not (kinds[data[j + 1]] & ALNUM or data[j + 1] in (45, 46)):
            return i, at
        while start > first and kinds[out[start - 1]] & NAME:
            start -= 1
        if start == at:
            return i, at
        while j < end and (kinds[data[j]] & ALNUM or data[j] == 45 or data[j] == 46):
            j += 1
        return j, start
    www = i + 4 < end and data[i + 1] | 32 == 119 and data[i + 2] | 32 == 119 and data[i + 3] == 46
    if www and (i == begin or not kinds[data[i - 1]] & NAME):
        last = _address_end(data, i + 4, end, kinds, ending)
        if last > i + 4:
            return last, at
    return i, at


@njit(cache=True, nogil=True, _nrt=False)
def _next_sign(data, i, end):
    """The first `<`, `@`, `:/` or `ww` from `i` on, or `end`. At the end of a block the first letter is enough."""
    last = len(data) - BLOCK
    one = np.uint64(1)
    while i < end:
        at = min(i, last)
        w = ws(data, at)
        found = tags_or_mail(data, at) | (w & (w >> one | FOLLOWED))
        found |= colons(data, at) & (slashes(data, at) >> one | FOLLOWED)
        found >>= np.uint64(i - at)
        if found:
            return min(i + zeros(found), end)
        i = at + BLOCK
    return end


@njit(cache=True, nogil=True, _nrt=False)
def _copy(data, i, end, out, at):
    """Write `data[i:end]` to `out`, which has room for a block more. Returns its end there."""
    while i < end and i + BLOCK <= len(data):
        copy_block(data, i, out, at)
        used = min(end - i, BLOCK)
        i += used
        at += used
    while i < end:
        out[at] = data[i]
        i += 1
        at += 1
    return at


@njit(cache=True, nogil=True, _nrt=False)
def _in_capitals(out, first, at, lowered):
    """Whether `out[first:at]` is in capitals. Reads up to a block more."""
    small = large = np.int64(0)
    i = first
    while i < at:
        inside = lowest(min(BLOCK, at - i))
        if beyond_ascii(out, i) & inside:
            break
        small += ones(small_letters(out, i) & inside)
        large += ones(capitals(out, i) & inside)
        i += BLOCK
    while i < at:
        c, used = code_point(out, i, at)
        if c < len(lowered):
            large += lowered[c] > 1
            small += lowered[c] == 1
        i += used
    return large > 4 * small


@njit(cache=True, nogil=True)
def _lower(out, first, at, lowered):
    """Put the capitals of `out[first:at]` in lower case."""
    i = first
    while i < at:
        c, used = code_point(out, i, at)
        if c < len(lowered) and lowered[c] > 1:
            encode(lowered[c], out, i)
        i += used


@njit(cache=True, nogil=True)
def plain(data, offsets, lowered, alphabetic, ending, kinds, out, out_ends):
    """Write D texts, prepared as the module's docstring says, to `out`. Text d is `data[offsets[d]:offsets[d + 1]]` and
    ends at `out_ends[d]`. A text that would lose all its letters is written as it is.

    `lowered[c]` is a capital's small letter, 1 for a letter that has a capital, and 0 for others. `ending[c]` says
    whether an address ends before c. `data` has at least a block, and `out` needs room for all of it and a block more.
    """
    at = np.int64(0)  # for a plain 0, numba would compile another version
    for d in range(len(offsets) - 1):
        begin, end = offsets[d], offsets[d + 1]
        start = at
        i = begin
        while i < end:
            line, line_end = i, first_in(newlines, data, i, end)
            first = at
            while i < line_end:
                sign = _next_sign(data, i, line_end)
                at = _copy(data, i, sign, out, at)
                i = sign
                if i < line_end:
                    after, place = _found(data, line, i, line_end, out, first, at, kinds, ending)
                    if after > i:
                        out[place] = 32
                        at = place + 1
                        i = after
                    else:
                        out[at] = data[i]
                        at += 1
                        i += 1
            if _in_capitals(out, first, at, lowered):
                _lower(out, first, at, lowered)
            if i < end:
                out[at] = 10
                at += 1
                i += 1
        letters = False
        i = start
        while i < at and not letters:
            c, used = code_point(out, i, at)
            letters = c < len(alphabetic) and alphabetic[c]
            i += used
        if not letters:
            at = start
            for i in range(begin, end):
                out[at] = data[i]
                at += 1
        out_ends[d] = at
