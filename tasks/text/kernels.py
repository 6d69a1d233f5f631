"""UTF-8 bytes to hashed words, compiled by numba: a single pass normalises a text and hashes its words.

Why not a library: one that takes Python strings spends most of its time creating them. Here a text never leaves its
Arrow buffer. Compiled code is cached on disk (`tasks/__init__.py`), so only the first run on a machine compiles.

A word's hash is FNV-1a over its folded bytes (Fowler, Noll and Vo 1991) with MurmurHash3's finalizer applied:
FNV-1a itself leaves its high bits poorly mixed for short words. UTF-8 is decoded as RFC 3629 defines it.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from storage.shards.arrays import Bool, Int64, UInt8, UInt32, UInt64
from tasks.text.block_kernels import (
    BLOCK,
    LANES,
    OFFSET,
    PRIME,
    ascii_spaces,
    ascii_words,
    beyond_ascii,
    copy_block,
    fold_block,
    hash_words,
    lowest,
    ones,
    word_at,
    zeros,
)
from tasks.text.characters import HARD, IGNORED, SIZE, SPACE

Bytes = UInt8  # tasks/filter takes these by the old names
Hashes = UInt64
Offsets = Int64
FNV_OFFSET, FNV_PRIME = np.uint64(OFFSET), np.uint64(PRIME)
GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # 2**64 / golden ratio, odd: multiplicative hashing (Knuth 1998, section 6.4)


@njit(cache=True, nogil=True, inline="always")
def mix64(h):
    """MurmurHash3's 64-bit finalizer, fmix64 (Appleby 2011): a bijection in which every input bit affects every output
    bit with a probability close to 1/2."""
    h ^= h >> np.uint64(33)
    h *= np.uint64(0xFF51AFD7ED558CCD)
    h ^= h >> np.uint64(33)
    h *= np.uint64(0xC4CEB9FE1A85EC53)
    return h ^ (h >> np.uint64(33))


@njit(cache=True, nogil=True, inline="always")
def fnv(h, b):
    """One FNV-1a step: add a byte (or a whole code point) to a hash that started as FNV_OFFSET."""
    return (h ^ np.uint64(b)) * FNV_PRIME


@njit(cache=True, nogil=True, inline="always")
def among(c, characters):
    """Whether a character, or another number, is one of these."""
    match = False
    for other in characters:
        match |= c == other
    return match


@njit(cache=True, nogil=True, inline="always")
def same_bytes(a, i, b, k, n):
    """Whether `a[i:i + n]` equals `b[k:k + n]`."""
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
    """`code_point` for a non-ASCII lead byte. A sequence truncated by `end` counts as one byte, U+001A (SUBSTITUTE)."""
    # The lead byte gives the length: 110xxxxx two bytes, 1110xxxx three, 11110xxx four; each continuation byte,
    # 10xxxxxx, adds six bits. The input is valid UTF-8, so only the length is checked.
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
    """Write a code point as UTF-8 at `out[at]`. Returns the index after it. The inverse of `code_point`."""
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
def scan_ascii(data, i, end, lower, collapse, block, out, at, words, count, inside, word, blank):
    """`scan` the next characters, those of ASCII that are left of a block, which begin at `i`. Takes and returns where
    `scan` is: `i`, `at`, `count`, `inside`, `word` and `blank`."""
    skip = max(0, i + BLOCK - len(data))  # the last block of the data begins before the text that is left
    skipped = np.uint64(skip)
    size = min(zeros(beyond_ascii(data, i - skip) >> skipped), BLOCK - skip, end - i)
    taken = lowest(size)
    spaces = ((ascii_spaces(data, i - skip) >> skipped) & taken) if collapse else np.uint64(0)
    kept = taken & ~(spaces & (spaces << np.uint64(1) | np.uint64(blank)))  # the first space of each run
    blank = np.int64(spaces >> np.uint64(size - 1))
    if words is not None:
        letters = (ascii_words(data, i - skip) >> skipped) & taken
        left = letters
        if inside:
            length = zeros(~left)
            words[count] = word_at(word, at + length - word)
            count += 1
            left &= ~lowest(length)
        while left:
            here = zeros(left)
            length = zeros(~(left >> np.uint64(here)))
            word = at + ones(kept & lowest(here))
            words[count] = word_at(word, length)
            count += 1
            left &= ~(lowest(length) << np.uint64(here))
        inside = np.int64(letters >> np.uint64(size - 1))
        count -= inside  # the next character may belong to it
    fold_block(data, i - skip, lower, collapse, block, 0)
    while kept:
        here = zeros(kept)
        length = zeros(~(kept >> np.uint64(here)))
        copy_block(block, skip + here, out, at)
        at += length
        kept &= ~(lowest(length) << np.uint64(here))
    return i + size, at, count, inside, word, blank


@njit(cache=True, nogil=True)
def scan(
    data: UInt8, offsets: Int64, kinds: UInt8, folded: UInt32, out: UInt8, out_ends: Int64,
    words: UInt64 | None, word_ends: Int64, hard: Bool,
) -> None:  # fmt: skip
    """Normalise D texts and hash their words.

    `data` holds the texts as UTF-8, at least 64 bytes in all, text d at `offsets[d]:offsets[d + 1]`. Written: the
    normalised bytes to `out` (ending at `out_ends[d]`), a 64-bit hash per word to `words` (ending at `word_ends[d]`; a
    text without words gets one, of all its bytes), and to `hard` whether Python must normalise it.
    `out` needs 3 bytes per 2 of `data`, `words` one element per 2 bytes and per text; each needs 64 to spare. With
    `words` None, numba compiles a version that does not hash.

    ASCII is taken a block at a time, by masks of its words and its white space, other characters one by one. Words are
    noted as `word_at` places in `out`, and hashed at the end, several at once.
    """
    lower, collapse = np.int64(folded[ord("A")] != ord("A")), np.int64(kinds[ord(" ")] & SPACE)
    block = np.zeros(BLOCK + BLOCK, np.uint8)  # folded; a copy of its last bytes reads beyond it
    at = 0
    count = 0
    for d in range(len(offsets) - 1):
        i, end = offsets[d], offsets[d + 1]
        begin, first = at, count
        mark = 0  # union of the kinds seen: holds HARD if any character does
        inside = 0  # 1 within a word, which began at `word`
        word = 0
        blank = 1  # 1 after white space; at the start, so that leading white space is dropped
        while i < end:
            if data[i] < 128:
                i, at, count, inside, word, blank = scan_ascii(
                    data, i, end, lower, collapse, block, out, at, words, count, inside, word, blank
                )
                continue
            c, used = decode(data, i, end)
            i += used
            kind = 0
            if c < SIZE:
                kind = np.int64(kinds[c])
                c = folded[c]
            if kind & IGNORED:
                continue
            mark |= kind
            after = encode(c, out, at)
            if words is not None:
                alone = (kind >> 3) & 1  # ends the word before it, and is one
                words[count] = word_at(word, at - word)
                count += inside & ((kind & 1) ^ 1 | alone)
                word = word if inside & ~alone else at
                words[count] = word_at(word, after - word)
                count += alone
                inside = kind & 1 & ~alone
            space = (kind >> 1) & 1
            if not (blank & space):
                at = after
            blank = space
        if words is not None:
            words[count] = word_at(word, at - word)
            count += inside  # a word that the text's end completes
        at -= blank & np.int64(at > begin)  # trailing white space, at most one
        if words is not None and count == first:  # no word: all of the text stands for one, so that it has a shingle
            words[count] = word_at(begin, at - begin)
            count += 1
        out_ends[d] = at
        word_ends[d] = count
        hard[d] = (mark & HARD) != 0
    if words is not None:
        words[count : count + LANES] = 0  # no places, for the last words' neighbours
        for w in range(0, count, LANES):
            hash_words(out, words, w)
        for w in range(count):
            words[w] = mix64(words[w])
