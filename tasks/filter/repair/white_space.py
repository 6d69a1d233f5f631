"""White space that nobody sees: blanks at a line's end, and blank lines from the third on."""

from __future__ import annotations

import re

BLANKS = " \t\u00a0\u1680" + "".join(map(chr, range(0x2000, 0x200B))) + "\u202f\u205f\u3000"
# In RE2's dialect: what a text must hold to be looked at
SUPERFLUOUS = r"[ \t\x{a0}\x{1680}\x{2000}-\x{200a}\x{202f}\x{205f}\x{3000}](?:\n|\z)|\n{4}"

_BLANK_LINES = re.compile(r"\n{4,}")


def repair_white_space(text: str) -> tuple[str, int]:
    """The text without superfluous white space, and how many characters were dropped."""
    # Line by line, since a regular expression for blanks before a line's end takes quadratic time
    lines = [line.rstrip(BLANKS) for line in text.split("\n")]
    plain = _BLANK_LINES.sub("\n\n\n", "\n".join(lines))
    return plain, len(text) - len(plain)
