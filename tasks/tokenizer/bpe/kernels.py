"""The hot loops of BPE training, compiled by numba: merge the commonest pair, again and again, touching only the places
where it stands.

All words lie one after the other in one array, a separator after each. A token writes its id at its first and at its
last letter, so that both neighbours are found in one step, a merge writes four numbers, and no word is ever copied:
the cost is that of the occurrences merged, also in a word of a megabyte. A pair's places are collected when the pair
comes to be and are checked when it is merged; that is the inverted index.

The order of merges is that of the trainer of `tokenizers` (src/models/bpe/trainer.rs): the greatest count, then the
smaller pair. Two merges never spell one token: a merge is made everywhere at once and from the left, so what lies
within a token was merged as if it stood alone, and equal bytes were merged alike. So a pair comes to be in one step,
its count only falls after it, and one that falls below the least frequency is forgotten.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from storage.arrays import Int32, Int64, UInt8
from tasks.text.kernels import mix64
from tasks.text.table_kernels import probe
from tasks.tokenizer.bpe.queue_kernels import COUNT, FIRST, PAIR, PLACES, Queue, drop_first, push, refill

NONE = -1  # a separator, or the inside of a token
BEFORE, AFTER = range(2)  # a neighbour of the merged pair


class Words(NamedTuple):
    """A separator, then distinct words, each with a separator after it. All but `counts` are by letter."""

    letters: UInt8
    symbols: Int32  # the id of a token at its first and at its last letter
    owners: Int32  # the word that it belongs to
    counts: Int64  # of each word


class Pairs(NamedTuple):
    """A table from pairs of ids to their counts: rows of (key, count)."""

    rows: Int64
    used: Int64


class Changes(NamedTuple):
    """What one merge does to the pairs with the token before, and with the token after: by that token's id the summed
    counts and how many places, the ids in the order found; and the places, each with its id."""

    sums: Int64
    numbers: Int64
    found: Int32
    founds: Int64
    tokens: Int32
    places: Int32
    sizes: Int64


@njit(cache=True, nogil=True)
def lay_out(data, ends, byte_ids, words):
    """Write the words, letter by letter. `symbols` come filled with NONE."""
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
    """A pair as one number, ordered as pairs are."""
    return (np.int64(left) << np.int64(32)) | np.int64(right)


@njit(cache=True, nogil=True)
def find_pair(rows, key):
    """The row of a pair, or the free one where it would stand."""
    row = np.int64(mix64(np.uint64(key)) & np.uint64(len(rows) - 1))
    return probe(rows, 0, len(rows), row, key, NONE)


@njit(cache=True, nogil=True)
def insert_pair(pairs, key, count):
    """Enter a pair that is not there yet."""
    slot = find_pair(pairs.rows, key)
    pairs.rows[slot, 0], pairs.rows[slot, 1] = key, count
    pairs.used[0] += 1


@njit(cache=True, nogil=True)
def with_room(pairs, more):
    """The table, or a larger one, with room for so many more pairs: it is at most half full."""
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
    """The pairs of bytes with their counts, their places sorted by pair into `lists`, and the queue that holds them."""
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
    for at in range(1, len(symbols) - 1):
        if symbols[at] != NONE and symbols[at + 1] != NONE:
            pair = (np.int64(letters[at]) << 8) | np.int64(letters[at + 1])
            lists[ends[pair]] = at
            ends[pair] += 1
    return pairs, queue, used


@njit(cache=True, nogil=True, inline="always")
def note(changes, side, token, place, count):
    """The new token stands beside this one, here."""
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
    """Make one token of the two wherever the list says; what has changed there since is passed over."""
    symbols = words.symbols
    for i in range(len(places)):
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
        symbols[middle - 1], symbols[middle] = NONE, NONE
        symbols[at], symbols[end - 1] = new, new


@njit(cache=True, nogil=True)
def lower(pairs, key, count):
    """Take from a pair's count, if it is remembered."""
    slot = find_pair(pairs.rows, key)
    if pairs.rows[slot, 0] == key:
        pairs.rows[slot, 1] -= count


@njit(cache=True, nogil=True)
def apply(changes, left, right, new, min_frequency, lists, used, pairs, queue):
    """Bring counts up to date, queue the new pairs with their places in `lists[used:]`, and forget the changes."""
    sums, numbers, found, founds = changes.sums, changes.numbers, changes.found, changes.founds
    pairs = with_room(pairs, founds[BEFORE] + founds[AFTER])
    for side in (BEFORE, AFTER):
        for i in range(founds[side]):
            token = found[side, i]
            lower(pairs, key_of(token, left) if side == BEFORE else key_of(right, token), sums[side, token])
    sums[AFTER, left] -= sums[BEFORE, new]  # what came after a new token and was then merged too
    for side in (BEFORE, AFTER):
        for i in range(founds[side]):
            token = found[side, i]
            count, number = sums[side, token], numbers[side, token]
            sums[side, token], numbers[side, token] = 0, NONE
            if count >= min_frequency:
                key = key_of(token, new) if side == BEFORE else key_of(new, token)
                insert_pair(pairs, key, count)
                queue = push(queue, count, key, used, number)
                numbers[side, token] = used  # where its next place goes
                used += number
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
def learn(words, byte_ids, known, vocab_size, min_frequency):
    """Merge until there are `vocab_size` ids or no pair is left that counts `min_frequency`, which is at least 1.

    Returns the merges as (left id, right id, count), the new ids from `known` on in their order. The counts never rise:
    the pairs that a merge makes are no commoner than the pair itself, and the others can only fall.
    """
    size, ids = len(words.symbols), max(vocab_size, known)
    lists = np.empty(3 * size, np.int32)  # a place for each letter, two for each merge; pages count once written
    changes = Changes(
        np.zeros((2, ids), np.int64), np.zeros((2, ids), np.int64), np.empty((2, ids), np.int32),
        np.zeros(2, np.int64), np.empty((2, size // 2 + 1), np.int32), np.empty((2, size // 2 + 1), np.int32),
        np.zeros(2, np.int64),
    )  # fmt: skip
    pairs, queue, used = first_pairs(words, byte_ids, min_frequency, lists)
    merges, first = np.empty((ids, 3), np.int64), known
    lengths = np.ones(ids, np.int32)
    while known < vocab_size:
        if queue.sizes[0] == 0:
            if queue.sizes[1] == 0:
                break
            queue = refill(queue)
        row = queue.heap[0]
        count, pair, start, number = row[COUNT], row[PAIR], row[FIRST], row[PLACES]
        drop_first(queue)
        now = pairs.rows[find_pair(pairs.rows, pair), 1]
        if now != count:
            if now >= min_frequency:
                queue = push(queue, now, pair, start, number)
            continue
        left, right = pair >> 32, pair & 0xFFFFFFFF
        merges[known - first, 0], merges[known - first, 1], merges[known - first, 2] = left, right, count
        lengths[known] = lengths[left] + lengths[right]
        join(words, lengths, left, right, known, lists[start : start + number], changes)
        pairs, queue, used = apply(changes, left, right, known, min_frequency, lists, used, pairs, queue)
        known += 1
    return merges[: known - first]
