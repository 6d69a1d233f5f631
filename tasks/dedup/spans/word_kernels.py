"""Repeated spans, compiled by numba: UTF-8 bytes to words with their offsets, words to windows of fixed length.

Unlike `tasks.text.kernels.scan` this writes no normalised text: only the start of each word in the original matters.
Window hashes are rolled (Karp and Rabin 1987); the filter for repeated ones is a counting filter with a single hash
function (Fan et al. 2000, "Summary Cache", with counters that saturate at two).
"""

from __future__ import annotations

import numpy as np
from numba import njit

from storage.shards.arrays import Int64, UInt8, UInt32, UInt64
from tasks.text.characters import ALONE, SIZE, SPACE, WORD
from tasks.text.kernels import FNV_OFFSET, GOLDEN, code_point, fnv, mix64
from tasks.text.ngram_kernels import weight_of

STOP, FULL, CLOSER = 1, 2, 4  # ends a sentence before white space, ends one anyhow, belongs to the sentence before
NEWLINE = 10


@njit(cache=True, nogil=True)
def find_words(data: UInt8, offsets: Int64, kinds: UInt8, folded: UInt32) -> tuple[UInt64, Int64, Int64]:
    """(hashes, starts, ends) of the words of D UTF-8 texts, text d being `data[offsets[d]:offsets[d + 1]]`.

    `hashes` holds 64 bits per word (FNV-1a over folded code points, then mixed); text d's end at `ends[d]`. `starts`
    holds the byte offset of each word in its text and, after the last word of each text, the text's length: word w of
    text d starts at `starts[ends[d - 1] + d + w]`.

    There is no branch on word ends, which would be mispredicted at every word: each character writes to the next free
    slot, and the slot is claimed only when a word is complete.
    """
    # Each word except the last is followed by at least one other byte
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
            # The word so far, claimed below if this character ends it; d texts before have left an extra start each
            hashes[count] = h
            starts[count + d] = first - begin
            first = first if inside else i
            c, used = code_point(data, i, end)
            kind = 0
            if c < SIZE:
                kind = np.int64(kinds[c])
                c = folded[c]
            if kind & ALONE:  # ends the word before it, and is one
                count += inside
                hashes[count] = fnv(FNV_OFFSET, c)
                starts[count + d] = i - begin
                count += 1
                inside = 0
                i += used
                continue
            kind &= WORD
            i += used
            count += inside & ~kind  # 1 for the first character after a word
            h = fnv(h if inside else FNV_OFFSET, c)
            inside = kind
        hashes[count] = h
        starts[count + d] = first - begin
        count += inside  # a word that the text's end completes
        starts[count + d] = end - begin
        ends[d] = count
    for w in range(count):
        hashes[w] = mix64(hashes[w])
    return hashes, starts, ends


@njit(cache=True, nogil=True)
def find_sentences(
    data: UInt8, offsets: Int64, kinds: UInt8, folded: UInt32, stops: UInt8
) -> tuple[UInt64, Int64, Int64]:
    """(hashes, starts, ends) of sentences, laid out as `find_words` does with words. A sentence ends at a line's end
    and where `stops` says. It starts at its first character that isn't white space. Its hash is of its words, FNV-1a
    over their folded code points with a 0 before each. One without words belongs to the sentence before it."""
    most = (offsets[-1] - offsets[0]) // 2 + len(offsets) + 1
    hashes = np.empty(most, np.uint64)
    starts = np.empty(most + len(offsets), np.int64)
    ends = np.empty(len(offsets) - 1, np.int64)
    count = 0
    for d in range(len(ends)):
        begin, end = offsets[d], offsets[d + 1]
        i = begin
        first = -1  # where the sentence starts; -1 before it does
        has_word = inside = False
        ended = 0  # STOP or FULL after such a character, with nothing but closers since
        h = FNV_OFFSET
        while i <= end:
            c, used = code_point(data, i, end) if i < end else (np.uint32(NEWLINE), 1)
            kind = np.int64(kinds[c]) if c < SIZE else 0
            stop = np.int64(stops[c]) if c < SIZE else 0
            blank = kind & SPACE != 0
            if c == NEWLINE or (ended == STOP and blank) or (ended == FULL and stop == 0):
                if has_word:
                    hashes[count] = mix64(h)
                    starts[count + d] = first
                    count += 1
                first, ended, h = -1, 0, FNV_OFFSET
                has_word = inside = False
            if first < 0 and not blank:
                first = i - begin
            letter = kind & WORD != 0
            if letter:
                h = fnv(h if inside else fnv(h, np.uint32(0)), folded[c])
                has_word = True
            inside = letter
            if stop & (STOP | FULL):
                ended = max(ended, stop)
            elif stop == 0:
                ended = 0
            i += used
        starts[count + d] = end - begin
        ends[d] = count
    return hashes, starts, ends


@njit(cache=True, nogil=True)
def find_windows(hashes: UInt64, ends: Int64, size: int) -> tuple[UInt64, UInt32, UInt32]:
    """(keys, texts, words) of every `size` consecutive words of a text: a 64-bit hash, the number of the text, and the
    index of the first word in it. The hash is a polynomial of the words' hashes, rolled from window to window."""
    keys = np.empty(ends[-1], np.uint64)
    texts, words = np.empty(ends[-1], np.uint32), np.empty(ends[-1], np.uint32)
    leading = weight_of(size)
    found = 0
    start = 0
    for d in range(len(ends)):
        h = np.uint64(0)
        for w in range(start, ends[d]):
            h = h * GOLDEN + hashes[w]
            # Once the window is full, the word that leaves it has been multiplied by GOLDEN `size` times
            if w - start >= size:
                h -= hashes[w - size] * leading
            if w - start >= size - 1:
                keys[found] = mix64(h)
                texts[found] = d
                words[found] = w - start - size + 1
                found += 1
        start = ends[d]
    return keys[:found], texts[:found], words[:found]
