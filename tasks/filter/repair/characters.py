"""Control and invisible characters, removed where they do nothing and kept where a script needs them.

Line ends of every kind become line feeds. Removed are the other C0 and C1 controls, terminal escapes, byte order marks,
word joiners, invisible operators, interlinear and deprecated format characters, and soft hyphens within a line.

Others depend on the character before them. Joiners (ZWJ, ZWNJ) are part of the spelling in Arabic and Indic scripts,
and join emoji. The zero-width space separates words in Thai, Lao, Khmer and Burmese. Tags spell the flags of regions.
Direction marks stay in texts with right-to-left letters. Anywhere else these are noise, or hide text from a reader.
"""

from __future__ import annotations

import re

# In RE2's syntax: texts without a match need no repair
INVISIBLE = (
    r"[\x00-\x08\x0b-\x1f\x7f-\x{9f}\x{ad}\x{61c}\x{200b}-\x{200f}\x{2028}-\x{202e}\x{2060}-\x{206f}"
    r"\x{feff}\x{fff9}-\x{fffc}\x{e0000}-\x{e007f}]"
)

_LINE_END = re.compile(r"\r\n|[\r\x0b\x0c\x85\u2028\u2029]")
_RIGHT_TO_LEFT = re.compile(
    r"[\u0590-\u061b\u061d-\u08ff\ufb1d-\ufdff\ufe70-\ufefc\U00010800-\U00010fff\U0001e800-\U0001efff]"
)
_DIRECTION = re.compile(r"[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
# Arabic, Indic and other scripts of Asia with joining letters; pictographs, their modifiers, the emoji selector
_JOINING = (
    r"\u0600-\u109f\u1780-\u1cff\ua800-\uabff\ufb50-\ufdff\ufe70-\ufefc\U00010a00-\U00011fff\U0001e900-\U0001e95f"
)
_PICTOGRAPH = r"\u00a9\u00ae\u203c-\u3299\ufe0f\U0001f000-\U0001faff"
_UNSPACED = r"\u0e00-\u109f\u1780-\u17ff\u1950-\u1b7f\ua980-\uaaff"  # scripts without spaces between words
_NOISE = re.compile(
    r"(\U0001f3f4[\U000e0020-\U000e007e]+\U000e007f)"  # kept: the flag of a region
    r"|\x1b\[[0-?]*[ -/]*[@-~]"  # a terminal's control sequence (ECMA-48, section 5.4)
    rf"|(?<![{_JOINING}{_PICTOGRAPH}])[\u200c\u200d]"
    rf"|(?<![{_UNSPACED}])\u200b"
    r"|\xad(?!\n)"
    r"|[\x00-\x08\x0e-\x1f\x7f-\x9f\u2060-\u2065\u206a-\u206f\ufeff\ufff9-\ufffc\U000e0000-\U000e007f]"
)


def repair_characters(text: str) -> tuple[str, int]:
    """The text without ineffective characters, and the number of characters removed or replaced."""
    plain, ends = _LINE_END.subn("\n", text)
    length = len(plain)
    if not _RIGHT_TO_LEFT.search(plain):
        plain = _DIRECTION.sub("", plain)
    plain = _NOISE.sub(r"\1", plain)
    return plain, ends + length - len(plain)
