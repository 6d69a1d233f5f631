"""What each character is to a template: tables by code point."""

from __future__ import annotations

import functools
import unicodedata
from typing import NamedTuple

import numpy as np

from storage.shards.arrays import UInt8, UInt32
from tasks.text.characters import ALONE, SIZE, SPACE, WORD, characters

MARK, JOINER, BREAK = 4, 16, 32  # beside WORD, SPACE and ALONE; the bits that those tables use for others
JOINERS = "-'’\u2010\u2011"  # within a word; so are combining marks, soft hyphens and their like
BREAKS = "–—―…|·•→"  # end a word without white space around
QUOTES = {'"': '"', "“": "”", "„": "“", "«": "»", "‘": "’", "'": "'", "`": "`", "「": "」", "『": "』"}


class TemplateCharacters(NamedTuple):
    """`kinds[c]` has the bits above: MARK is a digit or an underscore. `folded[c]` is the small letter of c, which is
    another for capitals, and `closers[c]` the quotation mark that closes c, 0 for what opens none."""

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
