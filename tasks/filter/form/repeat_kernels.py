"""The hot loops of repetition, compiled by numba: repeats among words, n-grams, lines and paragraphs.

The measures are Gopher's (Rae et al. 2021, table A1), with the details of datatrove 0.10. An n-gram is never spelled
out. Every distinct word gets a number, a 2-gram is a pair of words, a 3-gram a pair of overlapping 2-grams, and so on,
and each pair of numbers gets a number of its own (the naming technique of Karp, Miller and Rosenberg 1972). An n-gram
can repeat only where both its halves do, so each round scans only what the previous one left: from n = 5 on, a few
percent of the words of ordinary text.

All rounds share one open-addressing table with rows of (key, round and number). Each round uses as many rows as it
needs. A row of an earlier round counts as empty, so nothing is ever cleared.
"""

from __future__ import annotations

import numpy as np
from numba import njit, types
from numba.extending import intrinsic

from tasks.text.kernels import GOLDEN, mix64
from tasks.text.table_kernels import HALF

LOW = np.uint64(0xFFFFFFFF)
STOPPED = np.uint64(0xFFF)  # the bits of a hash that rule out most words as stop words


@njit(cache=True, nogil=True, _nrt=False, inline="always")
def next_turn(work):
    """Start a new round of the table, which empties it. Returns the round's number."""
    work.turn[0] += 1
    return np.uint64(work.turn[0])


@njit(cache=True, nogil=True, _nrt=False, inline="always")
def table_shift(keys):
    """The shift that leaves just enough bits of a hash to index a table that `keys` keys fill to half at most."""
    bits = 3
    while (1 << bits) < 2 * keys:
        bits += 1
    return np.uint64(64 - bits)


@njit(cache=True, nogil=True, _nrt=False, inline="always")
def find_row(table, shift, turn, key):
    """(row, number) of a key in round `turn`. For an absent key, the empty row to put it in, and −1."""
    mask = (np.uint64(1) << (np.uint64(64) - shift)) - np.uint64(1)
    # Fibonacci hashing, then linear probing. A row of another round ends the probe as an empty one would
    row = (key * GOLDEN) >> shift
    while (table[row, 1] >> HALF) == turn:
        if table[row, 0] == key:
            return row, np.int64(table[row, 1] & LOW)
        row = (row + np.uint64(1)) & mask
    return row, np.int64(-1)


@njit(cache=True, nogil=True, _nrt=False)
def number_words(work, words, stop_words, stops):
    """Number the distinct words by first occurrence, and leave in `work` the positions of those that occur at least
    twice. Returns the number of positions left, and adds to `stops` the number of distinct stop words of each list.
    """
    hashes, numbers, places, counts, table = work.word_hashes, work.numbers, work.places, work.counts, work.table
    turn = next_turn(work)
    shift = table_shift(words)
    distinct = 0
    for w in range(words):
        key = hashes[w]
        row, number = find_row(table, shift, turn, key)
        if number < 0:
            number = distinct
            table[row, 0] = key
            table[row, 1] = (turn << HALF) | np.uint64(number)
            counts[number] = 0
            distinct += 1
            # Once per distinct word, so each stop word counts once. Few words pass the first test
            if stop_words.perhaps[key & STOPPED]:
                for s in range(len(stop_words.hashes)):
                    stops[stop_words.lists[s]] += key == stop_words.hashes[s]
        counts[number] += 1
        places[w] = w
        numbers[w] = number
    return keep_repeated(work, words)


@njit(cache=True, nogil=True)
def count_stop_sequences(work, words, stop_words, stops):
    """Add to `stops` the number of distinct stop words of each list that are sequences of words."""
    hashes, sequences, begins = work.word_hashes, stop_words.sequences, stop_words.begins
    seen = np.zeros(len(stop_words.sequence_lists), np.bool_)
    for w in range(words):
        if not stop_words.perhaps_begins[hashes[w] & STOPPED]:
            continue
        for s in range(len(seen)):
            length = begins[s + 1] - begins[s]
            if seen[s] or w + length > words:
                continue
            k = 0
            while k < length and hashes[w + k] == sequences[begins[s] + k]:
                k += 1
            if k == length:
                seen[s] = True
                stops[stop_words.sequence_lists[s]] += 1


@njit(cache=True, nogil=True, _nrt=False)
def keep_repeated(work, left):
    """Keep the positions whose number occurs at least twice. Returns how many they are."""
    numbers, places, counts = work.numbers, work.places, work.counts
    kept = 0
    for p in range(left):
        # Compaction in place: always write, but advance only past kept positions. `kept <= p`, so no unread one is lost
        place, number = places[p], numbers[p]
        places[kept] = place
        numbers[kept] = number
        kept += counts[number] > 1
    return kept


@njit(cache=True, nogil=True, _nrt=False)
def number_ngrams(work, left):
    """From the positions of repeated n-grams to those of repeated n+1-grams: (positions left, distinct n+1-grams met).

    One round of Karp, Miller and Rosenberg (1972).
    """
    numbers, places, counts, firsts, table = work.numbers, work.places, work.counts, work.firsts, work.table
    turn = next_turn(work)
    shift = table_shift(left)
    distinct = 0
    met = 0
    for p in range(left - 1):
        place = places[p]
        # If the n-gram at the next word is unique, so is the n+1-gram that contains it
        if places[p + 1] != place + 1:
            continue
        # An n+1-gram is named by the pair of n-grams that overlap in it
        key = (np.uint64(numbers[p]) << HALF) | np.uint64(numbers[p + 1])
        row, number = find_row(table, shift, turn, key)
        if number < 0:
            number = distinct
            table[row, 0] = key
            table[row, 1] = (turn << HALF) | np.uint64(number)
            counts[number] = 0
            firsts[number] = place
            distinct += 1
        counts[number] += 1
        places[met] = place
        numbers[met] = number
        met += 1
    return keep_repeated(work, met), distinct


@njit(cache=True, nogil=True, _nrt=False)
def top_characters(work, words, n, distinct, as_datatrove):
    """Characters in all occurrences of the most frequent n-gram, the first on a tie, with one space where white space
    separates its words.

    If no n-gram repeats, this is 0 or, with `as_datatrove`, the text's first n-gram counts. `as_datatrove` also counts
    a space between any two words.
    """
    if words < n:
        return 0
    counts = work.counts
    # Strictly more: numbers follow first occurrence, so the earliest wins a tie
    first, count = 0, 1
    for number in range(distinct):
        if counts[number] > count:
            first, count = work.firsts[number], counts[number]
    if count == 1 and not as_datatrove:
        return 0
    # `lengths` is a running sum without white space
    size = work.lengths[first + n] - work.lengths[first]
    for w in range(first + 1, first + n):
        size += as_datatrove or work.word_starts[w] > work.word_ends[w - 1]
    return size * count


@njit(cache=True, nogil=True, _nrt=False)
def duplicate_characters(work, n, left):
    """Characters, without white space, in n-grams that repeat an earlier one, scanning from left to right.

    After a repeat the scan continues behind it, and n-grams that start inside it don't count as seen. N-grams are equal
    if their words are. datatrove joins words without a space, so it also takes "a bc" for "ab c".
    """
    numbers, places, counts, lengths = work.numbers, work.places, work.counts, work.lengths
    characters = 0
    free = 0
    for p in range(left):
        place, number = places[p], numbers[p]
        # Inside the last repeat
        if place < free:
            continue
        # The count is no longer needed, so −1 in its place marks an n-gram as seen
        if counts[number] < 0:
            characters += lengths[place + n] - lengths[place]
            free = place + n
        else:
            counts[number] = -1
    return characters


@intrinsic
def load64(typing, data, start):
    """The 8 bytes at `start` as a number: one load, where numba would emit eight loads and shifts.

    Checks neither alignment nor bounds.
    """

    def generate(context, builder, signature, values):
        array = context.make_array(signature.args[0])(context, builder, values[0])
        place = builder.gep(array.data, [values[1]])
        word = context.get_value_type(types.uint64)
        return builder.load(builder.bitcast(place, word.as_pointer()), align=1)

    return types.uint64(data, types.int64), generate


@njit(cache=True, nogil=True, _nrt=False, inline="always")
def hash_span(data, start, end):
    """A 64-bit hash of `data[start:end]`, 8 bytes at a time (multiply and xor-shift, in the manner of FxHash)."""
    # The length goes in first: the last bytes are zero-padded, and padding must not collide with zeros
    h = GOLDEN ^ np.uint64(end - start)
    i = start
    while i + 8 <= end:
        h = (h ^ load64(data, i)) * GOLDEN
        h ^= h >> HALF
        i += 8
    # Up to 7 bytes are left
    word = np.uint64(0)
    while i < end:
        word = (word << np.uint64(8)) | np.uint64(data[i])
        i += 1
    return mix64((h ^ word) * GOLDEN)


@njit(cache=True, nogil=True, _nrt=False, inline="always")
def seen_before(table, shift, turn, key):
    """Whether this key was queried before in round `turn`. Marks it as queried."""
    row, number = find_row(table, shift, turn, key)
    if number < 0:
        table[row, 0] = key
        table[row, 1] = turn << HALF
    return number >= 0


@njit(cache=True, nogil=True, _nrt=False)
def count_paragraphs(data, begin, work, breaks, words, row):
    """Count paragraphs and repeated paragraphs: the parts between two or more newlines of the stripped text.

    `breaks` is the number of newlines. As `re.split(r"\\n{2,}", text.strip())` in datatrove's repetition filter.
    """
    if not words:
        return
    row.paragraphs = 1
    newlines, table = work.newlines, work.table
    turn = next_turn(work)
    shift = table_shift(breaks // 2 + 1)
    start = work.word_starts[0]
    last = work.word_ends[words - 1]
    n = 0
    while start < last:
        # Skip to the first of the next two consecutive newlines
        while n < breaks and (newlines[n] < start or n + 1 == breaks or newlines[n + 1] != newlines[n] + 1):
            n += 1
        end = min(last, newlines[n]) if n < breaks else last
        if seen_before(table, shift, turn, hash_span(data, begin + start, begin + end)):
            row.duplicate_paragraphs += 1
            # Characters are counted only here, since few paragraphs repeat
            for i in range(begin + start, begin + end):
                row.duplicate_paragraph_characters += (data[i] & 0xC0) != 0x80
        if end == last:
            return
        # More newlines belong to the same separator
        while n + 1 < breaks and newlines[n + 1] == newlines[n] + 1:
            n += 1
        start = newlines[n] + 1
        row.paragraphs += 1
