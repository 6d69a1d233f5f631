"""The hot loop of fastText's prediction, compiled by numba: UTF-8 bytes to sums of n-gram vectors.

It follows fastText 0.9.3 (Joulin et al. 2016, `Dictionary::getLine`, `addSubwords`, `computeSubwords`, `addWordNgrams`)
down to the order of additions, but sums the rows of a word before it adds them. And in a text, `</s>` and `__label__…`
are ordinary words, which neither end the text nor are skipped. It is faster because texts stay in their Arrow buffer, a
text can be cut into pieces whose sums add up to the whole, and sums of words are kept. Calls don't count references to
arrays (`_nrt=False`), which would take longer than the sums.

Tensor names: P pieces, D width of the model.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from storage.shards.arrays import Float32, Float64, Int32, Int64, UInt8, UInt64
from tasks.filter.fasttext_model.word_kernels import BREAK, FNV_OFFSET, LETTER, find, step
from tasks.text.block_kernels import (
    BLOCK,
    FLOATS,
    add_floats,
    fasttext_breaks,
    lowest,
    ones,
    prefetch,
    read_eight,
    zeros,
)
from tasks.text.kernels import decode

NGRAM_PRIME = np.uint64(116049371)
END = np.array([ord(c) for c in "</s>"], np.uint8)  # fastText's word for the end of a line
END_HASH = np.uint32(3617362777)
OPEN, CLOSE = np.uint8(ord("<")), np.uint8(ord(">"))
KEPT_BYTES = 24  # longer words aren't kept
EIGHT = 8  # bytes of a key's part, numbers of a cache line
HEAD = 4  # numbers of a slot before the sum
AHEAD = 32  # words that are looked up together
# The part of 24 bytes that belongs to a word of each size, as the three parts of its key
OWN = np.array(
    [[(1 << 8 * min(EIGHT, max(0, size - first))) - 1 for first in range(0, KEPT_BYTES, EIGHT)] for size in range(25)],
    np.uint64,
)
MIX = np.array([0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9], np.uint64)  # odd, as in xxHash


class Kept(NamedTuple):
    """The sums of words that were read, in S slots (a power of two), one for all words of a hash: the newest stays.

    A slot has a word's key, then its number of rows, then their sum. A key is the word's bytes and zeros after them,
    so no word may contain a zero. `recent` is room for the hashes of a line's last words, the latest first, and `ahead`
    for the begins, ends and slots of words that are looked up together.
    """

    slots: UInt64  # (S, numbers of a slot)
    floats: Float32  # the same memory, flat
    recent: UInt64
    ahead: Int64  # (AHEAD, 3)


def slot_size(width: int) -> int:
    """The numbers of a slot, in whole cache lines."""
    return -(-(HEAD + (width + 1) // 2) // EIGHT) * EIGHT


class Tables(NamedTuple):
    """A model as the kernel reads it, built by `Classifier`. W words, R rows of n-grams after them.

    `slots` is an open hash table of word numbers (−1: free), whose length is a power of two. Word w is
    `letters[starts[w]:starts[w + 1]]`. `word_rows` has, for each word, the sum of its row and those of its character
    n-grams, `word_counts` their number. `held` has a bit for each bucket that has a row, `places` its row. Both are
    empty if every bucket has one. `kinds` is BREAK, LETTER or ALONE for each code point. Code points beyond its end are
    like its last.
    """

    kinds: UInt8
    slots: Int32
    letters: UInt8
    starts: Int64
    word_rows: Float32  # (W · D)
    word_counts: Int32
    rows: Float32  # (R · D)
    width: int
    held: UInt64
    places: Int32
    buckets: int
    shortest: int
    longest: int
    word_ngrams: int


@njit(cache=True, nogil=True, _nrt=False, inline="always")
def add_row(sums, at, rows, place, width):
    """Add `width` floats of `rows` from `place` on to those of `sums` from `at` on."""
    k = 0
    while k + FLOATS <= width:
        add_floats(sums, at + k, rows, place + k)
        k += FLOATS
    while k < width:
        sums[at + k] += rows[place + k]
        k += 1


@njit(cache=True, nogil=True, _nrt=False)
def add_characters(
    rows: Float32,
    width: int,
    held: UInt64,
    places: Int32,
    buckets: int,
    shortest: int,
    longest: int,
    data: UInt8,
    start: int,
    end: int,
    sums: Float32,
    at: int,
) -> int:
    """Add the rows of the character n-grams of `<word>` to `sums`, from `at` on. Returns their number
    (`computeSubwords`)."""
    count = 0
    size = end - start + 2
    modulus = np.uint32(buckets)
    for i in range(size):
        # An n-gram starts at a character, never at a continuation byte. Place 0 is `<`, the last one `>`
        if 0 < i < size - 1 and (data[start + i - 1] & 0xC0) == 0x80:
            continue
        h = FNV_OFFSET
        j = i
        n = 1
        while j < size and n <= longest:
            # Extend the n-gram by one character: `<`, `>` or all bytes of one of the word's
            if j == 0:
                h = step(h, OPEN)
                j = 1
            elif j == size - 1:
                h = step(h, CLOSE)
                j = size
            else:
                h = step(h, data[start + j - 1])
                j += 1
                while j < size - 1 and (data[start + j - 1] & 0xC0) == 0x80:
                    h = step(h, data[start + j - 1])
                    j += 1
            # `<` and `>` by themselves aren't n-grams
            if n >= shortest and not (n == 1 and (i == 0 or j == size)):
                row = np.int64(h % modulus)
                # A quantized model keeps only the most useful buckets. The others contribute nothing
                if len(held) == 0:
                    add_row(sums, at, rows, row * width, width)
                    count += 1
                else:
                    below = np.uint64(row & 63)
                    here = held[row >> 6]
                    if (here >> below) & np.uint64(1):
                        row = places[row >> 6] + ones(here & lowest(np.int64(below)))
                        add_row(sums, at, rows, row * width, width)
                        count += 1
            n += 1
    return count


@njit(cache=True, nogil=True, _nrt=False, inline="always")
def hash_of(data, start, end):
    """fastText's hash of a word."""
    h = FNV_OFFSET
    for k in range(start, end):
        h = step(h, data[k])
    return h


@njit(cache=True, nogil=True, _nrt=False)
def add_word(
    slots, letters, starts, word_rows, word_counts, rows, width, held, places, buckets, shortest, longest,
    data, start, end, sums, at,
):  # fmt: skip
    """Add the sum of the word `data[start:end]` to `sums`, from `at` on. Returns its number of rows."""
    word = find(slots, letters, starts, data, start, end, hash_of(data, start, end))
    if word >= 0:
        add_row(sums, at, word_rows, word * width, width)
        return np.int64(word_counts[word])
    if longest > 0:
        return add_characters(rows, width, held, places, buckets, shortest, longest, data, start, end, sums, at)
    return 0


@njit(cache=True, nogil=True, _nrt=False)
def last_key(data, start, size):
    """The key of a word near the end of the data, where eight bytes can't be read at once."""
    first, second, third = np.uint64(0), np.uint64(0), np.uint64(0)
    for k in range(start + size - 1, start - 1, -1):
        carried = np.uint64(56)
        third = (third << np.uint64(8)) | (second >> carried)
        second = (second << np.uint64(8)) | (first >> carried)
        first = (first << np.uint64(8)) | np.uint64(data[k])
    return first, second, third


@njit(cache=True, nogil=True, _nrt=False, inline="always")
def key_of(data, start, size):
    """The key of a word of at most `KEPT_BYTES` (see `Kept`)."""
    if start + KEPT_BYTES > len(data):
        return last_key(data, start, size)
    first = read_eight(data, start) & OWN[size, 0]
    second = read_eight(data, start + 8) & OWN[size, 1]
    third = read_eight(data, start + 16) & OWN[size, 2]
    return first, second, third


@njit(cache=True, nogil=True, _nrt=False, inline="always")
def add_ngrams(rows, width, buckets, longest, h, number, recent, sums, at):
    """Add the rows of the word n-grams that end with the line's `number`-th word, of hash h. Returns their number
    (`addWordNgrams`)."""
    # fastText keeps word hashes as signed 32-bit numbers, and extends their sign to 64 bits
    signed = np.uint64(np.int64(np.int32(h)))
    count = 0
    for n in range(2, min(longest, number) + 1):
        # The hash runs from the first word of the n-gram to the last, but `recent` has the latest first
        joined = recent[n - 2]
        for k in range(n - 3, -1, -1):
            joined = joined * NGRAM_PRIME + recent[k]
        row = np.int64((joined * NGRAM_PRIME + signed) % np.uint64(buckets))
        add_row(sums, at, rows, row * width, width)
        count += 1
    for k in range(longest - 1, 0, -1):
        recent[k] = recent[k - 1]
    recent[0] = signed
    return count


@njit(cache=True, nogil=True, _nrt=False, inline="always")
def next_word(kinds, data, i, stop):
    """(start, end) of the first word from i on, by the `kinds` of characters. Both are `stop` if there is none."""
    beyond = len(kinds) - 1
    start = stop
    while i < stop:
        c, used = np.int64(data[i]), 1
        if c >= 128:
            c, used = decode(data, i, stop)
        kind = kinds[min(np.int64(c), beyond)]
        if kind != LETTER and start < stop:
            return start, i
        if kind == LETTER:
            start = min(start, i)
        elif kind != BREAK:
            return i, i + used
        i += used
    return start, stop


@njit(cache=True, nogil=True, _nrt=False, inline="always")
def block_of_letters(data, i, stop):
    """The mask of up to 64 bytes from i on that belong to words of fastText's own."""
    last = len(data) - BLOCK
    breaks = fasttext_breaks(data, min(i, last)) >> np.uint64(max(0, i - last))
    return ~breaks & lowest(min(BLOCK, stop - i))


@njit(cache=True, nogil=True, _nrt=False, inline="always")
def next_fasttext_word(data, stop, block, letters):
    """(start, end, block, letters): the first word of `letters`, the mask of what is left of a block, as fastText
    separates words, and the block and letters in which the next one may begin."""
    while not letters and block + BLOCK < stop:
        block += BLOCK
        letters = block_of_letters(data, block, stop)
    if not letters:
        return stop, stop, block, letters
    start = block + zeros(letters)
    letters |= letters - np.uint64(1)  # from the block's beginning to the word's end
    end = block + zeros(~letters)
    while end == block + BLOCK and end < stop:
        block = end
        letters = block_of_letters(data, block, stop)
        end = block + zeros(~letters)
    letters &= ~lowest(end - block)
    return start, end, block, letters


@njit(cache=True, nogil=True, _nrt=False, inline="always")
def look_ahead(kinds, kept, data, i, stop, block, inside, ahead):
    """(words, i, block, inside): the next words of a piece from i on, up to `AHEAD`, as rows of `ahead`. Their slots
    come from memory meanwhile, side by side. The slot of a word that isn't kept is −1."""
    words = 0
    while words < AHEAD:
        if len(kinds) == 0:
            start, i, block, inside = next_fasttext_word(data, stop, block, inside)
        else:
            start, i = next_word(kinds, data, i, stop)
        if start == stop:
            break
        slot = -1
        if i - start <= KEPT_BYTES:
            first, second, third = key_of(data, start, i - start)
            mixed = (first ^ (second * MIX[1]) ^ (third * MIX[2])) * MIX[0]
            slot = np.int64(mixed >> np.uint64(48)) & (len(kept) - 1)
            for k in range(0, kept.shape[1], EIGHT):
                prefetch(kept, slot * kept.shape[1] + k)
        ahead[words, 0], ahead[words, 1], ahead[words, 2] = start, i, slot
        words += 1
    return words, i, block, inside


@njit(cache=True, nogil=True, _nrt=False)
def sum_pieces(
    kinds: UInt8, slots: Int32, letters: UInt8, starts: Int64, word_rows: Float32, word_counts: Int32,
    rows: Float32, width: int, held: UInt64, places: Int32, buckets: int, shortest: int, longest: int, word_ngrams: int,
    kept: UInt64, floats: Float32, recent: UInt64, ahead: Int64,
    data: UInt8, begins: Int64, ends: Int64, sums: Float32, counts: Int64, words: Int64,
) -> None:  # fmt: skip
    """For each piece `data[begins[p]:ends[p]]`: the sum of its rows in `sums` (P · D), their number, and its words.

    The first two lines of arguments are `Tables`, the third is `Kept`. Each piece is a line: it ends with fastText's
    `</s>`, which isn't counted as a word. `data` has at least a block.
    """
    for p in range(len(begins)):
        i, stop, at = begins[p], ends[p], p * width
        count = 0
        number = 0
        block = i
        inside = np.uint64(0)
        if len(kinds) == 0 and i < stop:
            inside = block_of_letters(data, i, stop)
        several = AHEAD
        while several == AHEAD:
            several, i, block, inside = look_ahead(kinds, kept, data, i, stop, block, inside, ahead)
            for k in range(several):
                start, end, slot = ahead[k, 0], ahead[k, 1], ahead[k, 2]
                if slot >= 0:
                    first, second, third = key_of(data, start, end - start)
                    place = 2 * (slot * kept.shape[1] + HEAD)
                    if kept[slot, 0] != first or kept[slot, 1] != second or kept[slot, 2] != third:
                        kept[slot, 0], kept[slot, 1], kept[slot, 2] = first, second, third
                        floats[place : place + width] = 0
                        kept[slot, 3] = add_word(
                            slots, letters, starts, word_rows, word_counts, rows, width, held, places, buckets,
                            shortest, longest, data, start, end, floats, place,
                        )  # fmt: skip
                    add_row(sums, at, floats, place, width)
                    count += np.int64(kept[slot, 3])
                else:
                    count += add_word(
                        slots, letters, starts, word_rows, word_counts, rows, width, held, places, buckets,
                        shortest, longest, data, start, end, sums, at,
                    )  # fmt: skip
                number += 1
                if word_ngrams > 1:
                    h = hash_of(data, start, end)
                    count += add_ngrams(rows, width, buckets, word_ngrams, h, number, recent, sums, at)
        # The end of the line adds a row, and takes part in word n-grams
        words[p] = number
        word = find(slots, letters, starts, END, 0, len(END), END_HASH)
        if word >= 0:
            add_row(sums, at, word_rows, word * width, width)
            count += word_counts[word]
        if word_ngrams > 1:
            count += add_ngrams(rows, width, buckets, word_ngrams, END_HASH, number + 1, recent, sums, at)
        counts[p] = count


@njit(cache=True, nogil=True)
def two_likeliest(
    hidden: Float32, output: Float32, left: Int64, right: Int64, least: float, labels: Int64, scores: Float64
) -> None:
    """The two most likely labels of each row of `hidden` (P, D) and their probabilities, by hierarchical softmax.

    Inner node n has the vector `output[n]` and the children `left[n]`, `right[n]`: below L a label, else inner node
    child − L. Children come before their parents. As in fastText (`HierarchicalSoftmaxLoss::dfs`), each step adds 1e-5,
    and nodes below `least` are not expanded. Nor are those that can't lead to one of the two.
    """
    inner = len(left)
    nodes, chances = np.empty(inner + 1, np.int64), np.empty(inner + 1)  # still to be expanded, the likeliest last
    most = 1.001 * (1.0 + 1e-5) ** inner  # a label is at most as many times as likely as a node above it
    for p in range(len(hidden)):
        first, second = np.int64(-1), np.int64(-1)
        best = following = 0.0
        nodes[0], chances[0] = inner - 1, 1.0  # the root is the last
        waiting = 1
        while waiting > 0:
            waiting -= 1
            n, here = nodes[waiting], chances[waiting]
            if here * most < following:
                continue
            dot = np.float32(0)
            for k in range(hidden.shape[1]):
                dot += output[n, k] * hidden[p, k]
            # The sigmoid is the probability of the right child
            share = 1.0 / (1.0 + np.exp(-np.float64(dot)))
            lesser, more = (left[n], here * (1.0 - share + 1e-5)), (right[n], here * (share + 1e-5))
            if lesser[1] > more[1]:
                lesser, more = more, lesser
            for child, chance in (lesser, more):
                if child > inner:
                    if chance >= least:
                        nodes[waiting], chances[waiting] = child - inner - 1, chance
                        waiting += 1
                # The two highest, the lower label first on a tie
                elif chance > best or (chance == best and child < first):
                    first, second = child, first
                    best, following = chance, best
                elif chance > following or (chance == following and child < second):
                    second, following = child, chance
        if first < 0:
            first = 0
        if second < 0:
            second = 1 if first == 0 else 0
        labels[p, 0], labels[p, 1] = first, second
        scores[p, 0], scores[p, 1] = min(1.0, best), min(1.0, following)
