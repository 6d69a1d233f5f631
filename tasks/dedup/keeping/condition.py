"""The condition of a text: how much needs repair, and how much of it is in lines of text.

Measured in the sketch, so a changed order of preference doesn't measure again.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from storage.shards.arrays import Int64, UInt8, UInt32
from tasks.dedup.keeping.kernels import BAR, BLANK, DEFECT, END, NEUTRAL, TRAIL, VISIBLE, examine
from tasks.text.characters import ALONE, COMPOSES, SIZE, characters
from tasks.text.scan import utf8

WIDE = 3  # the length of a letter of a script without spaces, in a line's length
ENDS = ".!?:;,…。！？：；，、।॥۔؟؛។៕၊။"
CLOSERS = "\"')]}”’»›」』）】》〉"
BARS_OF = "|•·›»→¦▸►"
UNDEFINED = (0x81, 0x8D, 0x8F, 0x90, 0x9D)  # in Windows-1252


class Traits(NamedTuple):
    """`traits[c]` are those of a code point: VISIBLE, BLANK, NEUTRAL (does not change whether the line ends a
    sentence), END, BAR, DEFECT, and TRAIL (the second character of UTF-8 that was read as Windows-1252). `weights[c]`
    is its length in a line."""

    traits: UInt8
    weights: UInt8


@functools.cache
def traits() -> Traits:
    """The tables, built once per process."""
    kinds = characters(True, True, True, True).kinds  # the scanner's: built once
    table = np.full(SIZE, VISIBLE, np.uint8)
    table[(kinds & COMPOSES) != 0] = DEFECT | NEUTRAL
    table[[0x1680, *range(0x2000, 0x200B), 0x2028, 0x2029, 0x202F, 0x205F, 0xA0]] = BLANK | NEUTRAL | DEFECT
    controls = [*range(32), *range(0x7F, 0xA0)]
    table[[*controls, 0xAD, 0x200B, 0x2060, 0xFEFF, 0xFFFD]] = DEFECT | NEUTRAL
    table[[ord(character) for character in " \t\u3000"]] = BLANK | NEUTRAL  # the last indents Chinese and Japanese
    for some, trait in ((ENDS, END), (CLOSERS, NEUTRAL), (BARS_OF, BAR)):
        table[[ord(character) for character in some]] |= trait
    trails = bytes(code for code in range(0x80, 0xC0) if code not in UNDEFINED).decode("cp1252")
    table[[*range(0x80, 0xC0), *map(ord, trails)]] |= TRAIL
    weights = (table & VISIBLE) * np.where(kinds & ALONE, np.uint8(WIDE), np.uint8(1))
    return Traits(table, weights.astype(np.uint8))


class Conditions(NamedTuple):
    """For each text the number of defects, and its characters other than white space in lines of text, in other lines,
    and in its longest line."""

    repairs: UInt32
    text: Int64
    other: Int64
    longest: Int64


def conditions(texts: pa.Array) -> Conditions:
    """See `examine` for what counts as a defect and as a line of text."""
    size = len(texts)
    found = Conditions(
        np.empty(size, np.uint32), np.empty(size, np.int64), np.empty(size, np.int64), np.empty(size, np.int64)
    )
    examine(*utf8(texts), *traits(), found.repairs, found.text, found.other, found.longest)
    return found
