"""Unicode tables for the byte kernel: a kind and a folded character for every code point.

Most characters can be normalised one by one, which the kernel does by these tables. A text with any other character
(one that composes with its neighbour under NFC, or folds to several characters) is marked HARD, normalised by Python's
`unicodedata` and `casefold`, and scanned again. Both ways give the same bytes; a test compares them.
"""

from __future__ import annotations

import functools
import itertools
import re
import unicodedata
from typing import NamedTuple

import numpy as np

from storage.shards.arrays import UInt8, UInt32

OTHER, WORD, SPACE, HARD = 0, 1, 2, 4  # HARD: a text with this character must be normalised by Python
ALONE = 8  # added to WORD: a word of its own, as in the scripts that are written without spaces
COMPOSES = 16  # a mark or a syllable's end that NFC joins to the character before it
IGNORED = 32  # left out, so that it doesn't end a word
SIZE = 0x40000  # no letter is assigned above it, which a test checks
# All other ranges (ideographs, syllables, private use) have no case, white space or composition
INTRICATE = (
    range(0x3400),
    range(0xA000, 0xAC00),
    range(0xD7A4, 0xD800),
    range(0xF900, 0x17000),
    range(0x1BC00, 0x20000),
    range(0x2F800, 0x2FA20),
)
# Letters of these blocks: those of Unicode's line-breaking classes SA (Thai, Lao, Myanmar, Khmer, Tai Le, New Tai Lue,
# Tai Tham, Tai Viet) and ID (Han, Kana, Bopomofo, Yi), Javanese and Balinese. Each takes three bytes of UTF-8 or more.
UNSPACED = (
    range(0x0E00, 0x0F00),
    range(0x1000, 0x10A0),
    range(0x1780, 0x1800),
    range(0x1950, 0x19E0),
    range(0x1A20, 0x1AB0),
    range(0x1B00, 0x1B80),
    range(0x3005, 0x3008),
    range(0x3021, 0x3130),
    range(0x31A0, 0x31C0),
    range(0x31F0, 0x3200),
    range(0x3400, 0x4DC0),
    range(0x4E00, 0xA4D0),
    range(0xA980, 0xAA00),
    range(0xAA60, 0xAAE0),
    range(0xF900, 0xFB00),
    range(0xFF66, 0xFFA0),
    range(0x1AFF0, 0x1B170),
    range(0x20000, SIZE),
)
# Soft hyphen, zero-width space, non-joiner and joiner, word joiner, byte-order mark: they change no word
INVISIBLE = "\u00ad\u200b\u200c\u200d\u2060\ufeff"
ALL = np.arange(SIZE, dtype="<u4").tobytes().decode("utf-32-le", "surrogatepass")
JAMO = {chr(code) for code in (*range(0x1161, 0x1176), *range(0x11A8, 0x11C3))}  # these compose by rule, not by table


class Characters(NamedTuple):
    """`kinds[c]` is OTHER, WORD, SPACE or IGNORED, possibly with HARD, ALONE or COMPOSES. `folded[c]` is the folded
    character of c."""

    kinds: UInt8
    folded: UInt32


@functools.cache
def characters(
    ignore_case: bool, ignore_white_space: bool, part_unspaced: bool = False, ignore_invisible: bool = False, /
) -> Characters:
    """The tables, built once per process from Python's Unicode data (20 ms: by functions of C on whole ranges). With
    `part_unspaced`, each letter of a script without spaces is its own word. With `ignore_invisible`, INVISIBLE
    characters are left out."""
    kinds = np.zeros(SIZE, np.uint8)
    for run in re.finditer(r"\w+", ALL):
        kinds[run.start() : run.end()] = WORD
    folded = np.arange(SIZE, dtype=np.uint32)
    texts = [text for block in INTRICATE for text in ALL[block.start : block.stop]]
    folds = list(map(str.casefold, texts))
    if ignore_case:
        for text, fold in zip(texts, folds, strict=True):
            if fold != text and len(fold) == 1:
                folded[ord(text)] = ord(fold)
    if ignore_white_space:
        blanks = [ord(text) for text in texts if text.isspace()]
        kinds[blanks], folded[blanks] = SPACE, ord(" ")
    second = {chr(int(parts[1], 16)) for parts in map(str.split, map(unicodedata.decomposition, texts)) if _pair(parts)}
    kinds[list(map(ord, _hard(texts, folds if ignore_case else texts, second)))] |= HARD
    kinds[[ord(text) for text in second | JAMO]] |= COMPOSES
    if part_unspaced:
        kinds[unspaced_letters()] |= ALONE
    if ignore_invisible:
        kinds[list(map(ord, INVISIBLE))] = IGNORED
    return Characters(kinds, folded)


def unspaced_letters() -> list[int]:
    """The code points of the letters of scripts that are written without spaces between words, in order."""
    return [
        code
        for block in UNSPACED
        for code in itertools.compress(block, map(str.isalpha, ALL[block.start : block.stop]))
    ]


def _hard(texts: list[str], folds: list[str], second: set[str]) -> set[str]:
    """The characters that compose with the one before them, aren't NFC by themselves, or fold to several."""
    marks = {text for text in texts if unicodedata.combining(text)}
    changing = {
        text
        for text, fold in zip(texts, folds, strict=True)
        if len(fold) != 1 or not unicodedata.is_normalized("NFC", text)
    }
    return {*second, *JAMO, *marks, *changing}


def _pair(decomposition: list[str]) -> bool:
    """Whether a decomposition is canonical, into two characters. Others begin with "<compat>" or the like."""
    return len(decomposition) == 2 and decomposition[0][0] != "<"
