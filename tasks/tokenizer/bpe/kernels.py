"""BPE training (Sennrich et al. 2016), compiled by numba: merge the most frequent pair repeatedly, visiting only its
occurrences.

All words lie in one array, with a separator after each. A token stores its id at its first and at its last byte, so
both neighbours are found in O(1), a merge writes four numbers, and no word is ever copied: the cost is proportional to
the occurrences merged, even in a word of a megabyte. A pair's positions are collected when the pair first appears and
checked when it is merged; that is the inverted index.

Merges are ordered as by the trainer of `tokenizers` (src/models/bpe/trainer.rs): the highest count, then the smaller
pair. No two merges spell the same token: a merge is applied everywhere at once and from the left, so what lies within a
token was merged as if nothing surrounded it, and equal bytes were merged alike. Hence all occurrences of a pair appear
in a single step, its count only falls afterwards, and a pair below the minimum frequency can be forgotten.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from storage.shards.arrays import Int32, Int64, UInt8
from tasks.text.kernels import mix64
from tasks.text.table_kernels import probe
from tasks.tokenizer.bpe.queue_kernels import COUNT, FIRST, PAIR, PLACES, Queue, drop_first, push, refill

NONE = -1  # a separator, or the inside of a token
BEFORE, AFTER = range(2)  # the side of the merged pair that a neighbour is on


class Words(NamedTuple):
    """A separator, then distinct words, each followed by a separator. All but `counts` have one element per byte."""

    letters: UInt8
    symbols: Int32  # a token's id at its first and at its last byte
    owners: Int32  # the word that the byte belongs to
    counts: Int64  # occurrences of each word


class Pairs(NamedTuple):
    """Hash table from pairs of ids to counts: rows of (key, count). Linear probing, at most half full."""

    rows: Int64
    used: Int64


class Changes(NamedTuple):
    """The effect of a merge on the pairs with the token before and with the token after it (BEFORE, AFTER): indexed by
    that token's id, the sum of the counts and the number of positions; the ids in the order found, and how many; the
    positions, each with its id, and how many. Allocated once. `apply` resets only what a merge has touched."""

    sums: Int64
    numbers: Int64
    found: Int32
    founds: Int64
    tokens: Int32
    places: Int32
    sizes: Int64


@njit(cache=True, nogil=True)
def lay_out(data, ends, byte_ids, words):
    """Write the words, byte by byte. `symbols` must be filled with NONE."""
    # From 1 on: position 0 is a separator, so that every byte has a neighbour on both sides
    first, at = 0, 1
    for number in range(len(ends)):
        for i in range(first, ends[number]):
            words.letters[at] = data[i]
            words.symbols[at] = byte_ids[data[i]]
            words.owners[at] = number
            at += 1
        at += 1
        first = ends[number]


@njit(cache=True, nogil=True, inline="always")
def key_of(left, right):
    """A pair as one number, in the same order as pairs."""
    return (np.int64(left) << np.int64(32)) | np.int64(right)


@njit(cache=True, nogil=True)
def find_pair(rows, key):
    """The row of a pair, or the free one where it would go."""
    row = np.int64(mix64(np.uint64(key)) & np.uint64(len(rows) - 1))
    return probe(rows, 0, len(rows), row, key, NONE)


@njit(cache=True, nogil=True)
def insert_pair(pairs, key, count):
    """Insert a pair that is not in the table yet."""
    slot = find_pair(pairs.rows, key)
    pairs.rows[slot, 0], pairs.rows[slot, 1] = key, count
    pairs.used[0] += 1


@njit(cache=True, nogil=True)
def with_room(pairs, more):
    """The table, or a copy of twice the size as often as needed, with room for `more` pairs while at most half full."""
    size = len(pairs.rows)
    if 2 * (pairs.used[0] + more) <= size:
        return pairs
    while 2 * (pairs.used[0] + more) > size:
        size *= 2
    larger = Pairs(np.full((size, 2), NONE, np.int64), np.zeros(1, np.int64))
    for i in range(len(pairs.rows)):
        if pairs.rows[i, 0] != NONE:
            insert_pair(larger, pairs.rows[i, 0], pairs.rows[i, 1])
    return larger


@njit(cache=True, nogil=True)
def first_pairs(words, byte_ids, min_frequency, lists):
    """The pairs of bytes with their counts, the queue that holds them, and the length of `lists` in use, into which
    their positions are written, grouped by pair."""
    # A counting sort by pair; first pass: sum of counts and number of positions
    letters, symbols = words.letters, words.symbols
    counts, numbers = np.zeros(1 << 16, np.int64), np.zeros(1 << 16, np.int64)
    for at in range(1, len(symbols) - 1):
        if symbols[at] != NONE and symbols[at + 1] != NONE:
            pair = (np.int64(letters[at]) << 8) | np.int64(letters[at + 1])
            counts[pair] += words.counts[words.owners[at]]
            numbers[pair] += 1
    pairs = Pairs(np.full((1 << 17, 2), NONE, np.int64), np.zeros(1, np.int64))
    limit = np.full(1, np.iinfo(np.int64).max)
    queue = Queue(np.empty((1 << 12, 4), np.int64), np.empty((1 << 16, 4), np.int64), np.zeros(2, np.int64), limit)
    # Prefix sums give each pair its range of `lists`; rare pairs keep theirs but are never queued
    ends = np.empty(1 << 16, np.int64)
    used = 0
    for pair in range(1 << 16):
        ends[pair] = used
        used += numbers[pair]
        if counts[pair] < min_frequency:
            continue
        key = key_of(byte_ids[pair >> 8], byte_ids[pair & 255])
        insert_pair(pairs, key, counts[pair])
        queue = push(queue, counts[pair], key, ends[pair], numbers[pair])
    # Second pass: write the positions, ascending within a pair
    for at in range(1, len(symbols) - 1):
        if symbols[at] != NONE and symbols[at + 1] != NONE:
            pair = (np.int64(letters[at]) << 8) | np.int64(letters[at + 1])
            lists[ends[pair]] = at
            ends[pair] += 1
    return pairs, queue, used


@njit(cache=True, nogil=True, inline="always")
def note(changes, side, token, place, count):
    """Record that the new token has this neighbour at this position, in a word with this count."""
    if changes.numbers[side, token] == 0:
        changes.found[side, changes.founds[side]] = token
        changes.founds[side] += 1
    changes.sums[side, token] += count
    changes.numbers[side, token] += 1
    changes.tokens[side, changes.sizes[side]] = token
    changes.places[side, changes.sizes[side]] = place
    changes.sizes[side] += 1


@njit(cache=True, nogil=True)
def join(words, lengths, left, right, new, places, changes):
    """Replace the pair by the new token at every position listed that still holds the pair."""
    symbols = words.symbols
    for i in range(len(places)):
        # `left` starts at `at` and `right` at `middle`, unless an earlier merge took one of them. Positions ascend, so
        # of overlapping occurrences ("aaa") the leftmost is merged and the next one no longer matches.
        at = np.int64(places[i])
        middle = at + lengths[left]
        if symbols[at] != left or symbols[middle] != right:
            continue
        end = middle + lengths[right]
        count = words.counts[words.owners[at]]
        before, after = symbols[at - 1], symbols[end]
        if before != NONE:
            note(changes, BEFORE, before, at - lengths[before], count)
        if after != NONE:
            note(changes, AFTER, after, at, count)
        # The inner ends are cleared first: a token of one byte has both ends in one place
        symbols[middle - 1], symbols[middle] = NONE, NONE
        symbols[at], symbols[end - 1] = new, new


@njit(cache=True, nogil=True)
def lower(pairs, key, count):
    """Subtract from a pair's count, if the pair is in the table."""
    slot = find_pair(pairs.rows, key)
    if pairs.rows[slot, 0] == key:
        pairs.rows[slot, 1] -= count


@njit(cache=True, nogil=True)
def apply(changes, left, right, new, min_frequency, lists, used, pairs, queue):
    """Update the counts after a merge, queue the new pairs with their positions in `lists[used:]`, and reset `changes`.

    A neighbour's pair with the old token loses what its pair with the new token gains.
    """
    sums, numbers, found, founds = changes.sums, changes.numbers, changes.found, changes.founds
    pairs = with_room(pairs, founds[BEFORE] + founds[AFTER])
    for side in (BEFORE, AFTER):
        for i in range(founds[side]):
            token = found[side, i]
            lower(pairs, key_of(token, left) if side == BEFORE else key_of(right, token), sums[side, token])
    # Two new tokens in a row: the first saw `left` after it, which then became part of the second
    sums[AFTER, left] -= sums[BEFORE, new]
    for side in (BEFORE, AFTER):
        # Reserve room in `lists` for each pair that is frequent enough; NONE marks the others
        for i in range(founds[side]):
            token = found[side, i]
            count, number = sums[side, token], numbers[side, token]
            sums[side, token], numbers[side, token] = 0, NONE
            if count >= min_frequency:
                key = key_of(token, new) if side == BEFORE else key_of(new, token)
                insert_pair(pairs, key, count)
                queue = push(queue, count, key, used, number)
                numbers[side, token] = used  # from here on, where its next position goes
                used += number
        # Write the positions, in the order in which they were found: ascending
        for i in range(changes.sizes[side]):
            token = changes.tokens[side, i]
            if numbers[side, token] != NONE:
                lists[numbers[side, token]] = changes.places[side, i]
                numbers[side, token] += 1
        for i in range(founds[side]):
            numbers[side, found[side, i]] = 0
        founds[side], changes.sizes[side] = 0, 0
    return pairs, queue, used


@njit(cache=True, nogil=True)
def room_for_changes(size, ids):
    """Changes for words of `size` positions and `ids` ids."""
    return Changes(
        np.zeros((2, ids), np.int64),
        np.zeros((2, ids), np.int64),
        np.empty((2, ids), np.int32),
        np.zeros(2, np.int64),
        np.empty((2, size // 2 + 1), np.int32),
        np.empty((2, size // 2 + 1), np.int32),
        np.zeros(2, np.int64),
    )


@njit(cache=True, nogil=True)
def take_first(pairs, queue, min_frequency):
    """The queue without the most frequent pair, and (its count, the pair, its first position, the number of them). The
    count is 0 if no pair is left."""
    while True:
        # The heap holds the frequent pairs; when it is empty, the next ones come from the rest
        if queue.sizes[0] == 0:
            if queue.sizes[1] == 0:
                return queue, (0, 0, 0, 0)
            queue = refill(queue)
        row = queue.heap[0]
        count, pair, start, number = row[COUNT], row[PAIR], row[FIRST], row[PLACES]
        drop_first(queue)
        # Lazy update: counts in the queue may be too high. Since they only fall, a pair whose count is still right is
        # the most frequent one; any other goes back with its present count, or is dropped.
        now = pairs.rows[find_pair(pairs.rows, pair), 1]
        if now == count:
            return queue, (count, pair, start, number)
        if now >= min_frequency:
            queue = push(queue, now, pair, start, number)


@njit(cache=True, nogil=True)
def learn(words, byte_ids, known, vocab_size, min_frequency):
    """Merge until there are `vocab_size` ids or no pair left with a count of `min_frequency`, which is at least 1.

    Returns the merges as (left id, right id, count), new ids being numbered from `known` in this order. The counts
    never rise: the pairs that a merge creates are no more frequent than the pair itself, and all others only fall.
    """
    size, ids = len(words.symbols), max(vocab_size, known)
    # One position per byte and two per merged occurrence; the pages that are never written take no memory
    lists = np.empty(3 * size, np.int32)
    changes = room_for_changes(size, ids)
    pairs, queue, used = first_pairs(words, byte_ids, min_frequency, lists)
    merges, first = np.empty((ids, 3), np.int64), known
    lengths = np.ones(ids, np.int32)
    while known < vocab_size:
        queue, (count, pair, start, number) = take_first(pairs, queue, min_frequency)
        if count == 0:
            break
        left, right = pair >> 32, pair & 0xFFFFFFFF
        merges[known - first, 0], merges[known - first, 1], merges[known - first, 2] = left, right, count
        lengths[known] = lengths[left] + lengths[right]
        join(words, lengths, left, right, known, lists[start : start + number], changes)
        pairs, queue, used = apply(changes, left, right, known, min_frequency, lists, used, pairs, queue)
        known += 1
    return merges[: known - first]


@njit(cache=True, nogil=True)
def begin(keys, counts, firsts, numbers, min_frequency):
    """The table and the queue of the pairs that words of tokens begin with: pair i has the positions `firsts[i]` to
    `firsts[i] + numbers[i]` of a list."""
    pairs = with_room(Pairs(np.full((1 << 4, 2), NONE, np.int64), np.zeros(1, np.int64)), len(keys))
    limit = np.full(1, np.iinfo(np.int64).max)
    queue = Queue(np.empty((1 << 12, 4), np.int64), np.empty((1 << 16, 4), np.int64), np.zeros(2, np.int64), limit)
    for i in range(len(keys)):
        if counts[i] >= min_frequency:
            insert_pair(pairs, keys[i], counts[i])
            queue = push(queue, counts[i], keys[i], firsts[i], numbers[i])
    return pairs, queue
