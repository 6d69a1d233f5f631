"""The pages of web archives as rows, and what came of each: text, removed for a reason, or quarantined.

Pages that carry no text by their nature are removed: images, errors, redirects, excluded hosts. What should have been
read and wasn't is quarantined: damaged records, pages that take too long. So `max_quarantined_share` is for damage.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any, BinaryIO, Literal

from storage.digest_cache import remembered_digest
from storage.errors import SourceError
from tasks.checks.extras import need
from tasks.download.config import WebSource
from tasks.download.sources.rows import Refused, Row
from tasks.download.sources.streams import unreadable
from tasks.download.web import archives
from tasks.download.web.addresses import why_excluded
from tasks.download.web.http import Body, body_of
from tasks.download.web.records import NotAnArchive, Record, read_records
from tasks.download.web.sections import Reach
from tasks.text.process import ExtractorProcess, Failed, process_of
from tasks.text.web.extract import NO_AI, Page

HTML = ("text/html", "application/xhtml+xml")
PAGES = ("response", "resource", "conversion", "revisit")  # types of records. Others describe them
SNIFFED = 1024  # bytes
WIDE = ("utf-16", "utf-32", "utf16", "utf32")  # encodings that have NULs in any text
HTTP = (
    b"WARC/1.1\r\nWARC-Type: response\r\nContent-Type: application/http; msgtype=response\r\nContent-Length: %d\r\n\r\n"
)


def read_pages(file: BinaryIO, name: str, source: WebSource, limit: int, reach: Reach) -> Iterator[Row | Refused]:
    """The pages of an archive within reach, each a row with its text and metadata, or refused. `name` is its path or
    URL. Raises SourceError."""
    extractor = process_of("tasks.text.web.extract", (source.extractor,), source.page_seconds)
    try:
        for record in read_records(file, name, limit, reach):
            if isinstance(record, Refused):
                yield record
            elif record.kind in PAGES:
                url = record.fields.get("warc-target-uri", "").strip("<>")
                found = _fate(record, url, source, extractor, limit)
                yield found._replace(why=found.why or url) if isinstance(found, Refused) else found
    except NotAnArchive as error:
        raise SourceError(
            f"{name} doesn't begin with a record of WARC, WET or ARC.", "Replace it, or remove it from the source."
        ) from error
    except OSError as error:
        raise unreadable(name, error) from error


def fingerprint(source: WebSource) -> dict[str, str]:
    """What pages are read by, and the archives at addresses. Raises ConfigError if the extra isn't installed,
    SourceError for what can't be read."""
    need("web", "a source of kind web")
    return read_by(source) | archives.fingerprint(source)


def read_by(source: WebSource) -> dict[str, str]:
    """The versions of what finds the text, and the digests of lists of hosts. Raises SourceError for a list that can't
    be read."""
    found = {name: version(name) for name in sorted({source.extractor, "fastwarc", "resiliparse"})}
    for file in source.exclude_host_files:
        path = Path(file).expanduser()
        try:
            found[f"{source.name}/{file}"] = remembered_digest(path)
        except OSError as error:
            raise unreadable(path, error) from error
    return found


def _fate(record: Record, url: str, source: WebSource, extractor: ExtractorProcess, limit: int) -> Row | Refused:
    removed = functools.partial(Refused, place=record.place, removed=True)
    if not url.lower().startswith(("http://", "https://")):
        return removed("not_http")
    if reason := why_excluded(url, source):
        return removed(reason)
    if record.kind == "revisit":
        return removed("revisit")
    page = page_of(record, limit)
    if isinstance(page, Refused):
        return page
    if page.opt_out and source.opt_outs == "honour":
        return removed("opt_out")
    found = extractor.read(page)
    if isinstance(found, Failed):
        return Refused(found.reason, record.place, why=f"{url}: {found.why}" if found.why else url)
    if found.pop("opt_out", False) and source.opt_outs == "honour":
        return removed("opt_out")
    if not found["text"].strip():
        return removed("no_text")
    identified = record.fields.get("warc-identified-content-language")
    crawled = {"crawled": record.fields["warc-date"]} if "warc-date" in record.fields else {}
    cut = record.fields.get("warc-truncated") or ("body" if page.cut else "")
    truncated = {"truncated": cut} if cut else {}
    language = {"language": identified} if identified else {}
    return Row({"url": url, **crawled, **language, **found, **truncated}, record.place)


def page_of(record: Record, limit: int) -> Page | Refused:
    """The content of a record, or why it isn't a page of text."""
    removed = functools.partial(Refused, place=record.place, removed=True)
    kind, encoding, body, opt_out = record.fields.get("content-type", ""), None, Body(record.block), False
    if record.kind == "response" and record.block.startswith(b"HTTP/"):
        try:
            whole = _parsed(record.block)
            if whole.http_headers.status_code != 200:
                return removed("http_status")
            headers = {name.lower(): value for name, value in whole.http_headers.items()}
            kind, encoding = whole.http_content_type or "", whole.http_charset
            opt_out = bool(NO_AI.search(headers.get("x-robots-tag", "").lower()))
            opt_out = opt_out or headers.get("tdm-reservation", "").strip() == "1"
            found = body_of(whole.reader.read(), headers, limit, lambda: _unpacked(record.block, limit))
        except (OSError, ValueError):
            found = None
        if found is None:
            return Refused("broken_http", record.place)
        body = found
        if len(body.content) > limit:
            return Refused("too_long", record.place)
    kind = kind.partition(";")[0].strip().lower()
    begins = body.content[:SNIFFED]
    html = kind in HTML or (not kind and b"<html" in begins.lower())
    wide = begins.startswith((b"\xff\xfe", b"\xfe\xff")) or (encoding or "").lower().startswith(WIDE)
    binary = not wide and begins.count(0) * 100 > len(begins)
    if binary or begins.startswith(b"%PDF-") or not (html or kind == "text/plain"):
        return removed("not_html")
    return Page(body.content, encoding, html, opt_out, body.cut)


def _parsed(block: bytes, decode: Literal["none", "all"] = "none") -> Any:
    """A response taken apart by FastWARC."""
    from fastwarc.warc import WarcRecord

    whole = WarcRecord.from_bytes(HTTP % len(block) + block)
    whole.parse_http(auto_decode=decode)
    return whole


def _unpacked(block: bytes, limit: int) -> bytes:
    content: bytes = _parsed(block, "all").reader.read(limit + 1)
    return content
