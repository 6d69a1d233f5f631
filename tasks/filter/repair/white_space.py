"""Superfluous white space: at line ends, and blank lines after the second in a row."""

from __future__ import annotations

import re

BLANKS = " \t\u00a0\u1680" + "".join(map(chr, range(0x2000, 0x200B))) + "\u202f\u205f\u3000"
# In RE2's syntax: texts without a match need no repair
SUPERFLUOUS = r"[ \t\x{a0}\x{1680}\x{2000}-\x{200a}\x{202f}\x{205f}\x{3000}](?:\n|\z)|\n{4}"

_BLANK_LINES = re.compile(r"\n{4,}")


def repair_white_space(text: str) -> tuple[str, int]:
    """The text without superfluous white space, and the number of characters removed."""
    # Line by line, because a regular expression for trailing blanks takes quadratic time
    lines = [line.rstrip(BLANKS) for line in text.split("\n")]
    plain = _BLANK_LINES.sub("\n\n\n", "\n".join(lines))
    return plain, len(text) - len(plain)
