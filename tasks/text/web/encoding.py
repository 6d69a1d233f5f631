"""The encoding of a page: pages often declare another than they have.

Bytes that are valid UTF-8 beyond ASCII are hardly ever anything else, so that comes first, unless an encoding is
declared whose bytes are all ASCII. A few broken bytes, as in a page that is cut, don't change that. Then comes what
HTTP declares, what the page declares, and what the letters suggest.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator

MARKS = {codecs.BOM_UTF8: "utf-8-sig", codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"}
BROKEN = 0.25  # share of the characters beyond ASCII that may be broken. In other encodings most would be
ASCII_TOO = ("iso-2022", "iso2022", "hz", "utf-7", "utf-16", "utf-32", "utf16", "utf32")  # they look like valid UTF-8


HEAD = 1000  # bytes
XML = re.compile(rb"\s*<\?xml\b[^<>]*?\bencoding\s*=\s*[\"']([\w.-]+)")
COOKIE = re.compile(rb"(?:.*\n)?[ \t]*(?:#|//|;|%|--|/\*).*?coding[:=][ \t]*([\w.-]+)")  # of Python and Emacs


def decode(page: bytes, declared: str | None, html: bool = True) -> tuple[str, str]:
    """The text of a page, and the encoding by which it was read. `declared` is that of HTTP. If none fits, bytes that
    don't are replaced by U+FFFD. What isn't HTML may declare its encoding in a comment of its first two lines."""
    for name in _candidates(page, declared, html):
        try:
            return page.decode(name), name
        except (ValueError, LookupError):  # the bytes don't fit, or the name isn't one
            if name == "utf-8" and (text := nearly_utf8(page)) is not None:
                return text, name
    return page.decode("utf-8", "replace"), "utf-8"


def nearly_utf8(data: bytes) -> str | None:
    """The text of UTF-8 of which some bytes are damaged, or which is cut, with U+FFFD for those. None for bytes that
    are rather something else."""
    text = data.decode("utf-8", "replace")
    beyond = len(text) - len(text.encode("ascii", "ignore"))
    return text if text.count("\ufffd") < BROKEN * beyond else None


def _candidates(page: bytes, declared: str | None, html: bool) -> Iterator[str]:
    from resiliparse.parse.encoding import detect_encoding, map_encoding_to_html5

    yield from (name for mark, name in MARKS.items() if page.startswith(mark))
    stated = XML.match(page[:HEAD]) if html else COOKIE.match(page[:HEAD])
    by_page = detect_encoding(page, from_html_meta=True) if html else None
    named = [name.lower() for name in (declared, stated and stated.group(1).decode(), by_page) if name]
    yield from (name for name in named if name.startswith(ASCII_TOO))
    yield "utf-8"
    for name in named:
        # What calls itself ISO 8859-1 is read as Windows-1252, as browsers do
        yield map_encoding_to_html5(name, fallback_utf8=False) or name
    if guess := detect_encoding(page):
        yield guess
    yield "cp949"  # of Korean, for which there is no guess. Text in another encoding hardly ever fits
