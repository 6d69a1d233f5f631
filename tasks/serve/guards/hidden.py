"""Characters that people don't see: control characters, and invisible ones that hide text or reorder it.

Some are needed. Emoji are joined by U+200D and coloured by U+FE0F, three flags are written in tags, Arabic and the
scripts of India and South-East Asia join or separate letters by U+200C and U+200D, and marks of direction belong to
text from right to left. These pass, in such places only.
"""

from __future__ import annotations

import regex

REPLACEMENT = "\ufffd"

_SURROGATE = regex.compile(r"[\ud800-\udfff]")
_CONTROL = regex.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
_SCRIPTS = (
    "Arabic Syriac Mongolian Nko Devanagari Bengali Gurmukhi Gujarati Oriya Tamil Telugu Kannada Malayalam Sinhala "
    "Tibetan Myanmar Khmer"
)
_JOINING = "".join(rf"\p{{{script}}}" for script in _SCRIPTS.split())
_EMOJI = r"\p{Extended_Pictographic}"
_FLAGS = "|".join(
    "\U0001f3f4" + "".join(chr(0xE0000 + ord(sign)) for sign in flag) + "\U000e007f"
    for flag in ("gbeng", "gbsct", "gbwls")
)
_NEEDED = (
    rf"(?:{_FLAGS})"
    rf"|(?<=[{_EMOJI}\u200d\U0001f3fb-\U0001f3ff]\ufe0f?)\u200d(?={_EMOJI})"
    rf"|(?<=[{_EMOJI}0-9#*])[\ufe0e\ufe0f](?![\ufe00-\ufe0f])"
    rf"|(?<=[{_JOINING}])[\u200c\u200d]{{1,2}}"
    r"|(?<=[\p{Han}\p{Mongolian}\p{Myanmar}])[\ufe00-\ufe0f\u180b-\u180d\U000e0100-\U000e01ef](?![\ufe00-\ufe0f\U000e0100-\U000e01ef])"
)
_HIDING = (
    r"[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0"
    r"\ufff0-\ufffb\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)
_INVISIBLE = regex.compile(rf"(?P<needed>{_NEEDED})|{_HIDING}")
_DIRECTION = regex.compile(r"[\u061c\u200e\u200f]")
_RIGHT_TO_LEFT = regex.compile(r"[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefc]")
_SUSPECT = regex.compile(_HIDING)


def with_whole_characters(text: str) -> tuple[str, int]:
    """The text with its surrogate pairs joined and lone surrogates replaced, and the number of these."""
    if text.isascii() or not _SURROGATE.search(text):
        return text, 0
    joined = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
    replaced: tuple[str, int] = _SURROGATE.subn(REPLACEMENT, joined)
    return replaced


def without_control(text: str) -> tuple[str, int]:
    """The text without control characters but tabs and line ends, and their number."""
    removed: tuple[str, int] = _CONTROL.subn("", text)
    return removed


def without_invisible(text: str) -> tuple[str, int]:
    """The text without invisible characters but those that it needs, and their number."""
    if text.isascii() or not _SUSPECT.search(text):
        return text, 0
    keeps_direction = _RIGHT_TO_LEFT.search(text) is not None
    removed = 0

    def kept(match: regex.Match[str]) -> str:
        nonlocal removed
        if match["needed"] or (keeps_direction and _DIRECTION.match(match[0])):
            return str(match[0])
        removed += 1
        return ""

    return _INVISIBLE.sub(kept, text), removed
