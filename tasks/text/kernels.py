"""The hot loop from bytes to words, compiled by numba: one pass normalises a text and hashes its words.

Why our own: a library that is fed strings is bound by the making of those strings; here a text never leaves its Arrow
buffer. Compiled code is kept on disk (`tasks/__init__.py`), so only the first run on a machine compiles.

Words are hashed by FNV-1a over their folded bytes, finished by MurmurHash3's mixer.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from storage.arrays import Bool, Int64, UInt8, UInt32, UInt64
from tasks.text.characters import HARD, SIZE

Bytes = UInt8  # tasks/filter takes these by the old names
Hashes = UInt64
Offsets = Int64
FNV_OFFSET = np.uint64(0xCBF29CE484222325)
FNV_PRIME = np.uint64(0x100000001B3)
GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # 2**64 over the golden ratio, odd: spreads what it multiplies (Knuth 1998, 6.4)


@njit(cache=True, nogil=True, inline="always")
def mix64(h):
    """MurmurHash3's 64-bit finalizer (Appleby 2011)."""
    h ^= h >> np.uint64(33)
    h *= np.uint64(0xFF51AFD7ED558CCD)
    h ^= h >> np.uint64(33)
    h *= np.uint64(0xC4CEB9FE1A85EC53)
    return h ^ (h >> np.uint64(33))


@njit(cache=True, nogil=True, inline="always")
def fnv(h, b):
    """A byte, or a code point, into FNV-1a (Fowler, Noll and Vo), which begins with FNV_OFFSET."""
    return (h ^ np.uint64(b)) * FNV_PRIME


@njit(cache=True, nogil=True, inline="always")
def same_bytes(a, i, b, k, n):
    """Whether the n bytes of `a` from i on are those of `b` from k on."""
    j = 0
    while j < n and a[i + j] == b[k + j]:
        j += 1
    return j == n


@njit(cache=True, nogil=True, inline="always")
def code_point(data, i, end):
    """(code point, bytes used) of the character at `i`."""
    if data[i] < 128:
        return np.uint32(data[i]), 1
    return decode(data, i, end)


@njit(cache=True, nogil=True, inline="always")
def decode(data, i, end):
    """`code_point` where it is not ASCII; a sequence that the end cuts off counts as one byte of U+001A."""
    b = np.uint32(data[i])
    if b < 0xE0 and i + 1 < end:
        return ((b & np.uint32(0x1F)) << np.uint32(6)) | (np.uint32(data[i + 1]) & np.uint32(0x3F)), 2
    if b < 0xF0 and i + 2 < end:
        c = ((b & np.uint32(0x0F)) << np.uint32(12)) | ((np.uint32(data[i + 1]) & np.uint32(0x3F)) << np.uint32(6))
        return c | (np.uint32(data[i + 2]) & np.uint32(0x3F)), 3
    if i + 3 < end:
        c = ((b & np.uint32(0x07)) << np.uint32(18)) | ((np.uint32(data[i + 1]) & np.uint32(0x3F)) << np.uint32(12))
        c |= (np.uint32(data[i + 2]) & np.uint32(0x3F)) << np.uint32(6)
        return c | (np.uint32(data[i + 3]) & np.uint32(0x3F)), 4
    return np.uint32(0x1A), 1


@njit(cache=True, nogil=True, inline="always")
def encode(c, out, at):
    """Write a code point as UTF-8; where the next one goes."""
    if c < 0x80:
        out[at] = c
        return at + 1
    if c < 0x800:
        out[at] = 0xC0 | (c >> 6)
        out[at + 1] = 0x80 | (c & 0x3F)
        return at + 2
    if c < 0x10000:
        out[at] = 0xE0 | (c >> 12)
        out[at + 1] = 0x80 | ((c >> 6) & 0x3F)
        out[at + 2] = 0x80 | (c & 0x3F)
        return at + 3
    out[at] = 0xF0 | (c >> 18)
    out[at + 1] = 0x80 | ((c >> 12) & 0x3F)
    out[at + 2] = 0x80 | ((c >> 6) & 0x3F)
    out[at + 3] = 0x80 | (c & 0x3F)
    return at + 4


@njit(cache=True, nogil=True)
def scan(
    data: UInt8, offsets: Int64, kinds: UInt8, folded: UInt32, out: UInt8, out_ends: Int64,
    words: UInt64 | None, word_ends: Int64, lengths: Int64, hard: Bool,
) -> None:  # fmt: skip
    """Normalise D texts and hash their words, in one pass over their bytes.

    `data` holds the texts as UTF-8, text d at `offsets[d]:offsets[d + 1]`. Written: the normalised bytes to `out`
    (ending at `out_ends[d]`), a 64-bit hash for each word to `words` (ending at `word_ends[d]`; a text without words
    gets one, of all its bytes), the characters of each text to `lengths`, and to `hard` whether Python must do it.
    `out` needs 3 bytes for every 2 of `data`, `words` one place for every 2 bytes and one a text; both one to spare.
    Without `words`, numba compiles a pass that does not hash.

    No branch depends on where words end: what is not wanted is overwritten by the next character, since a mispredicted
    branch costs more than a store.
    """
    ascii = (kinds[:128].astype(np.uint16) << 8) | folded[:128].astype(np.uint16)  # one look-up instead of two
    at = 0
    count = 0
    for d in range(len(offsets) - 1):
        i, end = offsets[d], offsets[d + 1]
        begin, first = at, count
        characters = end - i  # less the continuation bytes
        mark = 0
        inside = 0
        blank = 1  # leading white space goes
        h = FNV_OFFSET
        while i < end:
            b = data[i]
            if b < 128:
                known = np.int64(ascii[b])
                i += 1
                if words is not None:
                    words[count] = h
                    letter = (known >> 8) & 1
                    count += inside & (letter ^ 1)
                    h = fnv(h if inside else FNV_OFFSET, known & 0xFF)
                    inside = letter
                out[at] = known & 0xFF
                space = (known >> 9) & 1
                at += 1 - (blank & space)
                blank = space
                continue
            c, used = decode(data, i, end)
            i += used
            characters -= used - 1
            kind = 0
            if c < SIZE:
                kind = np.int64(kinds[c])
                c = folded[c]
            mark |= kind
            after = encode(c, out, at)
            if words is not None:
                words[count] = h
                count += inside & ~kind & 1
                h = h if inside else FNV_OFFSET
                for place in range(at, after):
                    h = fnv(h, out[place])
                inside = kind & 1
            space = (kind >> 1) & 1
            if not (blank & space):
                at = after
            blank = space
        at -= blank & np.int64(at > begin)
        if words is not None:
            words[count] = h
            count += inside
            if count == first:
                words[count] = FNV_OFFSET
                for place in range(begin, at):
                    words[count] = fnv(words[count], out[place])
                count += 1
        out_ends[d] = at
        word_ends[d] = count
        lengths[d] = characters
        hard[d] = (mark & HARD) != 0
    if words is not None:
        for w in range(count):
            words[w] = mix64(words[w])
