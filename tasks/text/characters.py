"""Unicode tables for the byte kernel: a kind and a folded character for every code point.

Most characters can be normalised one by one, which the kernel does by these tables. A text with any other character
(one that composes with its neighbour under NFC, or folds to several characters) is marked HARD, normalised by Python's
`unicodedata` and `casefold`, and scanned again. Both ways give the same bytes; a test compares them.
"""

from __future__ import annotations

import functools
import unicodedata
from typing import NamedTuple

import numpy as np

from storage.shards.arrays import UInt8, UInt32

OTHER, WORD, SPACE, HARD = 0, 1, 2, 4  # HARD: a text with this character must be normalised by Python
ALONE = 8  # added to WORD: a word of its own, as in the scripts that are written without spaces
COMPOSES = 16  # a mark or a syllable's end that NFC joins to the character before it
SIZE = 0x40000  # no letter is assigned above it, which a test checks
# All other ranges (ideographs, syllables, private use) have no case, white space or composition
INTRICATE = (
    range(0x3400), range(0xA000, 0xAC00), range(0xD7A4, 0xD800), range(0xF900, 0x17000),
    range(0x1BC00, 0x20000), range(0x2F800, 0x2FA20),
)  # fmt: skip
# Letters of these blocks: those of Unicode's line-breaking classes SA (Thai, Lao, Myanmar, Khmer, Tai Le, New Tai Lue,
# Tai Tham, Tai Viet) and ID (Han, Kana, Bopomofo, Yi), Javanese and Balinese. Each takes three bytes of UTF-8 or more.
UNSPACED = (
    range(0x0E00, 0x0F00), range(0x1000, 0x10A0), range(0x1780, 0x1800), range(0x1950, 0x19E0), range(0x1A20, 0x1AB0),
    range(0x1B00, 0x1B80), range(0x3005, 0x3008), range(0x3021, 0x3130), range(0x31A0, 0x31C0), range(0x31F0, 0x3200),
    range(0x3400, 0x4DC0), range(0x4E00, 0xA4D0), range(0xA980, 0xAA00), range(0xAA60, 0xAAE0), range(0xF900, 0xFB00),
    range(0xFF66, 0xFFA0), range(0x1AFF0, 0x1B170), range(0x20000, SIZE),
)  # fmt: skip
JAMO = {chr(code) for code in (*range(0x1161, 0x1176), *range(0x11A8, 0x11C3))}  # these compose by rule, not by table


class Characters(NamedTuple):
    """`kinds[c]` is OTHER, WORD or SPACE, possibly with HARD, ALONE or COMPOSES; `folded[c]` is the output for c."""

    kinds: UInt8
    folded: UInt32


@functools.cache
def characters(ignore_case: bool, ignore_white_space: bool, part_unspaced: bool = False, /) -> Characters:
    """The tables, built once per process from Python's Unicode data (about 0.1 s). With `part_unspaced`, each letter of
    a script that is written without spaces is a word of its own."""
    kinds = np.fromiter((chr(code).isalnum() for code in range(SIZE)), np.uint8, SIZE) * WORD
    kinds[ord("_")] = WORD  # as in \w
    folded = np.arange(SIZE, dtype=np.uint32)
    intricate = [code for block in INTRICATE for code in block]
    texts = list(map(chr, intricate))
    if ignore_case:
        folded[intricate] = [ord(fold) if len(fold := text.casefold()) == 1 else ord(text) for text in texts]
    if ignore_white_space:
        blanks = [ord(text) for text in texts if text.isspace()]
        kinds[blanks], folded[blanks] = SPACE, ord(" ")
    second = {parts[1] for text in texts if len(parts := _canonical(text)) == 2}
    kinds[[ord(text) for text in texts if _is_hard(text, ignore_case, second)]] |= HARD
    kinds[[ord(text) for text in second | JAMO]] |= COMPOSES
    if part_unspaced:
        unspaced = [code for block in UNSPACED for code in block if chr(code).isalpha()]
        kinds[unspaced] |= ALONE
    return Characters(kinds, folded)


def _is_hard(text: str, ignore_case: bool, second: set[str]) -> bool:
    return (
        text in second  # composes with the character before it
        or text in JAMO
        or unicodedata.combining(text) != 0
        or not unicodedata.is_normalized("NFC", text)
        or (ignore_case and len(text.casefold()) != 1)
    )


def _canonical(text: str) -> list[str]:
    parts = unicodedata.decomposition(text).split()
    return [] if not parts or parts[0].startswith("<") else [chr(int(part, 16)) for part in parts]
