"""n-grams of words as numbers of 64 bits, compiled by numba: a polynomial over the hashes of the words (Karp and
Rabin 1987), so that one n-gram follows from the one before it."""

from __future__ import annotations

import numpy as np
from numba import njit

from tasks.text.kernels import GOLDEN

NOTHING = np.uint64(0)


@njit(cache=True, nogil=True, inline="always")
def key_of(words, first, n, h=NOTHING):
    """The key of the n words from `first` on; `h` goes before them."""
    for place in range(first, first + n):
        h = h * GOLDEN + words[place]
    return h


@njit(cache=True, nogil=True)
def weight_of(n):
    """What a word's hash is multiplied by in a key when n words stand after it."""
    weight = np.uint64(1)
    for _ in range(n):
        weight *= GOLDEN
    return weight
