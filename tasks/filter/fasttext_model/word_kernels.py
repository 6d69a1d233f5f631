"""fastText's words, compiled by numba: word boundaries, hash and look-up (`Dictionary` in fastText 0.9.3)."""

from __future__ import annotations

import numpy as np
from numba import njit

from tasks.text.kernels import same_bytes

BREAK, LETTER, ALONE = 0, 1, 2  # a character ends a word, belongs to one, is one by itself
FNV_OFFSET = np.uint32(2166136261)
FNV_PRIME = np.uint32(16777619)


@njit(cache=True, nogil=True, inline="always")
def step(h, b):
    """Add a byte to an FNV-1a hash. fastText takes bytes as signed, so those from 128 on also flip the upper bits."""
    return np.uint32((h ^ np.uint32(np.int32(np.int8(b)))) * FNV_PRIME)


@njit(cache=True, nogil=True, inline="always")
def find(slots, letters, starts, data, start, end, h):
    """The number of the word `data[start:end]` with hash h, or −1: linear probing, up to a free slot."""
    slot = np.int64(h) & (len(slots) - 1)
    word = slots[slot]
    while word >= 0:
        begin = starts[word]
        if starts[word + 1] - begin == end - start and same_bytes(letters, begin, data, start, end - start):
            break
        slot = (slot + 1) & (len(slots) - 1)
        word = slots[slot]
    return word
