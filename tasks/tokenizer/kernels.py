"""The hot loops from UTF-8 to token ids, compiled by numba: texts to pre-tokens, pre-tokens to ids.

Why our own: `tokenizers` runs a general regular expression over every text and makes a string of every pre-token. Here
a text never leaves its buffer. A pre-token of up to 15 bytes is its own key, two words of 64 bits with the length in
the last byte; most are found in a table of what was encoded before, with their ids beside the key. Keys are compared
whole, so no collision of hashes can change an id.

Merging is byte-pair encoding as Sennrich et al. 2016 have it: of all neighbours the pair with the lowest rank is
joined, the leftmost of equals first.
"""

from __future__ import annotations

import heapq

import numpy as np
from numba import njit

from storage.arrays import Int64, UInt8, UInt32, UInt64
from tasks.text.kernels import GOLDEN, decode, same_bytes
from tasks.text.table_kernels import free_row, probe
from tasks.tokenizer.characters import LETTER, NUMBER, OTHER, SIZE, SPACE

PACKED = 15  # bytes of a pre-token that is its own key
LONGEST = 128  # bytes of a pre-token that is remembered; a longer one hardly comes again
BESIDE = 3  # ids that stand beside the key
NO_PAIR = np.uint64(0xFFFFFFFFFFFFFFFF)
ONE = np.uint64(1)
ONES = np.uint64(0x0101010101010101)
HIGH = np.uint64(0x8080808080808080)
LOWER = np.uint64(0x2020202020202020)
FROM_A = np.uint64((0x80 - ord("a")) * 0x0101010101010101)
BEYOND_Z = np.uint64((0x80 - ord("z") - 1) * 0x0101010101010101)
ODD = np.uint64(0xD6E8FEB86659FD93)


@njit(cache=True, nogil=True, inline="always")
def kind_at(data, i, end, kinds):
    """(class, place after it) of the character at `i`."""
    b = data[i]
    if b < 128:
        return kinds[b], i + 1
    c, used = decode(data, i, end)
    if c < SIZE:
        return kinds[c], i + used
    return np.uint8(OTHER), i + used


@njit(cache=True, nogil=True)
def contraction(data, i, end, case):
    """Bytes of `s`, `t`, `re`, `ve`, `m`, `ll` or `d` at `i`, or 0; `case` is 32 where capitals count too."""
    if i >= end:
        return 0
    a = data[i] | case
    if a == ord("s") or a == ord("t") or a == ord("m") or a == ord("d"):
        return 1
    if i + 1 < end:
        b = data[i + 1] | case
        if (a == ord("l") and b == ord("l")) or ((a == ord("r") or a == ord("v")) and b == ord("e")):
            return 2
    return 0


@njit(cache=True, nogil=True)
def run_of(kind, data, i, end, kinds):
    """Where the characters of this class end that start at `i`."""
    while i < end:
        found, after = kind_at(data, i, end, kinds)
        if found != kind:
            break
        i = after
    return i


@njit(cache=True, nogil=True, inline="always")
def run_of_letters(data, words, i, end, kinds):
    """Where the letters end that start at `i`: 8 bytes at a time while they are ASCII.

    What a byte looks like is asked of all 8 at once (Warren 2012, "Hacker's Delight", section 6-1): a branch for each
    letter would be mispredicted at the end of every word.
    """
    while i < end:
        lower = words[i] | LOWER
        ascii = lower & ~HIGH
        letters = (ascii + FROM_A) & ~(ascii + BEYOND_Z) & ~lower & HIGH
        others = letters ^ HIGH
        if others == 0:
            i += 8
            continue
        # The bits up to the first other byte's highest; one of each byte, summed
        i += np.int64((((others ^ (others - ONE)) & ONES) * ONES) >> np.uint64(56)) - 1
        if i < end and data[i] >= 128:
            return run_of(LETTER, data, i, end, kinds)
        break
    return min(i, end)


@njit(cache=True, nogil=True)
def is_line_break(data, i):
    """CR or LF at `i`."""
    return data[i] == 10 or data[i] == 13


@njit(cache=True, nogil=True)
def white_space(data, start, i, end, kinds, breaks):
    """The end of the white space from `start`, of which the first character ends at `i`.

    `\\s+(?!\\S)|\\s+`: all of it at the text's end, all but the last character before others, that one if it is alone.
    With `breaks`, `\\s*[\\r\\n]+` goes first: up to the last line break.
    """
    last = start
    line = i if breaks and is_line_break(data, start) else start
    while i < end:
        kind, after = kind_at(data, i, end, kinds)
        if kind != SPACE:
            break
        last = i
        if breaks and is_line_break(data, i):
            line = after
        i = after
    if line > start:
        return line
    return last if i < end and last > start else i


@njit(cache=True, nogil=True, inline="always")
def cut_gpt2(data, words, start, end, kinds):
    """Where the pre-token ends that starts at `start`, by GPT-2's pattern."""
    first = start + np.int64(data[start] == ord(" "))
    if first < end and data[first] < 128 and kinds[data[first]] == LETTER:
        return run_of_letters(data, words, first, end, kinds)
    kind, i = kind_at(data, start, end, kinds)
    if kind == OTHER and data[start] == ord("'"):
        short = contraction(data, i, end, np.uint8(0))
        if short:
            return i + short
    if data[start] == ord(" ") and i < end:
        behind, after = kind_at(data, i, end, kinds)
        if behind != SPACE:
            kind, i = behind, after
    if kind == SPACE:
        return white_space(data, start, i, end, kinds, False)
    return run_of(kind, data, i, end, kinds)


@njit(cache=True, nogil=True, inline="always")
def cut_gpt4(data, words, start, end, kinds):
    """Where the pre-token ends that starts at `start`, by GPT-4's and Llama 3's pattern."""
    first = start + np.int64(data[start] == ord(" "))
    if first < end and data[first] < 128 and kinds[data[first]] == LETTER:
        return run_of_letters(data, words, first, end, kinds)
    kind, i = kind_at(data, start, end, kinds)
    if kind == LETTER:
        return run_of(kind, data, i, end, kinds)
    if kind == NUMBER:
        for _ in range(2):
            if i < end:
                behind, after = kind_at(data, i, end, kinds)
                if behind == NUMBER:
                    i = after
        return i
    if data[start] == ord("'"):
        short = contraction(data, i, end, np.uint8(32))
        if short:
            return i + short
    if i < end and not is_line_break(data, start):
        behind, after = kind_at(data, i, end, kinds)
        if behind == LETTER:
            return run_of_letters(data, words, after, end, kinds)
        if behind == OTHER and data[start] == ord(" "):
            kind, i = behind, after
    if kind == SPACE:
        return white_space(data, start, i, end, kinds, True)
    i = run_of(kind, data, i, end, kinds)
    while i < end and is_line_break(data, i):
        i += 1
    return i


@njit(cache=True, nogil=True)
def split(data: UInt8, words: UInt64, offsets: Int64, kinds: UInt8, gpt2: bool, ends: Int64, documents: Int64) -> int:
    """Cut D texts into pre-tokens, which fill their texts; the number of them.

    Text d is `data[offsets[d]:offsets[d + 1]]` and valid UTF-8; `words[i]` are the 8 bytes from i on, little-endian;
    16 bytes behind the texts must be readable. Written: to `ends` where each pre-token ends, to `documents[d]` how many
    there are up to the end of text d. `ends` needs a place for every byte.
    """
    count = 0
    for d in range(len(offsets) - 1):
        i, end = offsets[d], offsets[d + 1]
        if gpt2:
            while i < end:
                i = cut_gpt2(data, words, i, end, kinds)
                ends[count] = i
                count += 1
        else:
            while i < end:
                i = cut_gpt4(data, words, i, end, kinds)
                ends[count] = i
                count += 1
        documents[d] = count
    return count


@njit(cache=True, nogil=True, inline="always")
def row_of(left, right, pairs):
    """(key of a pair, its row or the free one where it would go)."""
    key = (np.uint64(left) << np.uint64(32)) | np.uint64(right)
    row = np.int64((key * GOLDEN) >> np.uint64(32)) & (len(pairs) - 1)
    return key, probe(pairs, 0, len(pairs), row, key, NO_PAIR)


@njit(cache=True, nogil=True)
def fill_pairs(left: UInt32, right: UInt32, joined: UInt32, pairs: UInt64) -> None:
    """Enter merges, in the order of their ranks, into `pairs`: 2**k rows of key, and rank with joined id."""
    pairs[:] = NO_PAIR
    for rank in range(len(left)):
        key, row = row_of(left[rank], right[rank], pairs)
        pairs[row, 0] = key
        pairs[row, 1] = (np.uint64(rank) << np.uint64(32)) | np.uint64(joined[rank])


@njit(cache=True, nogil=True)
def merge_of(left, right, pairs):
    """Rank (upper half) and joined id of a pair, or NO_PAIR."""
    return pairs[row_of(left, right, pairs)[1], 1]


@njit(cache=True, nogil=True)
def merge_short(symbols, n, merges, pairs):
    """Merge `symbols[:n]` in place, by looking at every pair before each merge; how many are left.

    `merges` is room for as many numbers.
    """
    for k in range(n - 1):
        merges[k] = merge_of(symbols[k], symbols[k + 1], pairs)
    while n > 1:
        best = NO_PAIR
        where = 0
        for k in range(n - 1):
            if merges[k] < best:
                best = merges[k]
                where = k
        if best == NO_PAIR:
            break
        symbols[where] = np.uint32(best & np.uint64(0xFFFFFFFF))
        n -= 1
        for k in range(where + 1, n):
            symbols[k] = symbols[k + 1]
            merges[k] = merges[k + 1]
        if where > 0:
            merges[where - 1] = merge_of(symbols[where - 1], symbols[where], pairs)
        if where < n - 1:
            merges[where] = merge_of(symbols[where], symbols[where + 1], pairs)
    return n


@njit(cache=True, nogil=True)
def merge_long(symbols, n, pairs):
    """Merge `symbols[:n]` in place, with pairs in a heap: a megabyte of spaces is one pre-token. How many are left."""
    after = np.arange(1, n + 1)
    before = np.arange(-1, n - 1)
    gone = np.zeros(n, np.bool_)
    low = np.uint64(0xFFFFFFFF)
    heap = [NO_PAIR]
    for k in range(n - 1):
        found = merge_of(symbols[k], symbols[k + 1], pairs)
        if found != NO_PAIR:
            heap.append((found & ~low) | np.uint64(k))
    heapq.heapify(heap)
    while True:
        top = heapq.heappop(heap)
        if top == NO_PAIR:
            break
        k = np.int64(top & low)
        if gone[k] or after[k] == n:
            continue
        found = merge_of(symbols[k], symbols[after[k]], pairs)
        if found == NO_PAIR or (found ^ top) & ~low:
            continue  # one of the pair has been merged with another since
        symbols[k] = np.uint32(found & low)
        gone[after[k]] = True
        after[k] = after[after[k]]
        if after[k] < n:
            before[after[k]] = k
            found = merge_of(symbols[k], symbols[after[k]], pairs)
            if found != NO_PAIR:
                heapq.heappush(heap, (found & ~low) | np.uint64(k))
        if before[k] >= 0:
            found = merge_of(symbols[before[k]], symbols[k], pairs)
            if found != NO_PAIR:
                heapq.heappush(heap, (found & ~low) | np.uint64(before[k]))
    left = 0
    for k in range(n):
        if not gone[k]:
            symbols[left] = symbols[k]
            left += 1
    return left


@njit(cache=True, nogil=True, inline="always")
def slot_of(low, high, mask):
    """Where a search for a pre-token's key begins."""
    h = low ^ (high * ODD)
    h = (h ^ (h >> np.uint64(32))) * GOLDEN
    return np.int64(h >> np.uint64(32)) & mask


@njit(cache=True, nogil=True)
def long_key(words, start, n):
    """A hash of `n` bytes, more than 8, read 8 at a time; the last 8 overlap."""
    h = np.uint64(n)
    for k in range(start, start + n - 8, 8):
        h = (h ^ words[k]) * GOLDEN
        h ^= h >> np.uint64(29)
    h = (h ^ words[start + n - 8]) * GOLDEN
    return h ^ (h >> np.uint64(29))


@njit(cache=True, nogil=True)
def remember(slot, low, high, data, start, n, ids, count, table, pool, texts, used):
    """Enter a pre-token and its ids at a free slot, if there is room; else `used[3]` tells that there was none.

    A row of `table` is two words of the key, two ids, and one id with the number of ids in the upper half. Where they
    don't fit, the third word is their place in `pool`; for a pre-token longer than its key, the place of its bytes in
    `texts` stands there before the ids. `used` counts rows, and places in `pool` and `texts`.
    """
    packed = n <= PACKED
    if 2 * used[0] >= len(table) or used[1] + count + 1 > len(pool) or used[2] + n > len(texts):
        used[3] = 1
        return
    table[slot, 0] = low
    table[slot, 1] = high
    table[slot, 3] = np.uint64(count) << np.uint64(32)
    used[0] += 1
    if packed and count <= BESIDE:
        table[slot, 2] = np.uint64(ids[0]) | (np.uint64(ids[1]) << np.uint64(32))
        table[slot, 3] |= np.uint64(ids[2])
        return
    table[slot, 2] = np.uint64(used[1])
    if not packed:
        pool[used[1]] = used[2]
        used[1] += 1
        for k in range(n):
            texts[used[2] + k] = data[start + k]
        used[2] += n
    for k in range(count):
        pool[used[1] + k] = ids[k]
    used[1] += count


@njit(cache=True, nogil=True)
def move(table: UInt64, larger: UInt64) -> None:
    """Enter every row of a table into a larger one, which is zero."""
    mask = len(larger) - 1
    for row in range(len(table)):
        if table[row, 1] == 0:
            continue
        slot = free_row(larger, slot_of(table[row, 0], table[row, 1], mask), 1)
        for k in range(4):
            larger[slot, k] = table[row, k]


@njit(cache=True, nogil=True)
def encode(
    data: UInt8, words: UInt64, offsets: Int64, ends: Int64, documents: Int64, symbols: UInt32, pairs: UInt64,
    last_id: int, table: UInt64, pool: UInt32, texts: UInt8, used: Int64, out: UInt32, out_ends: Int64,
) -> int:  # fmt: skip
    """Ids of D texts that `split` has cut, `last_id` after each; how many ids.

    `data`, `words`, `offsets`, `ends` and `documents` are as `split` has them, `symbols` the ids of the 256 bytes.
    Written: ids to `out`, which needs a place for every byte and every text, and 3 to spare; to `out_ends[d]` where
    text d's end.
    """
    mask = len(table) - 1
    masks = np.zeros(9, np.uint64)
    for k in range(1, 9):
        masks[k] = (masks[k - 1] << np.uint64(8)) | np.uint64(0xFF)
    merges = np.empty(LONGEST, np.uint64)
    at = 0
    p = 0
    for d in range(len(documents)):
        start = offsets[d]
        while p < documents[d]:
            n = ends[p] - start
            high = np.uint64(n) << np.uint64(56)
            if n <= PACKED:
                low = words[start] & masks[min(n, 8)]
                high |= words[start + 8] & masks[max(n - 8, 0)]
            elif n <= LONGEST:
                low = long_key(words, start, n)
            else:
                for k in range(n):
                    out[at + k] = symbols[data[start + k]]
                at += merge_long(out[at:], n, pairs)
                start = ends[p]
                p += 1
                continue
            slot = slot_of(low, high, mask)
            count = 0
            while table[slot, 1] != 0:
                if table[slot, 1] == high and table[slot, 0] == low:
                    count = np.int64(table[slot, 3] >> np.uint64(32))
                    if n <= PACKED and count <= BESIDE:
                        two = table[slot, 2]
                        out[at] = np.uint32(two & np.uint64(0xFFFFFFFF))
                        out[at + 1] = np.uint32(two >> np.uint64(32))
                        out[at + 2] = np.uint32(table[slot, 3] & np.uint64(0xFFFFFFFF))
                        break
                    place = np.int64(table[slot, 2])
                    if n > PACKED:
                        if not same_bytes(data, start, texts, np.int64(pool[place]), n):
                            count = 0
                            slot = (slot + 1) & mask
                            continue
                        place += 1
                    for k in range(count):
                        out[at + k] = pool[place + k]
                    break
                slot = (slot + 1) & mask
            if count == 0:
                for k in range(n):
                    out[at + k] = symbols[data[start + k]]
                count = merge_short(out[at:], n, merges, pairs)
                remember(slot, low, high, data, start, n, out[at:], count, table, pool, texts, used)
            at += count
            start = ends[p]
            p += 1
        out[at] = last_id
        at += 1
        out_ends[d] = at
    return at
