"""Word hashes to shingles, and shingles to MinHash signatures (Broder 1997) and SimHashes (Charikar 2002), compiled by
numba.

Why not a library: joining n-grams in Python runs at 16 MB/s. Here a shingle is a hash of the hashes of its words, which
`tasks/text/kernels.py` computes (`benchmarks/dedup` has the comparison). Compiled code is cached on disk
(`tasks/__init__.py`), so only the first run on a machine compiles.

A shingle's hash is a polynomial over its words' hashes, followed by MurmurHash3's finalizer. Signatures equal
datasketch's `affine32` scheme bit for bit. A text of fewer than n words has a single shingle, of all its words.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from storage.shards.arrays import Bool, Int64, UInt32, UInt64
from tasks.text.kernels import GOLDEN, mix64
from tasks.text.ngram_kernels import key_of, weight_of

FEW = 32  # values that are sorted by insertion
SLOTS = 16  # counters per key in `may_repeat`: one unique key in 17 shares its counter with another


@njit(cache=True, nogil=True, inline="always")
def mix32(h):
    """MurmurHash3's 32-bit finalizer, fmix32 (Appleby 2011), as datasketch applies it before permuting."""
    h = np.uint32(h ^ (h >> np.uint32(16)))
    h = np.uint32(h * np.uint32(0x85EBCA6B))
    h = np.uint32(h ^ (h >> np.uint32(13)))
    h = np.uint32(h * np.uint32(0xC2B2AE35))
    return np.uint32(h ^ (h >> np.uint32(16)))


@njit(cache=True, nogil=True)
def hash_shingles(words, first, count, n, hashes):
    """Write the 64-bit hashes of the `count` shingles of n words from `first` on. They start from n, so that lengths do
    not collide. Each follows from the one before, whose first word leaves (Karp and Rabin 1987)."""
    key, left = key_of(words, first, n, np.uint64(n)), weight_of(n)
    start = np.uint64(n) * left * (np.uint64(1) - GOLDEN)  # the n at the start keeps its weight
    hashes[0] = mix64(key)
    for k in range(1, count):
        key = key * GOLDEN + words[first + n + k - 1] - words[first + k - 1] * left + start
        hashes[k] = mix64(key)


@njit(cache=True, nogil=True)
def longest_of(word_ends):
    """The number of words of the longest text."""
    longest = start = 0
    for end in word_ends:
        longest = max(longest, end - start)
        start = end
    return longest


@njit(cache=True, nogil=True)
def sign(words: UInt64, word_ends: Int64, n: int, a: UInt32, b: UInt32, signatures: UInt32) -> None:
    """MinHash signatures of D texts: `signatures[d, p]` is the minimum of `a[p]·x + b[p]` mod 2³² over the text's
    shingles x, premixed by `mix32`. An odd a makes each a permutation of the 32-bit integers.

    `words` and `word_ends` are as `tasks.text.kernels.scan` writes them; `signatures` is D × permutations.
    """
    permutations = len(a)
    hashes = np.empty(longest_of(word_ends), np.uint64)
    start = 0
    for d in range(len(word_ends)):
        row = signatures[d]
        size = min(n, word_ends[d] - start)
        last = word_ends[d] - start - size
        hash_shingles(words, start, last + 1, size, hashes)
        for p in range(permutations):
            row[p] = np.uint32(0xFFFFFFFF)
        # Four shingles at a time load and store the signature a quarter as often. Past the end the last shingle is
        # repeated, which changes no minimum.
        for s in range(0, last + 1, 4):
            x0 = mix32(np.uint32(hashes[s]))
            x1 = mix32(np.uint32(hashes[min(s + 1, last)]))
            x2 = mix32(np.uint32(hashes[min(s + 2, last)]))
            x3 = mix32(np.uint32(hashes[min(s + 3, last)]))
            for p in range(permutations):
                v0 = min(np.uint32(a[p] * x0 + b[p]), np.uint32(a[p] * x1 + b[p]))
                v1 = min(np.uint32(a[p] * x2 + b[p]), np.uint32(a[p] * x3 + b[p]))
                row[p] = min(row[p], min(v0, v1))
        start = word_ends[d]


@njit(cache=True, nogil=True)
def sort_hashes(hashes, counts, ordered):
    """Sort hashes, each of whose bits is as likely to be set as not, in linear time: by their high bits into as many
    ranges as there are hashes, which leaves few in each to be sorted by insertion. Large ranges, which only a text made
    for it has, are sorted first. `counts` needs two elements a hash, `ordered` one."""
    size = len(hashes)
    bits = 1
    while (1 << bits) < size:
        bits += 1
    shift = np.uint64(64 - bits)
    counts[: 1 << bits] = 0
    for k in range(size):
        counts[hashes[k] >> shift] += 1
    end = 0
    for part in range(1 << bits):
        counts[part], end = end, end + counts[part]
    for k in range(size):
        part = hashes[k] >> shift
        ordered[counts[part]] = hashes[k]
        counts[part] += 1
    start = 0
    for part in range(1 << bits):
        if counts[part] - start > FEW:
            ordered[start : counts[part]].sort()
        start = counts[part]
    for k in range(size):
        value = ordered[k]
        j = k
        while j > 0 and hashes[j - 1] > value:
            hashes[j] = hashes[j - 1]
            j -= 1
        hashes[j] = value


@njit(cache=True, nogil=True)
def shingle_sets(words: UInt64, word_ends: Int64, n: int, sets: UInt64, set_ends: Int64) -> None:
    """The distinct shingles of D texts, ascending: text d's are `sets[set_ends[d - 1]:set_ends[d]]`.

    `sets` needs one element per word: a text has no more shingles than words.
    """
    longest = longest_of(word_ends)
    hashes, ordered = np.empty(longest, np.uint64), np.empty(longest, np.uint64)
    counts = np.empty(2 * longest, np.int64)
    start = 0
    at = 0
    for d in range(len(word_ends)):
        size = min(n, word_ends[d] - start)
        count = word_ends[d] - start - size + 1
        found = hashes[:count]
        hash_shingles(words, start, count, size, found)
        sort_hashes(found, counts, ordered)
        # Equal hashes are now adjacent: keep the first of each run
        for k in range(count):
            if k == 0 or found[k] != found[k - 1]:
                sets[at] = found[k]
                at += 1
        set_ends[d] = at
        start = word_ends[d]


@njit(cache=True, nogil=True)
def simhashes(words: UInt64, word_ends: Int64, n: int, hashes: UInt64) -> None:
    """64-bit SimHashes of D texts (Charikar 2002): each bit is the majority of that bit over the text's shingles, each
    occurrence of which counts; a tie gives 0."""
    start = 0
    found = np.empty(longest_of(word_ends), np.uint64)
    votes = np.empty(64, np.int32)
    for d in range(len(word_ends)):
        size = min(n, word_ends[d] - start)
        votes[:] = 0
        count = word_ends[d] - start - size + 1
        hash_shingles(words, start, count, size, found)
        for h in found[:count]:
            # One vote per bit: +1 for a set bit, -1 for a clear one
            for bit in range(64):
                votes[bit] += np.int32((h >> np.uint64(bit)) & np.uint64(1)) * 2 - 1
        h = np.uint64(0)
        for bit in range(64):
            h |= np.uint64(votes[bit] > 0) << np.uint64(bit)
        hashes[d] = h
        start = word_ends[d]


@njit(cache=True, nogil=True)
def may_repeat(keys: UInt64) -> Bool:
    """Which keys may occur more than once: all that do, and those that share a counter with another key.

    A filter before sorting: most keys of a corpus are unique and need not be sorted at all.
    """
    # 2-bit counters, four to a byte, indexed by the key's low bits
    slots = 4
    while slots < SLOTS * len(keys):
        slots *= 2
    low = np.uint64(slots - 1)
    counters = np.zeros(slots // 4, np.uint8)
    # Count: 0 → 01 → 11, and 11 stays; `state << 1 | 1` does so without a branch
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
