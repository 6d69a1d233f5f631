"""Two loops, compiled by numba: a hash table of transitions, and tokens read through a suffix automaton."""

from __future__ import annotations

import numpy as np
from numba import njit

from storage.shards.arrays import Int32, UInt64
from storage.shards.tokens import TokenArray

EMPTY = np.uint64(2**64 - 1)  # no state has as high a number
SPREAD = np.uint64(0x9E3779B97F4A7C15)
HIGH = np.uint64(32)
ONE = np.uint64(1)


@njit(cache=True, nogil=True)
def slot_of(key: np.uint64, mask: np.uint64) -> np.uint64:
    """The first slot to search for a key. The others follow it."""
    mixed = key * SPREAD
    return (mixed ^ (mixed >> HIGH)) & mask


@njit(cache=True, nogil=True)
def fill_table(keys: UInt64, targets: Int32, new_keys: UInt64, new_targets: Int32) -> None:
    """Insert N distinct keys with their targets into an open-addressing table, whose size is a power of two above N and
    whose free keys are EMPTY."""
    mask = np.uint64(len(keys) - 1)
    for n in range(len(new_keys)):
        slot = slot_of(new_keys[n], mask)
        while keys[slot] != EMPTY:
            slot = (slot + ONE) & mask
        keys[slot] = new_keys[n]
        targets[slot] = new_targets[n]


@njit(cache=True, nogil=True)
def read_through(
    link: Int32, longest: Int32, keys: UInt64, targets: Int32, ids: TokenArray, found: Int32, state: int, length: int
) -> tuple[int, int]:
    """Read tokens, starting in a state with `length` matched tokens. Raises `found[s]` to the longest match that ends
    in state s. Returns the state and the length at the end."""
    mask = np.uint64(len(keys) - 1)
    for place in range(len(ids)):
        token = np.uint64(ids[place])
        while True:
            key = (np.uint64(state) << HIGH) | token
            slot = slot_of(key, mask)
            while keys[slot] != key and keys[slot] != EMPTY:
                slot = (slot + ONE) & mask
            if keys[slot] == key:
                state = np.int64(targets[slot])
                length += 1
                break
            if state == 0:
                length = 0
                break
            state = np.int64(link[state])
            length = np.int64(longest[state])
        if length > found[state]:
            found[state] = length
    return state, length
