"""The hot loop of decontamination, compiled by numba: the n-grams that a text shares with a benchmark.

A rolling hash (Karp and Rabin 1987) runs over as many words as the shortest n-gram has. Each value is looked up in a
bit map, and the n-grams themselves only if the bit is set. One pass over a text thus serves n-grams of all lengths.
N-grams are as for GPT-3 (Brown et al. 2020, appendix C).
"""

from __future__ import annotations

import numpy as np
from numba import njit

from tasks.text.kernels import GOLDEN
from tasks.text.ngram_kernels import key_of, weight_of
from tasks.text.table_kernels import locate


@njit(cache=True, nogil=True, _nrt=False)
def gather_keys(words, firsts, lengths, keys):
    """Write the key of each n-gram of `lengths[g]` words from `words[firsts[g]]` on to `keys`."""
    for g in range(len(firsts)):
        keys[g] = key_of(words, firsts[g], lengths[g])


@njit(cache=True, nogil=True, _nrt=False)
def fill(keys, openings, shift, table, bits):
    """Store each n-gram's number under its key, and set the bit of its opening, the key of its first words."""
    for g in range(len(keys)):
        slot = locate(table, 0, len(table), keys[g])
        table[slot, 0] = keys[g]
        table[slot, 1] = np.uint64(g)
        bit = openings[g] >> shift
        bits[bit >> np.uint64(3)] |= np.uint8(1 << (bit & np.uint64(7)))


@njit(cache=True, nogil=True, _nrt=False)
def find(words, word_ends, shortest, wanted, shift, table, bits, seen, stamp, texts, ngrams):
    """Find the distinct n-grams of D texts in the table: text `texts[k]` has n-gram `ngrams[k]`. Returns their number.

    `wanted[n]` says whether the table has n-grams of n words. `seen` is the last text with each n-gram, numbered from
    `stamp`. Matches that don't fit into `texts` are counted, but not written.
    """
    leading = weight_of(shortest - 1)
    matches = 0
    first = 0
    for d in range(len(word_ends)):
        end = word_ends[d]
        # Here the rolling hash lacks the shortest n-gram's last word. Each turn adds one word and drops one
        h = key_of(words, first, min(shortest - 1, end - first))
        for place in range(first, end - shortest + 1):
            h = h * GOLDEN + words[place + shortest - 1]
            # About one place in 32 passes without being a match (questions.BITS)
            bit = h >> shift
            if bits[bit >> np.uint64(3)] & np.uint8(1 << (bit & np.uint64(7))):
                # Extend the key word by word to each length that the index has
                key = h
                for n in range(shortest, min(len(wanted), end - place + 1)):
                    if n > shortest:
                        key = key * GOLDEN + words[place + n - 1]
                    if not wanted[n]:
                        continue
                    slot = locate(table, 0, len(table), key)
                    # Each n-gram counts once per text
                    if table[slot, 0] == key and seen[table[slot, 1]] != stamp + d:
                        seen[table[slot, 1]] = stamp + d
                        if matches < len(texts):
                            texts[matches] = d
                            ngrams[matches] = table[slot, 1]
                        matches += 1
            h -= leading * words[place]
        first = end
    return matches
