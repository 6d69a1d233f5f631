"""The hot loop of decontamination, compiled by numba: where a text has an n-gram that a benchmark has too.

One rolling hash over as many words as the shortest n-gram has, and one bit looked up for each; only where that is set,
the n-gram itself is looked up. So a text is passed once, whatever lengths there are.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from tasks.text.kernels import GOLDEN
from tasks.text.ngram_kernels import key_of, weight_of
from tasks.text.table_kernels import locate


@njit(cache=True, nogil=True)
def gather_keys(words, firsts, lengths, keys):
    """The key of each n-gram of `lengths[g]` words from `words[firsts[g]]` on."""
    for g in range(len(firsts)):
        keys[g] = key_of(words, firsts[g], lengths[g])


@njit(cache=True, nogil=True)
def fill(keys, openings, shift, table, bits):
    """Enter each n-gram's number under its key, and set the bit of its first words' key."""
    for g in range(len(keys)):
        slot = locate(table, 0, len(table), keys[g])
        table[slot, 0] = keys[g]
        table[slot, 1] = np.uint64(g)
        bit = openings[g] >> shift
        bits[bit >> np.uint64(3)] |= np.uint8(1 << (bit & np.uint64(7)))


@njit(cache=True, nogil=True)
def find(words, word_ends, shortest, wanted, shift, table, bits, seen, stamp, texts, ngrams):
    """The distinct n-grams of D texts that the table has: text `texts[k]` has number `ngrams[k]`. Returns how many.

    `wanted[n]` says whether there are n-grams of n words. `seen` holds for each n-gram the last text that had it, as
    `stamp` and up. Beyond the room in `texts`, matches are only counted.
    """
    leading = weight_of(shortest - 1)
    found = 0
    first = 0
    for d in range(len(word_ends)):
        end = word_ends[d]
        h = key_of(words, first, min(shortest - 1, end - first))
        for place in range(first, end - shortest + 1):
            h = h * GOLDEN + words[place + shortest - 1]
            bit = h >> shift
            if bits[bit >> np.uint64(3)] & np.uint8(1 << (bit & np.uint64(7))):
                key = h
                for n in range(shortest, min(len(wanted), end - place + 1)):
                    if n > shortest:
                        key = key * GOLDEN + words[place + n - 1]
                    if not wanted[n]:
                        continue
                    slot = locate(table, 0, len(table), key)
                    if table[slot, 0] == key and seen[table[slot, 1]] != stamp + d:
                        seen[table[slot, 1]] = stamp + d
                        if found < len(texts):
                            texts[found] = d
                            ngrams[found] = table[slot, 1]
                        found += 1
            h -= leading * words[place]
        first = end
    return found
