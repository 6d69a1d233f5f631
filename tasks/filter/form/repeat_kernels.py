"""The hot loops of repetition, compiled by numba: what occurs twice among words, n-grams, lines and paragraphs.

An n-gram is never spelt out. Every distinct word gets a number; a 2-gram is a pair of words, a 3-gram a pair of
overlapping 2-grams, and so on: each a pair of numbers, which gets a number of its own (the naming of Karp, Miller and
Rosenberg 1972). An n-gram can repeat only where both its halves do, so each round looks at what the last one left: in
ordinary text a few words in a hundred from the fifth on.

All share one open-addressing table: rows of (key, round and number), of which each round uses as many as it needs. A
row of an earlier round counts as empty, so that nothing is ever cleared.
"""

from __future__ import annotations

import numpy as np
from numba import njit, types
from numba.extending import intrinsic

from tasks.text.kernels import GOLDEN, mix64
from tasks.text.table_kernels import HALF

LOW = np.uint64(0xFFFFFFFF)


@njit(cache=True, nogil=True, inline="always")
def next_turn(work):
    """The number of a new round of the table."""
    work.turn[0] += 1
    return np.uint64(work.turn[0])


@njit(cache=True, nogil=True, inline="always")
def table_shift(keys):
    """The shift that leaves enough bits of a hash for a table that `keys` keys fill at most half."""
    bits = 3
    while (1 << bits) < 2 * keys:
        bits += 1
    return np.uint64(64 - bits)


@njit(cache=True, nogil=True, inline="always")
def find_row(table, shift, turn, key):
    """(row, number) of a key in round `turn`; of a key that is not there the empty row for it and −1."""
    mask = (np.uint64(1) << (np.uint64(64) - shift)) - np.uint64(1)
    row = (key * GOLDEN) >> shift
    while (table[row, 1] >> HALF) == turn:
        if table[row, 0] == key:
            return row, np.int64(table[row, 1] & LOW)
        row = (row + np.uint64(1)) & mask
    return row, np.int64(-1)


@njit(cache=True, nogil=True)
def number_words(work, words, stop_words):
    """Number the distinct words in order of their first place; leave in `work` the places of those that occur twice.

    Returns (places left, distinct stop words).
    """
    hashes, numbers, places, counts, table = work.word_hashes, work.numbers, work.places, work.counts, work.table
    turn = next_turn(work)
    shift = table_shift(words)
    found = 0
    stops = 0
    for w in range(words):
        key = hashes[w]
        row, number = find_row(table, shift, turn, key)
        if number < 0:
            number = found
            table[row, 0] = key
            table[row, 1] = (turn << HALF) | np.uint64(number)
            counts[number] = 0
            found += 1
            for s in range(len(stop_words)):
                stops += key == stop_words[s]
        counts[number] += 1
        places[w] = w
        numbers[w] = number
    return keep_repeated(work, words), stops


@njit(cache=True, nogil=True)
def keep_repeated(work, left):
    """Leave the places whose number occurs twice; how many they are."""
    numbers, places, counts = work.numbers, work.places, work.counts
    kept = 0
    for p in range(left):
        place, number = places[p], numbers[p]
        places[kept] = place
        numbers[kept] = number
        kept += counts[number] > 1
    return kept


@njit(cache=True, nogil=True)
def number_ngrams(work, left):
    """From the places of n-grams that may repeat to those of n+1-grams: (places left, distinct n+1-grams met)."""
    numbers, places, counts, firsts, table = work.numbers, work.places, work.counts, work.firsts, work.table
    turn = next_turn(work)
    shift = table_shift(left)
    found = 0
    met = 0
    for p in range(left - 1):
        place = places[p]
        if places[p + 1] != place + 1:
            continue
        key = (np.uint64(numbers[p]) << HALF) | np.uint64(numbers[p + 1])
        row, number = find_row(table, shift, turn, key)
        if number < 0:
            number = found
            table[row, 0] = key
            table[row, 1] = (turn << HALF) | np.uint64(number)
            counts[number] = 0
            firsts[number] = place
            found += 1
        counts[number] += 1
        places[met] = place
        numbers[met] = number
        met += 1
    return keep_repeated(work, met), found


@njit(cache=True, nogil=True)
def top_characters(work, words, n, distinct):
    """Characters in all occurrences of the commonest n-gram, the first of them if several are; one space between two
    words. Of n-grams that all stand alone that is the first one."""
    if words < n:
        return 0
    counts = work.counts
    first, count = 0, 1
    for number in range(distinct):
        if counts[number] > count:
            first, count = work.firsts[number], counts[number]
    return (work.lengths[first + n] - work.lengths[first] + n - 1) * count


@njit(cache=True, nogil=True)
def duplicate_characters(work, n, left):
    """Characters, without white space, of the n-grams that repeat one seen before, read from left to right; after such
    an n-gram reading goes on behind it, and what it covered counts as not seen.

    N-grams are alike if their words are; datatrove, which joins words without a space, also takes "a bc" for "ab c".
    """
    numbers, places, counts, lengths = work.numbers, work.places, work.counts, work.lengths
    characters = 0
    free = 0
    for p in range(left):
        place, number = places[p], numbers[p]
        if place < free:
            continue
        if counts[number] < 0:
            characters += lengths[place + n] - lengths[place]
            free = place + n
        else:
            counts[number] = -1  # seen
    return characters


@intrinsic
def load64(typing, data, start):
    """The 8 bytes from `start` on as a number: one load, where numba would make eight and shift them together.

    Neither alignment nor bounds are checked.
    """

    def generate(context, builder, signature, values):
        array = context.make_array(signature.args[0])(context, builder, values[0])
        place = builder.gep(array.data, [values[1]])
        word = context.get_value_type(types.uint64)
        return builder.load(builder.bitcast(place, word.as_pointer()), align=1)

    return types.uint64(data, types.int64), generate


@njit(cache=True, nogil=True, inline="always")
def hash_span(data, start, end):
    """64 bits for the bytes from `start` to `end`, 8 at a time."""
    h = GOLDEN ^ np.uint64(end - start)
    i = start
    while i + 8 <= end:
        h = (h ^ load64(data, i)) * GOLDEN
        h ^= h >> HALF
        i += 8
    word = np.uint64(0)
    while i < end:
        word = (word << np.uint64(8)) | np.uint64(data[i])
        i += 1
    return mix64((h ^ word) * GOLDEN)


@njit(cache=True, nogil=True, inline="always")
def seen_before(table, shift, turn, key):
    """Whether this key was asked for already in round `turn`."""
    row, number = find_row(table, shift, turn, key)
    if number < 0:
        table[row, 0] = key
        table[row, 1] = turn << HALF
    return number >= 0


@njit(cache=True, nogil=True)
def count_paragraphs(data, begin, work, found, words, row):
    """Paragraphs are what two newlines or more separate, in the text without the white space around it.

    `found` is the number of newlines.
    """
    if not words:
        return
    row.paragraphs = 1
    newlines, table = work.newlines, work.table
    turn = next_turn(work)
    shift = table_shift(found // 2 + 1)
    start = work.word_starts[0]
    last = work.word_ends[words - 1]
    n = 0
    while start < last:
        # To the next two newlines in a row behind the start
        while n < found and (newlines[n] < start or n + 1 == found or newlines[n + 1] != newlines[n] + 1):
            n += 1
        end = min(last, newlines[n]) if n < found else last
        if seen_before(table, shift, turn, hash_span(data, begin + start, begin + end)):
            row.duplicate_paragraphs += 1
            for i in range(begin + start, begin + end):
                row.duplicate_paragraph_characters += (data[i] & 0xC0) != 0x80
        if end == last:
            return
        while n + 1 < found and newlines[n + 1] == newlines[n] + 1:
            n += 1
        start = newlines[n] + 1
        row.paragraphs += 1
