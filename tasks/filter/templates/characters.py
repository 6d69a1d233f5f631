"""Classes of characters for templates: tables by code point."""

from __future__ import annotations

import functools
import unicodedata
from typing import NamedTuple

import numpy as np

from storage.shards.arrays import UInt8, UInt32
from tasks.text.characters import ALONE, SIZE, SPACE, WORD, characters

MARK, JOINER, BREAK = 4, 16, 32  # beside WORD, SPACE and ALONE, in place of other bits of those tables
JOINERS = "-'’\u2010\u2011"  # within a word, as are combining marks, soft hyphens and similar characters
BREAKS = "–—―…|·•→"  # end a word without white space around
QUOTES = {'"': '"', "“": "”", "„": "“", "«": "»", "‘": "’", "'": "'", "`": "`", "「": "」", "『": "』"}


class TemplateCharacters(NamedTuple):
    """`kinds[c]` has the bits above, where MARK is a digit or an underscore. `folded[c]` is the small letter of c,
    which differs from c for capitals. `closers[c]` is the quotation mark that closes c, 0 if c doesn't open one."""

    kinds: UInt8
    folded: UInt32
    closers: UInt32


@functools.cache
def template_characters() -> TemplateCharacters:
    """The tables, built once per process."""
    known = characters(True, True, True)
    kinds = known.kinds & np.uint8(WORD | SPACE | ALONE)
    texts = list(map(chr, range(SIZE)))
    kinds[[(text.isnumeric() and not text.isalpha()) or text == "_" for text in texts]] |= MARK
    kinds[[unicodedata.category(text)[0] == "M" or unicodedata.category(text) == "Cf" for text in texts]] |= JOINER
    kinds[[ord(text) for text in JOINERS]] |= JOINER
    kinds[[ord(text) for text in BREAKS]] |= BREAK
    closers = np.zeros(SIZE, np.uint32)
    closers[[ord(text) for text in QUOTES]] = [ord(text) for text in QUOTES.values()]
    return TemplateCharacters(kinds, known.folded, closers)
