"""The articles of a MediaWiki dump, `pages-articles.xml`, and what came of every page.

Pages are cut out by their tags before anything is parsed, which is safe as their text has no `<`. So a page of broken
XML costs itself, where readers of the whole file (mwxml, any of ElementTree) end at it.
"""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote
from xml.etree import ElementTree as xml

from storage.errors import SourceError
from tasks.download.config import DumpSource
from tasks.download.dumps.packed import pieces
from tasks.download.sources.rows import Refused, Row
from tasks.text.process import ExtractorProcess, Failed, process_of

BEGIN, END, LAST = b"<page>", b"</page>", b"</mediawiki>"
KEPT = 100  # bytes between pages that are looked at again with the next ones
LONGEST_HEAD = 1 << 20  # bytes before the first page
FILE, CATEGORY = "6", "14"  # namespaces
ARTICLES = "0"
FREE = re.compile(r"\.(wikipedia|wiktionary|wikibooks|wikiquote|wikisource|wikiversity|wikivoyage)\.org$")
LICENCE = "CC-BY-SA-4.0"  # of these projects' texts, https://foundation.wikimedia.org/wiki/Policy:Terms_of_Use


class Site(NamedTuple):
    """What a dump says of its wiki. `hidden` are the names of the namespaces of files and categories."""

    language: str
    address: str  # of pages, up to their title
    licence: str
    hidden: tuple[str, ...]


class Cut(NamedTuple):
    """A page as it is in the file, at an offset, or why it isn't whole."""

    data: bytes
    place: str
    reason: str = ""
    why: str = ""


def read_articles(
    path: Path, name: str, source: DumpSource, limit: int, lost: Counter[str], start: int = 0, end: int | None = None
) -> Iterator[Row | Refused]:
    """The articles of a dump, with text and metadata, and the other pages refused. `lost` counts the templates whose
    text is missing. Raises SourceError."""
    process = process_of("tasks.text.dumps.wikitext", (source.tables or "drop",), source.seconds)
    site = site_of(next(cut_pages(path, name, limit)).data) if start else None
    for cut in cut_pages(path, name, limit, start, end):
        if cut.reason:
            yield Refused(cut.reason, cut.place, why=cut.why)
        elif site is None:
            site = site_of(cut.data)
            if site is None:
                raise SourceError(
                    f"{path} doesn't begin as a dump of MediaWiki.", "Replace it, or remove it from `paths`."
                )
        else:
            yield _article(cut, site, process, lost)


def cut_pages(path: Path, name: str, limit: int, start: int = 0, end: int | None = None) -> Iterator[Cut]:
    """What comes before the first page, then each page. Pages longer than `limit` bytes aren't held in memory. Of a
    `multistream` dump, only the pages of the streams that begin in the bytes from `start` to `end`."""
    buffer, began, inside, too_long, first = b"", 0, False, False, not start
    ended = False
    for piece in pieces(path, start, end):
        if piece.damage:
            yield Cut(b"", f"{name} offset {piece.offset}", "damaged_data", piece.damage)
            buffer, inside = b"", False
            continue
        ended = piece.ends
        at = piece.offset
        base = at - len(buffer)  # the offset of the buffer, if the file isn't packed
        buffer += piece.data
        while True:
            if first and (BEGIN in buffer or len(buffer) > LONGEST_HEAD):
                yield Cut(buffer.partition(BEGIN)[0], name)
                first = False
            if not inside:
                found = buffer.find(BEGIN)
                if found < 0:
                    buffer = buffer if first else buffer[-KEPT:]
                    break
                base, buffer, inside, too_long = base + found, buffer[found:], True, False
                began = base if not packed(path) else at
            close, again = buffer.find(END), buffer.find(BEGIN, 1)
            if 0 <= again < close or (close < 0 <= again):
                yield Cut(b"", f"{name} offset {began}", "damaged_page", "the next page begins within it")
                base, buffer, inside = base + again, buffer[again:], False
                continue
            if close < 0:
                if len(buffer) > limit:
                    too_long, base, buffer = True, base + len(buffer) - len(END), buffer[-len(END) :]
                break
            close += len(END)
            page = buffer[:close]
            long = too_long or len(page) > limit
            yield Cut(b"" if long else page, f"{name} offset {began}", "too_long" if long else "")
            base, buffer, inside = base + close, buffer[close:], False
    if first:
        yield Cut(buffer, name)
    elif inside:
        yield Cut(b"", f"{name} offset {began}", "damaged_page", "the file ends within it")
    elif ended and not buffer.rstrip().endswith(LAST):
        yield Cut(b"", f"{name} offset {path.stat().st_size}", "damaged_data", "the file ends without its last tag")


def packed(path: Path) -> bool:
    """Whether a dump's file is packed."""
    return path.suffix in (".bz2", ".gz", ".zst")


def site_of(head: bytes) -> Site | None:
    """The wiki of a dump, by what comes before its first page. None if that isn't of a dump."""
    parser: Any = xml.XMLPullParser(["start", "end"])
    fields: dict[str, str] = {}
    names: list[str] = []
    try:
        parser.feed(head)
        for event, element in parser.read_events():
            tag = element.tag.rpartition("}")[2]
            if event == "start" and tag == "mediawiki":
                fields["language"] = element.get("{http://www.w3.org/XML/1998/namespace}lang", "")
            elif event == "end" and tag == "namespace" and element.get("key") in (FILE, CATEGORY):
                names.append(element.text or "")
            elif event == "end":
                fields[tag] = element.text or ""
    except xml.ParseError:
        return None
    if "language" not in fields:
        return None
    address = fields.get("base", "").rpartition("/")[0]
    host = address.partition("://")[2].partition("/")[0]
    licence = LICENCE if FREE.search(host) else ""
    return Site(fields["language"], f"{address}/" if address else "", licence, tuple(filter(None, names)))


def _article(cut: Cut, site: Site, process: ExtractorProcess, lost: Counter[str]) -> Row | Refused:
    try:
        page = xml.fromstring(cut.data)
    except xml.ParseError as error:
        return Refused("damaged_page", cut.place, why=str(error))
    title = page.findtext("title") or ""
    removed = functools.partial(Refused, place=cut.place, why=title, removed=True)
    if page.findtext("ns", ARTICLES) != ARTICLES:
        return removed("not_an_article")
    if page.find("redirect") is not None:
        return removed("redirect")
    revisions = page.findall("revision")
    revision = revisions[-1] if revisions else xml.Element("revision")
    if revision.findtext("model", "wikitext") != "wikitext":
        return removed("not_wikitext")
    found = process.read((revision.findtext("text") or "", title, *site))
    if isinstance(found, Failed):
        return Refused(found.reason, cut.place, why=f"{title}: {found.why}" if found.why else title)
    lost.update(found["lost"])
    if not found["text"].strip():
        return removed("no_text")
    fields = {
        "title": title,
        "page_id": _number(page.findtext("id")),
        "revision": _number(revision.findtext("id")),
        "timestamp": revision.findtext("timestamp"),
        "url": site.address + quote(title.replace(" ", "_"), safe=":/()',!*@;~") if site.address else None,
        "language": site.language,
        "license": site.licence,
    }
    return Row({"text": found["text"], **{name: value for name, value in fields.items() if value}}, cut.place)


def _number(text: str | None) -> int | None:
    return int(text) if text and text.isascii() and text.isdecimal() else None
