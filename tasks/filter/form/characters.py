"""Unicode for the byte kernels: the classes of every code point, as bits.

White space and letters are Python's (`str.isspace`, `str.isalpha`). Symbols and terminal punctuation are the sets of
datatrove 0.10 (utils/text.py), which made FineWeb. Letters of scripts without spaces are those of
`tasks/text/characters.py`, as in deduplication.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import numpy as np

from storage.shards.arrays import UInt16
from tasks.text.characters import unspaced_letters

SIZE = 0x40000  # Unicode assigns no letter, white space or digit beyond, which a test checks

ALPHABETIC = 1
CONTENT = 2  # not a symbol
CURLY = 4
BRACKET = 8
TERMINAL = 16  # ends a sentence, and a line that FineWeb calls punctuated
CLOSER = 32  # may follow the end of a sentence: closing quotation marks and brackets
SPACE = 64
DECIMAL = 128  # \d
SPECIAL = 256  # of bytes: the kernel must take a closer look
ENDS_SENTENCE = 512  # of words: terminal punctuation at the end, ignoring closing marks
PUNCTUATED = 1024  # of words: terminal punctuation at the very end
ALPHANUMERIC = 2048
UNSPACED = 4096  # a letter of a script without spaces, which begins a word
WIDE_CLOSER = 8192  # a CLOSER of words with such a letter

CLOSERS = "\"')]’”"
WIDE_CLOSERS = "」』）］】〉》〕｝＂＇｣"
SYMBOLS = "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~«´»–—’“”„…∶━►、。〈〉《》「」【】！％（），．１：；？～"
CONTROLS = [*range(9), *range(11, 32), *range(127, 160)]  # symbols too
TERMINAL_CODES = (
    "21 2E 3F 589 61D 61E 61F 6D4 700 701 702 7F9 837 839 83D 83E 964 965 104A 104B 1362 1367 1368 166E 1735 1736 "
    "17D4 17D5 17D6 17D9 17DA 1803 1809 1944 1945 1AA8 1AA9 1AAA 1AAB 1B5A 1B5B 1B5E 1B5F 1B7D 1B7E 1C3B 1C3C 1C7E "
    "1C7F 203C 203D 2047 2048 2049 2E2E 2E3C 2E53 2E54 3002 A4FF A60E A60F A6F3 A6F7 A876 A877 A8CE A8CF A92F A9C8 "
    "A9C9 AA5D AA5E AA5F AAF0 AAF1 ABEB FE52 FE56 FE57 FF01 FF0E FF1F FF61 10A56 10A57 10F55 10F56 10F57 10F58 "
    "10F59 10F86 10F87 10F88 10F89 11047 11048 110BE 110BF 110C0 110C1 11141 11142 11143 111C5 111C6 111CD 111DE "
    "111DF 11238 11239 1123B 1123C 112A9 1144B 1144C 115C2 115C3 115C9 115CA 115CB 115CC 115CD 115CE 115CF 115D0 "
    "115D1 115D2 115D3 115D4 115D5 115D6 115D7 11641 11642 1173C 1173D 1173E 11944 11946 11A42 11A43 11A9B 11A9C "
    "11C41 11C42 11EF7 11EF8 11F43 11F44 16A6E 16A6F 16AF5 16B37 16B38 16B44 16E98 1BC9F 1DA88"
)
TERMINALS = "".join(chr(int(code, 16)) for code in TERMINAL_CODES.split())


class CharacterClasses(NamedTuple):
    """`codes[c]` are the classes of code point c < SIZE, `bytes[b]` those of an ASCII byte. Other bytes are SPECIAL."""

    codes: UInt16
    bytes: UInt16


@functools.cache
def character_classes(part_unspaced: bool) -> CharacterClasses:
    """The tables, built once per process from Python's own Unicode data (about 0.1 s). Without `part_unspaced` no
    character is UNSPACED."""
    texts = list(map(chr, range(SIZE)))
    codes = np.fromiter(map(str.isalpha, texts), np.uint16, SIZE) * ALPHABETIC
    codes |= np.fromiter(map(str.isspace, texts), np.uint16, SIZE) * SPACE
    codes |= np.fromiter(map(str.isdecimal, texts), np.uint16, SIZE) * DECIMAL
    codes |= np.fromiter(map(str.isalnum, texts), np.uint16, SIZE) * ALPHANUMERIC
    if part_unspaced:
        codes[unspaced_letters()] |= UNSPACED
        codes[list(map(ord, WIDE_CLOSERS))] |= WIDE_CLOSER
    codes |= CONTENT
    codes[[*CONTROLS, *map(ord, SYMBOLS + TERMINALS)]] &= ~np.uint16(CONTENT)
    codes[list(map(ord, TERMINALS))] |= TERMINAL
    codes[list(map(ord, CLOSERS))] |= CLOSER
    codes[ord("{")] |= CURLY
    codes[ord("[")] |= BRACKET
    table = np.full(256, SPECIAL, np.uint16)
    table[:128] = codes[:128]
    table[table & SPACE != 0] |= SPECIAL
    table[[ord("#"), ord(".")]] |= SPECIAL  # counted anywhere in a word
    return CharacterClasses(codes, table)
