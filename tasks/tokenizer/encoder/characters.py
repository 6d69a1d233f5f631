"""Which characters are letters, numbers and white space: the library itself is asked, once a process.

Unicode grows every year, and the regular expressions of `tokenizers` know another edition of it than Python does. So
the tables come from matching every code point with the classes that the patterns are made of.
"""

from __future__ import annotations

import functools

import numpy as np

from storage.arrays import UInt8

OTHER, LETTER, NUMBER, SPACE = 0, 1, 2, 3
SIZE = 0x40000  # no letter, number or white space is assigned beyond; a test looks
CLASSES = {LETTER: r"\p{L}", NUMBER: r"\p{N}", SPACE: r"\s"}
SURROGATES = slice(0xD800, 0xE000)


@functools.cache
def character_classes() -> UInt8:
    """OTHER, LETTER, NUMBER or SPACE for each code point below SIZE, as `tokenizers` matches it."""
    from tokenizers import NormalizedString, Regex

    codes = np.delete(np.arange(SIZE, dtype="<u4"), SURROGATES)
    # Not by a pre-tokenizer: to say where its pieces lie it takes 17 times as long
    text = NormalizedString(codes.tobytes().decode("utf-32-le"))
    table = np.full(SIZE, OTHER, np.uint8)
    for kind, expression in CLASSES.items():
        # U+0000 is in no class, and runs are as long as they can be: so every second piece is one
        pieces = text.split(Regex(f"{expression}+"), "isolated")
        places = np.cumsum([len(piece.original) for piece in pieces])
        for start, end in zip(places[:-1:2], places[1::2], strict=False):
            table[codes[start:end]] = kind
    table.setflags(write=False)
    return table
