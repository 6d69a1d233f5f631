"""Other forms of ASCII characters, mapped to ASCII one for one, so that offsets in a text stay valid, and other ways to
write the signs of an e-mail address."""

from __future__ import annotations

import re

_FOLDED = {
    **{chr(0xFF01 + offset): chr(0x21 + offset) for offset in range(94)},  # full-width forms
    **{chr(zero + digit): str(digit) for zero in (0x660, 0x6F0, 0x966) for digit in range(10)},
    **dict.fromkeys("\u00a0\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u202f\u3000", " "),
    **dict.fromkeys("\u2010\u2011\u2012\u2013\u2014\u2015\u2212", "-"),
}
_FOLDABLE = re.compile(f"[{re.escape(''.join(_FOLDED))}]")

UNSEEN = (
    "\u00ad\u200b\u200c\u200d\u2060\ufeff"  # soft hyphen, zero-width space, (non-)joiner, word joiner, byte order mark
)
AT_SIGN = (
    r"(?:@|%40|&#0{0,3}64;|&#x0{0,3}40;|&commat;| at "
    r"|(?P<space> ?)(?:\[ ?at ?\]|\( ?at ?\)|\{ ?at ?\}|< ?at ?>)(?P=space))"
)
DOT_ENTITY = r"(?:&#0{0,3}46;|&#x0{0,3}2e;|&period;)"
DOT_SIGN = rf"(?:\.|{DOT_ENTITY}| ?(?:\[ ?dot ?\]|\( ?dot ?\)|\{{ ?dot ?\}}) ?| dot )"
_AT_SIGN, _DOT_SIGN = re.compile(AT_SIGN, re.IGNORECASE), re.compile(DOT_SIGN, re.IGNORECASE)
_UNSEEN = re.compile(f"[{UNSEEN}]")


def fold(text: str) -> str:
    """The text with other forms of digits, spaces, dashes and ASCII characters mapped to ASCII, one for one."""
    return text if text.isascii() else _FOLDABLE.sub(lambda match: _FOLDED[match[0]], text)


def spelled_plainly(address: str) -> str:
    """An e-mail address, or a part of it, with plain @ and dots, and without invisible characters."""
    return _DOT_SIGN.sub(".", _AT_SIGN.sub("@", _UNSEEN.sub("", address)))
