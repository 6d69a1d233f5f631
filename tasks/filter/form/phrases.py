"""Case-insensitive search for several phrases at once, reading a fraction of the bytes (Wu and Manber 1994).

All phrases have at least REACH bytes. If no phrase has the last two bytes of a window of REACH bytes among its first
REACH, no phrase starts there, and the window moves on as far as those two bytes allow. Case is that of `str.lower`,
which maps only one character outside ASCII to a letter of a phrase: the Kelvin sign, to k.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import numpy as np

from storage.shards.arrays import Int64, UInt8

LOREM_IPSUM, JAVASCRIPT, POLICY = 1, 2, 4

PHRASES = {
    "lorem ipsum": LOREM_IPSUM,
    "javascript": JAVASCRIPT,
    "terms of use": POLICY,
    "privacy policy": POLICY,
    "cookie policy": POLICY,
    "uses cookies": POLICY,
    "use of cookies": POLICY,
    "use cookies": POLICY,
}
KELVIN = "\N{KELVIN SIGN}"
REACH = min(map(len, PHRASES))
LOW = 31  # the bits of a byte that index the tables, without the bit of a letter's case


class PhraseTables(NamedTuple):
    """`shifts[a, b]` is how far a window that ends in a and b (their LOW bits) may move, 0 if a phrase may start in it.

    Phrase p is `spelt[p, :lengths[p]]` in lower case, of kind `kinds[p]`.
    """

    shifts: UInt8
    spelt: UInt8
    lengths: Int64
    kinds: UInt8


@functools.cache
def phrase_tables() -> PhraseTables:
    """The tables of PHRASES, built once per process."""
    kinds = {text.encode(): kind for phrase, kind in PHRASES.items() for text in (phrase, phrase.replace("k", KELVIN))}
    shifts = np.full((LOW + 1, LOW + 1), REACH - 1, np.uint8)
    spelt = np.zeros((len(kinds), max(map(len, kinds))), np.uint8)
    for number, text in enumerate(kinds):
        spelt[number, : len(text)] = list(text)
        for end in range(2, REACH + 1):
            pair = text[end - 2] & LOW, text[end - 1] & LOW
            shifts[pair] = min(shifts[pair], REACH - end)
    return PhraseTables(shifts, spelt, np.array(list(map(len, kinds))), np.array(list(kinds.values()), np.uint8))
