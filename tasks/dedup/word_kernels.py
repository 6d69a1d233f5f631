"""The hot loops of repeated spans, compiled by numba: bytes to words and their places, words to windows.

Unlike `kernels.scan` these write no normalised text: what counts is where in the original text a word stands.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from storage.arrays import Bool, Int64, UInt8, UInt32, UInt64
from tasks.text.characters import SIZE, WORD
from tasks.text.kernels import FNV_OFFSET, GOLDEN, code_point, fnv, mix64
from tasks.text.ngram_kernels import weight_of

SLOTS = 16  # counters a key in `may_repeat`: one in 17 keys that stand alone shares its counter with another


@njit(cache=True, nogil=True)
def find_words(data: UInt8, offsets: Int64, kinds: UInt8, folded: UInt32) -> tuple[UInt64, Int64, Int64]:
    """(hashes, starts, ends) of the words of D texts as UTF-8, text d being `data[offsets[d]:offsets[d + 1]]`.

    `hashes` has 64 bits for each word (FNV-1a over folded code points, mixed), text d's ending at `ends[d]`. `starts`
    has the byte of its text at which each word starts and, after the last word of each text, that text's length: word w
    of text d starts at `starts[ends[d - 1] + d + w]`.

    No branch depends on where words end: what is not wanted is overwritten by the next character.
    """
    most = (offsets[-1] - offsets[0]) // 2 + len(offsets) + 1
    hashes = np.empty(most, np.uint64)
    starts = np.empty(most + len(offsets), np.int64)
    ends = np.empty(len(offsets) - 1, np.int64)
    count = 0
    for d in range(len(ends)):
        begin, end = offsets[d], offsets[d + 1]
        i = begin
        first = begin
        inside = 0
        h = FNV_OFFSET
        while i < end:
            hashes[count] = h
            starts[count + d] = first - begin
            first = first if inside else i
            c, used = code_point(data, i, end)
            kind = 0
            if c < SIZE:
                kind = np.int64(kinds[c]) & WORD
                c = folded[c]
            i += used
            count += inside & ~kind
            h = fnv(h if inside else FNV_OFFSET, c)
            inside = kind
        hashes[count] = h
        starts[count + d] = first - begin
        count += inside
        starts[count + d] = end - begin
        ends[d] = count
    for w in range(count):
        hashes[w] = mix64(hashes[w])
    return hashes, starts, ends


@njit(cache=True, nogil=True)
def find_windows(hashes: UInt64, ends: Int64, size: int) -> tuple[UInt64, UInt32, UInt32]:
    """For every `size` consecutive words of a text a 64-bit key, the number of the text, and that of the first word in
    it. The key is a polynomial of the words' hashes, rolled on from window to window, mixed."""
    keys = np.empty(ends[-1], np.uint64)
    texts, words = np.empty(ends[-1], np.uint32), np.empty(ends[-1], np.uint32)
    leading = weight_of(size)
    found = 0
    start = 0
    for d in range(len(ends)):
        h = np.uint64(0)
        for w in range(start, ends[d]):
            h = h * GOLDEN + hashes[w]
            if w - start >= size:
                h -= hashes[w - size] * leading
            if w - start >= size - 1:
                keys[found] = mix64(h)
                texts[found] = d
                words[found] = w - start - size + 1
                found += 1
        start = ends[d]
    return keys[:found], texts[:found], words[:found]


@njit(cache=True, nogil=True)
def may_repeat(keys: UInt64) -> Bool:
    """Which keys occur twice, and some others: those whose counter another key counts in too.

    A counter has two bits (none, one, more) and is named by the key's low bits. This leaves few keys to be sorted.
    """
    slots = 4
    while slots < SLOTS * len(keys):
        slots *= 2
    low = np.uint64(slots - 1)
    counters = np.zeros(slots // 4, np.uint8)
    for k in range(len(keys)):
        slot = keys[k] & low
        shift = np.uint8((slot & np.uint64(3)) << np.uint64(1))
        state = (counters[slot >> np.uint64(2)] >> shift) & 3
        counters[slot >> np.uint64(2)] |= np.uint8((state << 1 | 1) & 3) << shift
    found = np.empty(len(keys), np.bool_)
    for k in range(len(keys)):
        slot = keys[k] & low
        shift = np.uint8((slot & np.uint64(3)) << np.uint64(1))
        found[k] = (counters[slot >> np.uint64(2)] >> shift) & 3 == 3
    return found
