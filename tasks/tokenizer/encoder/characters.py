"""The classes of characters (letters, numbers, white space) according to the `tokenizers` library.

The regular expressions of `tokenizers` use another version of Unicode than Python does, so the table is built, once per
process, by matching every code point against the character classes that the patterns use.
"""

from __future__ import annotations

import functools

import numpy as np

from storage.shards.arrays import UInt8

OTHER, LETTER, NUMBER, SPACE = 0, 1, 2, 3
SIZE = 0x40000  # no letter, number or white space is assigned above it, which a test checks
CLASSES = {LETTER: r"\p{L}", NUMBER: r"\p{N}", SPACE: r"\s"}
SURROGATES = slice(0xD800, 0xE000)


@functools.cache
def character_classes() -> UInt8:
    """OTHER, LETTER, NUMBER or SPACE for each code point below SIZE, as `tokenizers` matches it."""
    from tokenizers import NormalizedString, Regex

    codes = np.delete(np.arange(SIZE, dtype="<u4"), SURROGATES)
    # Not a pre-tokenizer: computing the offsets of its pieces takes 17 times as long
    text = NormalizedString(codes.tobytes().decode("utf-32-le"))
    table = np.full(SIZE, OTHER, np.uint8)
    for kind, expression in CLASSES.items():
        # U+0000 is in no class and runs are maximal, so every second piece is a run of the class
        pieces = text.split(Regex(f"{expression}+"), "isolated")
        places = np.cumsum([len(piece.original) for piece in pieces])
        for start, end in zip(places[:-1:2], places[1::2], strict=False):
            table[codes[start:end]] = kind
    table.setflags(write=False)
    return table
