"""The hot loop of `plain.py`, compiled by numba: a pass over the bytes of a text that stops at few of them.

Replacements are found from left to right and don't overlap. None is longer than the original, so the output needs no
more bytes than the input. A text without replacements is not written at all. Calls don't count references to arrays
(`_nrt=False`), which would take a third of the time.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from tasks.text.block_kernels import first_in, wrapped
from tasks.text.kernels import among, decode, encode

KEEP, BLANK, DROP = -1, -2, -3  # the outcome at a place, if not a code point
LONGEST_TAG, LONGEST_NAME, LONGEST_MARK = 300, 10, 12  # bytes of a tag, of its name, of a footnote's mark
IGNORABLE = 0xE0000  # first of 4,096 zero-width code points of tags and variations
INLINE = np.array(
    [
        int.from_bytes(name, "big")
        for name in (
            b"a",
            b"abbr",
            b"b",
            b"cite",
            b"code",
            b"em",
            b"font",
            b"i",
            b"mark",
            b"q",
            b"s",
            b"small",
            b"span",
            b"strong",
            b"sub",
            b"sup",
            b"tt",
            b"u",
            b"wbr",
        )
    ],
    np.uint64,
)
AMP = np.uint64(int.from_bytes(b"amp", "big"))
ZERO_WIDTH = np.array([int.from_bytes(name, "big") for name in (b"shy", b"zwj", b"zwnj")], np.uint64)


@njit(cache=True, nogil=True, _nrt=False, inline="always")
def _is_digit(b):
    return 48 <= b <= 57


@njit(cache=True, nogil=True, _nrt=False, inline="always")
def _is_letter(b):
    return 97 <= (b | 32) <= 122


@njit(cache=True, nogil=True, _nrt=False, inline="always")
def _is_word(b):
    return _is_digit(b) or _is_letter(b) or b >= 128


@njit(cache=True, nogil=True, _nrt=False)
def _number(data, i, end, base, most):
    """(value, end) of the digits at `i`, up to `most` of them."""
    value = 0
    last = min(end, i + most)
    while i < last:
        b = data[i]
        if _is_digit(b):
            digit = np.int64(b) - 48
        elif base == 16 and 97 <= (b | 32) <= 102:
            digit = np.int64(b | 32) - 87
        else:
            break
        value = value * base + digit
        i += 1
    return value, i


@njit(cache=True, nogil=True, _nrt=False)
def _name(data, i, end):
    """(number, end) of the letters and digits at `i`, in lower case as a big-endian number. Only the last 8 count."""
    code = np.uint64(0)
    while i < end and (_is_letter(data[i]) or _is_digit(data[i])):
        code = (code << np.uint64(8)) | np.uint64(data[i] | 32)
        i += 1
    return code, i


@njit(cache=True, nogil=True, _nrt=False)
def _backslash(data, i, end):
    r"""\n, \t, \r, \u2019 and other escapes of JSON, even if they were escaped again."""
    j = i
    while j < end and data[j] == 92:
        j += 1
    if j < end and data[j] == 117:
        value, after = _number(data, j + 1, end, 16, 4)
        if after == j + 5:
            return (value if value < 0xD800 or value > 0xDFFF else BLANK), after
    # After several backslashes, \\text is a LaTeX command in JSON
    command = j > i + 1 and j + 1 < end and 97 <= data[j + 1] <= 122
    if j < end and data[j] in (110, 114, 116) and not command:
        return BLANK, j + 1
    return BLANK, j


@njit(cache=True, nogil=True, _nrt=False)
def _ampersand(data, i, end):
    """An entity, even if its & was escaped again: `&amp;nbsp;`."""
    j = i
    while j + 4 < end and data[j + 4] == 59 and _name(data, j + 1, j + 4)[0] == AMP:
        j += 4  # the semicolon stands for the &
    outcome, after = _entity(data, j, end)
    return (BLANK, j + 1) if outcome == KEEP and j > i else (outcome, after)


@njit(cache=True, nogil=True, _nrt=False)
def _entity(data, i, end):
    """&#8217;, &#x2019;, &shy; and other entities. Named ones become a blank, except zero-width ones."""
    if i + 1 < end and data[i + 1] == 35:
        hexadecimal = i + 2 < end and data[i + 2] | 32 == 120
        first = i + 3 if hexadecimal else i + 2
        value, after = _number(data, first, end, 16 if hexadecimal else 10, 6 if hexadecimal else 7)
        if after > first and after < end and data[after] == 59:
            good = value < 0xD800 or 0xDFFF < value <= 0x10FFFF
            return (value if good else BLANK), after + 1
        return KEEP, i + 1
    code, after = _name(data, i + 1, end)
    if after - i > 2 and after - i - 1 <= 8 and after < end and data[after] == 59 and _is_letter(data[i + 1]):
        return (DROP if among(code, ZERO_WIDTH) else BLANK), after + 1
    return KEEP, i + 1


@njit(cache=True, nogil=True, _nrt=False)
def _percent(data, i, end):
    """%20 and the like, as in a URL, even if the % was escaped again: `%2520`."""
    value, after = _number(data, i + 1, end, 16, 2)
    if after != i + 3:
        return KEEP, i + 1
    while value == 37:
        again, last = _number(data, after, end, 16, 2)
        if last != after + 2:
            break
        value, after = again, last
    return (value if 32 < value < 127 else BLANK), after


@njit(cache=True, nogil=True, _nrt=False)
def _underscores(data, begin, i, end):
    """Underscores beside a letter or digit are blanks or markup. Others are a gap to fill in."""
    j = i
    while j < end and data[j] == 95:
        j += 1
    beside = (i > begin and _is_word(data[i - 1])) or (j < end and _is_word(data[j]))
    return (BLANK if beside else KEEP), j


@njit(cache=True, nogil=True, _nrt=False)
def _footnote(data, i, end):
    """[1], [2, 3] and [a]."""
    if i + 2 < end and 97 <= data[i + 1] <= 122 and data[i + 2] == 93:
        return BLANK, i + 3
    if i + 1 < end and _is_digit(data[i + 1]):
        j = i + 1
        while j < end and j - i < LONGEST_MARK and (_is_digit(data[j]) or data[j] in (32, 44, 45, 59)):
            j += 1
        if j < end and data[j] == 93:
            return BLANK, j + 1
    return KEEP, i + 1


@njit(cache=True, nogil=True, _nrt=False)
def _tag(data, i, end):
    """A tag of HTML or XML: dropped if it may occur within a word, otherwise a blank."""
    first = i + 2 if i + 1 < end and data[i + 1] == 47 else i + 1
    if first >= end or not _is_letter(data[first]):
        return KEEP, i + 1
    code, j = _name(data, first, end)
    if j - first > LONGEST_NAME or j >= end or data[j] not in (62, 32, 47, 9, 10, 13):
        return KEEP, i + 1
    last = min(end, j + LONGEST_TAG)
    while j < last and data[j] != 62 and data[j] != 60:
        j += 1
    if j >= last or data[j] != 62:
        return KEEP, i + 1
    return (DROP if among(code, INLINE) else BLANK), j + 1


@njit(cache=True, nogil=True, _nrt=False)
def _hyphen(data, begin, i, end):
    """A hyphen at the end of a line within a word."""
    j = i + 1
    if j < end and data[j] == 13:
        j += 1
    if j >= end or data[j] != 10 or i == begin or not (_is_letter(data[i - 1]) or data[i - 1] >= 128):
        return KEEP, i + 1
    j += 1
    while j < end and (data[j] == 32 or data[j] == 9):
        j += 1
    if j < end and 97 <= data[j] <= 122:
        return DROP, j
    return KEEP, i + 1


@njit(cache=True, nogil=True, _nrt=False)
def _line_number(data, i, end):
    """A number at the beginning of a line: `12 `, `12. `, `12: `, `12) ` or `12| `."""
    j = i + 1
    while j < end and (data[j] == 32 or data[j] == 9):
        j += 1
    _, after = _number(data, j, end, 10, 4)
    if after == j:
        return KEEP, i + 1
    if after < end and data[after] in (46, 58, 41, 124):
        after += 1
    if after < end and (data[after] == 32 or data[after] == 9):
        return BLANK, after + 1
    return KEEP, i + 1


@njit(cache=True, nogil=True, _nrt=False)
def _at(data, begin, i, end):
    """(outcome, end) of the place at `i`: a code point, KEEP, BLANK or DROP."""
    b = data[i]
    if b >= 128:
        c, used = decode(data, i, end)
        return np.int64(c), i + used
    if b == 92:
        return _backslash(data, i, end)
    if b == 38:
        return _ampersand(data, i, end)
    if b == 37:
        return _percent(data, i, end)
    if b == 95:
        return _underscores(data, begin, i, end)
    if b == 91:
        return _footnote(data, i, end)
    if b == 60:
        return _tag(data, i, end)
    if b == 45:
        return _hyphen(data, begin, i, end)
    return _line_number(data, i, end)


@njit(cache=True, nogil=True, _nrt=False)
def unwrap(data, offsets, folds, pool_ends, pool, out, out_ends):
    """Write each of D texts in which something is replaced to `out`, ending at `out_ends[d]`. Others are not written.

    Text d is `data[offsets[d]:offsets[d + 1]]`. If `folds[c]` is above 0, code point c becomes
    `pool[pool_ends[folds[c] - 1]:pool_ends[folds[c]]]`. `out` has room for all of `data`, which has at least a block.
    """
    at = 0
    for d in range(len(offsets) - 1):
        begin, end = offsets[d], offsets[d + 1]
        done = i = begin  # everything before `done` is written
        first = at
        while True:
            i = first_in(wrapped, data, i, end)
            if i == end:
                break
            outcome, after = _at(data, begin, i, end)
            if IGNORABLE <= outcome < IGNORABLE + 0x1000:
                outcome = DROP
            plain = data[i] >= 128 and outcome != DROP
            fold = np.int64(folds[outcome]) if 0 <= outcome < len(folds) else 0
            if outcome == KEEP or (plain and not fold):
                i = after
                continue
            for place in range(done, i):
                out[at] = data[place]
                at += 1
            if outcome == BLANK:
                out[at] = 32
                at += 1
            elif fold:
                for place in range(pool_ends[fold - 1], pool_ends[fold]):
                    out[at] = pool[place]
                    at += 1
            elif outcome != DROP:
                at = encode(np.uint32(outcome), out, at)
            done = i = after
        if done > begin:
            for place in range(done, end):
                out[at] = data[place]
                at += 1
            if at == first:  # all of it was dropped
                out[at] = 32
                at += 1
        out_ends[d] = at
