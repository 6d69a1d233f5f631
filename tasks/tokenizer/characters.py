"""Which characters are letters, numbers and white space: the library itself is asked, once a process.

Unicode grows every year, and the regular expressions of `tokenizers` know another edition of it than Python does. So
the tables come from matching every code point with the classes that the patterns are made of.
"""

from __future__ import annotations

import functools

import numpy as np
import numpy.typing as npt

OTHER, LETTER, NUMBER, SPACE = 0, 1, 2, 3
SIZE = 0x40000  # no letter, number or white space is assigned beyond; a test looks
CLASSES = {LETTER: r"\p{L}", NUMBER: r"\p{N}", SPACE: r"\s"}
SURROGATES = range(0xD800, 0xE000)


@functools.cache
def character_classes() -> npt.NDArray[np.uint8]:
    """OTHER, LETTER, NUMBER or SPACE for each code point below SIZE, as `tokenizers` matches it."""
    from tokenizers import Regex
    from tokenizers.pre_tokenizers import Split

    codes = np.array([code for code in range(SIZE) if code not in SURROGATES])
    text = "".join(map(chr, codes.tolist()))
    table = np.full(SIZE, OTHER, np.uint8)
    for kind, expression in CLASSES.items():
        runs = Split(Regex(f"{expression}+"), "removed", invert=True).pre_tokenize_str(text)
        for _, (start, end) in runs:
            table[codes[start:end]] = kind
    table.setflags(write=False)
    return table
