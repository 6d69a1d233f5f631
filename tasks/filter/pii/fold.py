"""Other forms of ASCII characters, made ASCII one for one, so that places in a text stay as they are."""

from __future__ import annotations

import re

_FOLDED = {
    **{chr(0xFF01 + offset): chr(0x21 + offset) for offset in range(94)},  # full-width forms
    **{chr(zero + digit): str(digit) for zero in (0x660, 0x6F0, 0x966) for digit in range(10)},
    **dict.fromkeys("\u00a0\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u202f\u3000", " "),
    **dict.fromkeys("\u2010\u2011\u2012\u2013\u2014\u2015\u2212", "-"),
}
_FOLDABLE = re.compile(f"[{re.escape(''.join(_FOLDED))}]")


def fold(text: str) -> str:
    """The text with other forms of digits, spaces, dashes and ASCII characters in ASCII, each in its place."""
    return text if text.isascii() else _FOLDABLE.sub(lambda match: _FOLDED[match[0]], text)
