"""Comparison of documents, compiled by numba: signatures within a bucket, exact Jaccard similarity of pairs, SimHash
distances, and connected components.

The share of positions in which two MinHash signatures agree is an unbiased estimate of the Jaccard similarity J of
their shingle sets, with standard deviation √(J(1 − J) / permutations) (Broder 1997). Banding and buckets follow
Leskovec, Rajaraman and Ullman, "Mining of Massive Datasets", section 3.4. Members of a group are indices into the
arrays that are passed, not rows of the corpus.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from storage.shards.arrays import Float64, Int32, Int64, UInt32, UInt64
from tasks.text.kernels import GOLDEN


@njit(cache=True, nogil=True)
def agreement(signatures, i, j):
    """The number of positions in which two signatures are equal."""
    # Without a branch, and in 32 bits, the loop is vectorised
    equal = np.int32(0)
    first, second = signatures[i], signatures[j]
    for p in range(len(first)):
        equal += np.int32(first[p] == second[p])
    return equal


@njit(cache=True, nogil=True)
def similar_pairs(members: Int32, ends: Int64, signatures: UInt32, least: int, first: Int32, second: Int32) -> int:
    """Write all pairs within each group whose signatures agree in at least `least` positions. Returns their number.

    Group g is `members[ends[g - 1]:ends[g]]`. `first` and `second` need room for all pairs of every group.
    """
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
    """For each member of a large group, the member of a later component that agrees most, if in at least `least`
    positions. `members` are sorted by `labels`, their components.

    Returns the number of pairs written, and whether `budget` comparisons were enough to finish.
    """
    found = 0
    compared = 0
    after = 0
    for i in range(len(members)):
        # `after` is the first member of the next component; members of the same component need no comparison
        if i >= after:
            after = i + 1
            while after < len(members) and labels[after] == labels[i]:
                after += 1
        # Only later components: a pair with an earlier one was seen from there
        most, best = least - 1, -1
        for j in range(after, len(members)):
            equal = agreement(signatures, members[i], members[j])
            if equal > most:
                most, best = equal, j
        if best >= 0:
            first[found], second[found] = members[i], members[best]
            found += 1
        # The budget counts comparisons, not seconds: the result must not depend on the machine
        compared += len(members) - after
        if compared > budget:
            return found, False
    return found, True


@njit(cache=True, nogil=True)
def band_keys(signatures: UInt32, band: int, rows: int, keys: UInt64) -> None:
    """For each signature a 64-bit hash of its `rows` values in a band: two signatures share a bucket if they are equal
    in all of them (or, with a probability of 2⁻⁶⁴ per pair, by collision)."""
    for d in range(len(signatures)):
        h = np.uint64(band)  # so that equal values in different bands have different keys
        for p in range(band * rows, (band + 1) * rows):
            h = (h ^ np.uint64(signatures[d, p])) * GOLDEN
            h ^= h >> np.uint64(32)
        keys[d] = h


@njit(cache=True, nogil=True)
def jaccards(sets: UInt64, ends: Int64, first: Int32, second: Int32, values: Float64) -> None:
    """The Jaccard similarity |A ∩ B| / |A ∪ B| of pairs of sets of distinct, ascending numbers; set s is
    `sets[ends[s - 1]:ends[s]]`, pair e is `first[e]`, `second[e]`."""
    for e in range(len(first)):
        i = ends[first[e] - 1] if first[e] else 0
        j = ends[second[e] - 1] if second[e] else 0
        last_i, last_j = ends[first[e]], ends[second[e]]
        total = last_i - i + last_j - j
        shared = 0
        # A merge of two sorted lists: the smaller side advances, both on equality
        while i < last_i and j < last_j:
            x, y = sets[i], sets[j]
            shared += x == y
            i += x <= y
            j += y <= x
        values[e] = shared / (total - shared)


@njit(cache=True, nogil=True)
def close_pairs(hashes: UInt64, ends: Int64, most: int, first: Int32, second: Int32) -> int:
    """Write all pairs within each group of hashes that differ in at most `most` bits. Returns their number.

    Group g is `hashes[ends[g - 1]:ends[g]]`. Pairs beyond the length of `first` are counted but not written.
    """
    found = 0
    start = 0
    for end in ends:
        for i in range(start, end):
            for j in range(i + 1, end):
                differing = hashes[i] ^ hashes[j]
                bits = 0
                # Each step clears the lowest set bit (Kernighan); it stops once there are too many
                while differing and bits <= most:
                    differing &= differing - np.uint64(1)
                    bits += 1
                if bits <= most:
                    if found < len(first):
                        first[found], second[found] = i, j
                    found += 1
        start = end
    return found


@njit(cache=True, nogil=True)
def connect(edges: Int64, labels: Int64) -> None:
    """Write to `labels`, which comes as 0, 1, 2, …, the smallest node of each node's connected component. `edges` is
    edges × 2. A union-find with path halving (Tarjan and van Leeuwen 1984) whose root is the smallest."""
    for e in range(len(edges)):
        i, j = edges[e]
        while labels[i] != i:
            labels[i] = labels[labels[i]]
            i = labels[i]
        while labels[j] != j:
            labels[j] = labels[labels[j]]
            j = labels[j]
        labels[max(i, j)] = min(i, j)
    # A node's parent is smaller, and has its root by now
    for i in range(len(labels)):
        labels[i] = labels[labels[i]]
