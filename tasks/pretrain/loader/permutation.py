"""A random order that is computed, not stored: position in, element out, in constant memory."""

from __future__ import annotations

import hashlib

import numpy as np

from storage.shards.arrays import UInt64

ROUNDS = 6  # Luby & Rackoff 1988: four make a Feistel network a pseudo-random permutation. Two more as a margin


def permute(values: UInt64, size: int, key: str, *, inverse: bool = False) -> UInt64:
    """Apply a keyed permutation of 0 … size − 1 to each value: a Feistel network, repeated while a value is outside.

    (Black & Rogaway 2002, "Ciphers with arbitrary finite domains", cycle walking.) Memory does not grow with `size`.
    The `inverse` takes the rounds backwards, and so walks the same cycle back.
    """
    half = np.uint64(max(1, ((size - 1).bit_length() + 1) // 2))  # bits: the network's domain is at most 4 × size
    mask = (np.uint64(1) << half) - np.uint64(1)
    keys = np.frombuffer(hashlib.sha512(key.encode()).digest()[: 8 * ROUNDS], "<u8")
    result = values.copy()
    walking = np.ones(len(values), bool)
    while walking.any():
        left, right = result[walking] >> half, result[walking] & mask
        if inverse:
            for round_key in keys[::-1]:
                left, right = right ^ (mix(left ^ round_key) & mask), left
        else:
            for round_key in keys:
                left, right = right, left ^ (mix(right ^ round_key) & mask)
        result[walking] = left << half | right
        walking = result >= np.uint64(size)
    return result


def mix(values: UInt64) -> UInt64:
    """The finalizer of SplitMix64 (Steele et al. 2014): every input bit reaches every output bit."""
    values = (values ^ values >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ values >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return values ^ values >> np.uint64(31)
