"""The hot loops of comparison, compiled by numba: agreement of signatures within buckets, exact Jaccard on edges.

The share of equal values in two signatures estimates their Jaccard similarity (Broder 1997), with a standard deviation
of √(J(1 − J)/permutations). Local indices are into the signatures that are passed.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from storage.arrays import Float64, Int32, Int64, UInt32, UInt64
from tasks.text.kernels import GOLDEN


@njit(cache=True, nogil=True)
def agreement(signatures, i, j):
    """In how many places two signatures are equal."""
    equal = np.int32(0)
    first, second = signatures[i], signatures[j]
    for p in range(len(first)):
        equal += np.int32(first[p] == second[p])
    return equal


@njit(cache=True, nogil=True)
def similar_pairs(members: Int32, ends: Int64, signatures: UInt32, least: int, first: Int32, second: Int32) -> int:
    """All pairs within each group that agree in `least` places; how many were written."""
    found = 0
    start = 0
    for end in ends:
        for i in range(start, end):
            for j in range(i + 1, end):
                if agreement(signatures, members[i], members[j]) >= least:
                    first[found], second[found] = members[i], members[j]
                    found += 1
        start = end
    return found


@njit(cache=True, nogil=True)
def crossing_pairs(
    members: Int32, labels: Int64, signatures: UInt32, least: int, budget: int, first: Int32, second: Int32
) -> tuple[int, bool]:
    """For each member of a large group, the member of a later component that agrees most, if in `least` places;
    `members` are sorted by `labels`. How many pairs were written, and whether `budget` comparisons were enough."""
    found = 0
    compared = 0
    after = 0
    for i in range(len(members)):
        if i >= after:
            after = i + 1
            while after < len(members) and labels[after] == labels[i]:
                after += 1
        most, best = least - 1, -1
        for j in range(after, len(members)):
            equal = agreement(signatures, members[i], members[j])
            if equal > most:
                most, best = equal, j
        if best >= 0:
            first[found], second[found] = members[i], members[best]
            found += 1
        compared += len(members) - after
        if compared > budget:
            return found, False
    return found, True


@njit(cache=True, nogil=True)
def band_keys(signatures: UInt32, band: int, rows: int, keys: UInt64) -> None:
    """A 64-bit key for the `rows` values of a band, for each signature: a polynomial of them, mixed."""
    for d in range(len(signatures)):
        h = np.uint64(band)
        for p in range(band * rows, (band + 1) * rows):
            h = (h ^ np.uint64(signatures[d, p])) * GOLDEN
            h ^= h >> np.uint64(32)
        keys[d] = h


@njit(cache=True, nogil=True)
def jaccards(sets: UInt64, ends: Int64, first: Int32, second: Int32, values: Float64) -> None:
    """|A ∩ B| / |A ∪ B| of pairs of ascending sets; set s is `sets[ends[s - 1]:ends[s]]`."""
    for e in range(len(first)):
        i = ends[first[e] - 1] if first[e] else 0
        j = ends[second[e] - 1] if second[e] else 0
        last_i, last_j = ends[first[e]], ends[second[e]]
        total = last_i - i + last_j - j
        shared = 0
        while i < last_i and j < last_j:
            x, y = sets[i], sets[j]
            shared += x == y
            i += x <= y
            j += y <= x
        values[e] = shared / (total - shared)


@njit(cache=True, nogil=True)
def close_pairs(hashes: UInt64, ends: Int64, most: int, first: Int32, second: Int32) -> int:
    """All pairs within each group of hashes that differ in at most `most` bits, as long as there is room; how many
    there are. Group g is `hashes[ends[g - 1]:ends[g]]`."""
    found = 0
    start = 0
    for end in ends:
        for i in range(start, end):
            for j in range(i + 1, end):
                differing = hashes[i] ^ hashes[j]
                bits = 0
                while differing and bits <= most:
                    differing &= differing - np.uint64(1)
                    bits += 1
                if bits <= most:
                    if found < len(first):
                        first[found], second[found] = i, j
                    found += 1
        start = end
    return found
