"""Characters that Adobe and Microsoft gave private codes before Unicode had a way to show them, as what they show.

Fonts of PDF name their figures and small capitals so (Adobe Glyph List, "Corporate Use Subarea"), and the vowels and
tones of Thai that are moved beside tall letters. Without them a date has no digits, and a word of Thai no tones.
"""

from __future__ import annotations

_SMALL = {*range(0xF721, 0xF77B), *range(0xF7A1, 0xF800)} - {0xF760, 0xF7A8, 0xF7AF, 0xF7B4, 0xF7B8}  # accents alone
_SIGNS = (
    (0xF6D9, "©®™1"),
    (0xF6DE, "—¢¢,,$$--..abdeilmorst"),  # inferior and superior ones
    (0xF6F9, "łœ"),
    (0xF6FD, "š"),
    (0xF6FF, "ž"),
    (0xF8E8, "®©™"),
    # Thai, in Microsoft's fonts and in Adobe's
    (0xF700, "ฐ\u0e34\u0e35\u0e36\u0e37\u0e48\u0e49\u0e4a\u0e4b\u0e4c\u0e48\u0e49\u0e4a\u0e4b\u0e4cญ"),
    (0xF710, "\u0e31\u0e4d\u0e47\u0e48\u0e49\u0e4a\u0e4b\u0e4c\u0e38\u0e39\u0e3a"),
    (0xF884, "\u0e31\u0e34\u0e35\u0e36\u0e37\u0e47"),
    (0xF88A, "\u0e48\u0e48\u0e48\u0e49\u0e49\u0e49\u0e4a\u0e4a\u0e4a\u0e4b\u0e4b\u0e4b\u0e4c\u0e4c\u0e4c\u0e4d"),
)
# Old-style figures and small capitals: the code of the character is that of ASCII or Latin-1, less 0xF700
SHOWN = {code: chr(code - 0xF700) for code in _SMALL} | {
    first + at: sign for first, signs in _SIGNS for at, sign in enumerate(signs)
}
