"""Books of Project Gutenberg: the text between its head and its licence, and what the head says of it.

Since 2003 lines with three asterisks mark both ends, in several wordings, perhaps over two lines. Before, the head
ended with the "small print", and the text with a line such as "End of Project Gutenberg's …". A book without marks is
kept whole.
"""

from __future__ import annotations

import codecs
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from tasks.download.sources.rows import Refused, Row
from tasks.download.sources.streams import open_file
from tasks.text.web.encoding import nearly_utf8

NAME = r"(?:THE |THIS )?PROJECT GUTENBERG(?:['’]S)?(?: E?-?(?:BOOK|TEXT))?"
START = re.compile(
    rf"^[ \t]*\*{{3}}[ \t]*START OF {NAME}[^*]{{0,400}}?\*{{3}}.*$"
    r"|^.*\*END[ *]*THE SMALL PRINT!.*$"
    rf"|^[ \t]*\*{{3}}[ \t]*START OF {NAME}.*$",
    re.IGNORECASE | re.MULTILINE,
)
END = re.compile(
    rf"^[ \t]*\*{{3}}[ \t]*END OF {NAME}.*$"
    r"|^[ \t]*(?:The )?End of (?:the |this )?Project Gutenberg(?:['’]s)?\b.*$"
    r"|^[ \t]*\*{3} ?START: FULL LICENSE.*$",
    re.IGNORECASE | re.MULTILINE,
)
MOST_HEAD = 60_000  # characters in which a head ends
# By whom the book was made, right below the head: a paragraph
MADE_BY = re.compile(
    r"\A\s*(?:(?:This (?:e-?book|e-?text) was )?(?:Produced|Prepared|Transcribed|Scanned|Digitized) (?:by|from)"
    r"|E-?text (?:prepared|produced|scanned) by|Credits?:|\[?(?:This|The) (?:e-?text|e-?book) was (?:produced|prepared)"
    r"|Transcribed from the)(?:.+\n?)+",
    re.IGNORECASE,
)
FIELD = re.compile(
    r"^(Title|Author|Editor|Translator|Release date|Posting date|Language|Character set encoding|Original publication)"
    r":[ \t]*(.+(?:\n[ \t]+\S.*)*)",
    re.IGNORECASE | re.MULTILINE,
)
NUMBER = re.compile(r"\[\s*(?:e-?book|e-?text)\s*#?\s*(\d+)\s*\]|(?:^|\D)pg(\d+)", re.IGNORECASE)
IN_NAME = re.compile(r"^(?:pg)?(\d+)(?:-\d+)?(?:\.txt)?(?:\.utf-?8)?\.txt(?:\.gz|\.zst)?$")
COPYRIGHT = re.compile(r"This is a COPYRIGHTED Project Gutenberg|protected by copyright", re.IGNORECASE)
PUBLIC = "public domain in the USA"
CODES = {
    "english": "en", "french": "fr", "german": "de", "finnish": "fi", "dutch": "nl", "italian": "it", "spanish": "es",
    "portuguese": "pt", "chinese": "zh", "greek": "el", "hungarian": "hu", "swedish": "sv", "esperanto": "eo",
    "latin": "la", "danish": "da", "tagalog": "tl", "catalan": "ca", "polish": "pl", "norwegian": "no", "russian": "ru",
    "czech": "cs", "japanese": "ja", "welsh": "cy", "icelandic": "is", "hebrew": "he",
}  # fmt: skip


def read_book(path: Path, name: str, limit: int, unmarked: Counter[str]) -> Iterator[Row | Refused]:
    """The book of a file. `unmarked` counts those without marks. Raises OSError."""
    with open_file(path) as file:
        data = file.read(limit + 1)
    if len(data) > limit:
        yield Refused("too_long", name)
        return
    text = _decoded(data).replace("\r\n", "\n").replace("\r", "\n")
    start = START.search(text, 0, MOST_HEAD)
    # Older books have their licence before the text only, so the end is looked for after the start
    ends = END.search(text, start.end() if start else 0)
    body = text[start.end() if start else 0 : ends.start() if ends else len(text)]
    if not start or not ends:
        unmarked["start" if ends else "end" if start else "start and end"] += 1
    if start:
        body = MADE_BY.sub("", body, count=1)
    head = text[: start.start()] if start else text[:2000]
    if not body.strip():
        yield Refused("no_text", name, removed=True)
        return
    yield Row({"text": body.strip(), **_fields(head, path, bool(start and ends), bool(COPYRIGHT.search(text)))}, name)


def _decoded(data: bytes) -> str:
    """The text: in UTF-8, or as old books are, in Windows-1252, which has all of Latin-1's letters."""
    try:
        return data.removeprefix(codecs.BOM_UTF8).decode("utf-8")
    except UnicodeDecodeError:
        if (text := nearly_utf8(data.removeprefix(codecs.BOM_UTF8))) is not None:
            return text
        stated = re.search(rb"character set encoding:\s*([\w-]+)", data[:5000], re.IGNORECASE)
        try:
            name = stated.group(1).decode() if stated else "cp1252"
            return data.decode("cp1252" if name.lower() in ("ascii", "iso-8859-1", "utf-8", "us-ascii") else name)
        except (LookupError, UnicodeDecodeError):
            return data.decode("latin-1")


def _fields(head: str, path: Path, marked: bool, copyrighted: bool) -> dict[str, str]:
    found: dict[str, str] = {}
    for field in FIELD.finditer(head):
        found.setdefault(field.group(1).lower(), " ".join(field.group(2).split()))
    number = IN_NAME.match(path.name) or NUMBER.search(head)
    language = found.get("language", "")
    released = found.get("release date") or found.get("posting date") or ""
    fields = {
        "file": path.name,
        "title": found.get("title"),
        "author": found.get("author"),
        "editor": found.get("editor"),
        "translator": found.get("translator"),
        "date": released.partition("[")[0].strip(),
        "language": CODES.get(language.lower(), language),
        "url": f"https://www.gutenberg.org/ebooks/{next(filter(None, number.groups()))}" if number else None,
        "license": ("copyrighted: see the book" if copyrighted else PUBLIC) if marked else None,
    }
    return {name: value for name, value in fields.items() if value}
