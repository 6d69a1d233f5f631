"""UTF-8 to token ids, compiled by numba: texts to pre-tokens, pre-tokens to ids.

Why not the library: `tokenizers` runs a general regular expression over every text and allocates a string per
pre-token. Here a text never leaves its buffer. A pre-token of up to 15 bytes is its own key: two 64-bit words with the
length in the last byte. Most are found in a cache of what was encoded before, with their ids beside the key. Whole keys
are compared, so no hash collision can change an id.

Pre-tokens are those of the regular expressions of GPT-2 (Radford et al. 2019), GPT-4 (tiktoken's cl100k_base) and
Llama 3 (Grattafiori et al. 2024), written out as state machines; see patterns.py. Merging is byte-pair encoding
(Sennrich et al. 2016): of all neighbours the pair with the lowest rank is joined, the leftmost of equal ones first.
"""

from __future__ import annotations

import heapq

import numpy as np
from numba import njit

from storage.shards.arrays import Int64, UInt8, UInt32, UInt64
from tasks.text.kernels import GOLDEN, decode, same_bytes
from tasks.text.table_kernels import free_row, probe
from tasks.tokenizer.encoder.characters import LETTER, NUMBER, OTHER, SIZE, SPACE

PACKED = 15  # longest pre-token that is its own key, in bytes
LONGEST = 128  # longest pre-token that is cached, in bytes; longer ones hardly recur
BESIDE = 3  # ids that fit into a row beside the key
NO_PAIR = np.uint64(0xFFFFFFFFFFFFFFFF)  # greater than any rank
ONE = np.uint64(1)
ONES = np.uint64(0x0101010101010101)
HIGH = np.uint64(0x8080808080808080)
LOWER = np.uint64(0x2020202020202020)
FROM_A = np.uint64((0x80 - ord("a")) * 0x0101010101010101)
BEYOND_Z = np.uint64((0x80 - ord("z") - 1) * 0x0101010101010101)
ODD = np.uint64(0xD6E8FEB86659FD93)


@njit(cache=True, nogil=True, inline="always")
def kind_at(data, i, end, kinds):
    """(class, index after it) of the character at `i`."""
    b = data[i]
    if b < 128:
        return kinds[b], i + 1
    c, used = decode(data, i, end)
    if c < SIZE:
        return kinds[c], i + used
    return np.uint8(OTHER), i + used


@njit(cache=True, nogil=True)
def contraction(data, i, end, case):
    """Length of `s`, `t`, `re`, `ve`, `m`, `ll` or `d` at `i`, else 0; with `case` 32, in either case.

    32 is the bit in which ASCII capitals and small letters differ.
    """
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
    """The end of the run of characters of this class that starts at `i`."""
    while i < end:
        found, after = kind_at(data, i, end, kinds)
        if found != kind:
            break
        i = after
    return i


@njit(cache=True, nogil=True, inline="always")
def run_of_letters(data, words, i, end, kinds):
    """The end of the run of letters that starts at `i`, 8 bytes at a time while they are ASCII.

    All 8 bytes are tested at once (Warren 2012, "Hacker's Delight", section 6-1): a branch per letter would be
    mispredicted at the end of every word.
    """
    while i < end:
        lower = words[i] | LOWER
        # Adding to 7-bit values carries into a byte's high bit, never beyond: it is set from "a" on by FROM_A, after
        # "z" by BEYOND_Z. So `letters` has a high bit for each byte that is an ASCII letter.
        ascii = lower & ~HIGH
        letters = (ascii + FROM_A) & ~(ascii + BEYOND_Z) & ~lower & HIGH
        others = letters ^ HIGH
        if others == 0:
            i += 8
            continue
        # Index of the first byte that isn't a letter: x ^ (x - 1) has all bits up to the lowest set one. One bit of
        # each byte is kept, and the multiplication adds them up in the highest byte
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
    """The end of the white space from `start`, whose first character ends at `i`.

    `\\s+(?!\\S)|\\s+`: at the end of the text the whole run; before other characters the run without its last
    character, or that character if it is the only one. With `breaks`, `\\s*[\\r\\n]+` goes first: up to the last line
    break.
    """
    # `last` is where the last character of the run starts, `line` the end of its last line break
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
    """The end of the pre-token that starts at `start`, by GPT-2's pattern:

    `'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+`, tried in this order.
    """
    # The common case first: ASCII letters, with one space before them or none
    first = start + np.int64(data[start] == ord(" "))
    if first < end and data[first] < 128 and kinds[data[first]] == LETTER:
        return run_of_letters(data, words, first, end, kinds)
    kind, i = kind_at(data, start, end, kinds)
    if kind == OTHER and data[start] == ord("'"):
        short = contraction(data, i, end, np.uint8(0))
        if short:
            return i + short
    # ` ?`: a space belongs to what follows it, unless that is white space too
    if data[start] == ord(" ") and i < end:
        behind, after = kind_at(data, i, end, kinds)
        if behind != SPACE:
            kind, i = behind, after
    if kind == SPACE:
        return white_space(data, start, i, end, kinds, False)
    # A run of one class: letters, numbers or others
    return run_of(kind, data, i, end, kinds)


@njit(cache=True, nogil=True, inline="always")
def cut_gpt4(data, words, start, end, kinds):
    """The end of the pre-token that starts at `start`, by the pattern of GPT-4 and Llama 3 (see patterns.py)."""
    # The common case first: ASCII letters, with one space before them or none
    first = start + np.int64(data[start] == ord(" "))
    if first < end and data[first] < 128 and kinds[data[first]] == LETTER:
        return run_of_letters(data, words, first, end, kinds)
    kind, i = kind_at(data, start, end, kinds)
    if kind == LETTER:
        return run_of(kind, data, i, end, kinds)
    if kind == NUMBER:  # `\p{N}{1,3}`
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
        if behind == LETTER:  # `[^\r\n\p{L}\p{N}]?\p{L}+`: any one character before letters
            return run_of_letters(data, words, after, end, kinds)
        if behind == OTHER and data[start] == ord(" "):  # ` ?[^\s\p{L}\p{N}]+[\r\n]*`
            kind, i = behind, after
    if kind == SPACE:
        return white_space(data, start, i, end, kinds, True)
    i = run_of(kind, data, i, end, kinds)
    while i < end and is_line_break(data, i):
        i += 1
    return i


@njit(cache=True, nogil=True)
def split(data: UInt8, words: UInt64, offsets: Int64, kinds: UInt8, gpt2: bool, ends: Int64, documents: Int64) -> int:
    """Cut D texts into pre-tokens, which cover their texts. Returns the number of pre-tokens.

    Text d is `data[offsets[d]:offsets[d + 1]]` and valid UTF-8; `words[i]` are the 8 bytes from i on, little-endian;
    16 bytes after the texts must be readable. Written: to `ends` the end of each pre-token, to `documents[d]` the
    number of them up to the end of text d. `ends` needs one element per byte.
    """
    count = 0
    # The pattern is tested once per text, so that the cutter is inlined into a tight loop
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
    """(key of a pair of ids, its row in `pairs` or the free one where it would go)."""
    key = (np.uint64(left) << np.uint64(32)) | np.uint64(right)
    row = np.int64((key * GOLDEN) >> np.uint64(32)) & (len(pairs) - 1)
    return key, probe(pairs, 0, len(pairs), row, key, NO_PAIR)


@njit(cache=True, nogil=True)
def fill_pairs(left: UInt32, right: UInt32, joined: UInt32, pairs: UInt64) -> None:
    """Insert merges, in order of rank, into `pairs`: 2**k rows of (key, rank in the upper half and joined id)."""
    pairs[:] = NO_PAIR
    for rank in range(len(left)):
        key, row = row_of(left[rank], right[rank], pairs)
        pairs[row, 0] = key
        pairs[row, 1] = (np.uint64(rank) << np.uint64(32)) | np.uint64(joined[rank])


@njit(cache=True, nogil=True)
def merge_of(left, right, pairs):
    """Rank (upper half) and joined id of a pair, or NO_PAIR: so the smaller value is the earlier merge."""
    return pairs[row_of(left, right, pairs)[1], 1]


@njit(cache=True, nogil=True)
def merge_short(symbols, n, merges, pairs):
    """Merge `symbols[:n]` in place, scanning all pairs before each merge. Returns the number of symbols left.

    O(n²), but the fastest way for short pre-tokens. `merges` is scratch space of n elements.
    """
    # Invariant: merges[k] is the merge of symbols k and k + 1, for all k < n - 1
    for k in range(n - 1):
        merges[k] = merge_of(symbols[k], symbols[k + 1], pairs)
    while n > 1:
        # The lowest rank; < keeps the leftmost of equal ones
        best = NO_PAIR
        where = 0
        for k in range(n - 1):
            if merges[k] < best:
                best = merges[k]
                where = k
        if best == NO_PAIR:
            break
        # Replace the left one, close the gap, and look up the two pairs that are new
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
    """Merge `symbols[:n]` in place, with pairs in a heap. Returns the number of symbols left.

    O(n log n), for long pre-tokens: a megabyte of spaces is a single one.
    """
    # A doubly linked list over the positions; a symbol keeps the position of its first byte
    after = np.arange(1, n + 1)
    before = np.arange(-1, n - 1)
    gone = np.zeros(n, np.bool_)
    low = np.uint64(0xFFFFFFFF)
    # Entries are rank (upper half) and position, so the heap pops the lowest rank, the leftmost first. NO_PAIR ends it.
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
        # Entries are not deleted when they become stale: skip one whose symbol is gone or whose pair has another rank
        if gone[k] or after[k] == n:
            continue
        found = merge_of(symbols[k], symbols[after[k]], pairs)
        if found == NO_PAIR or (found ^ top) & ~low:
            continue
        # Join into the left one, unlink the right one, and push the two pairs that are new
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
    # Compact what is left
    left = 0
    for k in range(n):
        if not gone[k]:
            symbols[left] = symbols[k]
            left += 1
    return left


@njit(cache=True, nogil=True, inline="always")
def slot_of(low, high, mask):
    """The row at which the search for a pre-token's key begins."""
    # Multiply and fold, so that the row, from the upper half, depends on all 128 bits
    h = low ^ (high * ODD)
    h = (h ^ (h >> np.uint64(32))) * GOLDEN
    return np.int64(h >> np.uint64(32)) & mask


@njit(cache=True, nogil=True)
def long_key(words, start, n):
    """A 64-bit hash of n > 8 bytes, read 8 at a time; the last read overlaps the one before it."""
    h = np.uint64(n)
    for k in range(start, start + n - 8, 8):
        h = (h ^ words[k]) * GOLDEN
        h ^= h >> np.uint64(29)
    h = (h ^ words[start + n - 8]) * GOLDEN
    return h ^ (h >> np.uint64(29))


@njit(cache=True, nogil=True)
def remember(slot, low, high, data, start, n, ids, count, table, pool, texts, used):
    """Insert a pre-token and its ids at a free row; if there is no room, set `used[3]` instead.

    A row of `table` holds the two words of the key, two ids, and one id with the number of ids in the upper half. If
    the ids do not fit, the third word is their index in `pool`; for a pre-token longer than PACKED, the index of its
    bytes in `texts` precedes the ids there. `used` counts rows, and elements of `pool` and `texts`.
    """
    # At most half full, so that searches stay short
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
    """Insert every row of a table into a larger, zeroed one."""
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
    """Write the ids of D texts that `split` has cut, `last_id` after each. Returns the number of ids.

    `data`, `words`, `offsets`, `ends` and `documents` are those of `split`, `symbols` the ids of the 256 bytes.
    Written: ids to `out`, which needs one element per byte and per text, and 3 to spare; to `out_ends[d]` the end of
    text d's.
    """
    mask = len(table) - 1
    masks = np.zeros(9, np.uint64)  # masks[k] keeps the first k bytes of a word
    for k in range(1, 9):
        masks[k] = (masks[k - 1] << np.uint64(8)) | np.uint64(0xFF)
    merges = np.empty(LONGEST, np.uint64)
    at = 0
    p = 0
    for d in range(len(documents)):
        start = offsets[d]
        while p < documents[d]:
            # The key: up to 15 bytes themselves, else a hash; the length is in the highest byte, never 0
            n = ends[p] - start
            high = np.uint64(n) << np.uint64(56)
            if n <= PACKED:
                low = words[start] & masks[min(n, 8)]
                high |= words[start + 8] & masks[max(n - 8, 0)]
            elif n <= LONGEST:
                low = long_key(words, start, n)
            else:  # too long for the cache
                for k in range(n):
                    out[at + k] = symbols[data[start + k]]
                at += merge_long(out[at:], n, pairs)
                start = ends[p]
                p += 1
                continue
            # Look it up; `count` stays 0 on a miss, which leaves `slot` at a free row
            slot = slot_of(low, high, mask)
            count = 0
            while table[slot, 1] != 0:
                if table[slot, 1] == high and table[slot, 0] == low:
                    count = np.int64(table[slot, 3] >> np.uint64(32))
                    if n <= PACKED and count <= BESIDE:  # always three stores: the next pre-token overwrites the rest
                        two = table[slot, 2]
                        out[at] = np.uint32(two & np.uint64(0xFFFFFFFF))
                        out[at + 1] = np.uint32(two >> np.uint64(32))
                        out[at + 2] = np.uint32(table[slot, 3] & np.uint64(0xFFFFFFFF))
                        break
                    place = np.int64(table[slot, 2])
                    if n > PACKED:  # the key is a hash: compare the bytes
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
