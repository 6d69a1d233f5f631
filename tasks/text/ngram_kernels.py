"""64-bit hashes of word n-grams, compiled by numba: a polynomial over the words' hashes modulo 2⁶⁴ with base GOLDEN,
which can be rolled from one n-gram to the next (Karp and Rabin 1987)."""

from __future__ import annotations

import numpy as np
from numba import njit

from tasks.text.kernels import GOLDEN

NOTHING = np.uint64(0)


@njit(cache=True, nogil=True, inline="always")
def key_of(words, first, n, h=NOTHING):
    """The hash of the n words from `first` on, continuing from the hash `h`: w₁·Gⁿ⁻¹ + … + wₙ (Horner's rule)."""
    for place in range(first, first + n):
        h = h * GOLDEN + words[place]
    return h


@njit(cache=True, nogil=True)
def weight_of(n):
    """Gⁿ: the weight of a word that is followed by n others; rolling subtracts the word that leaves, times this."""
    weight = np.uint64(1)
    for _ in range(n):
        weight *= GOLDEN
    return weight
