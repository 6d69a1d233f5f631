"""The pages of web archives as rows, and what came of each: text, removed for a reason, or quarantined.

Pages that carry no text by their nature are removed: images, errors, redirects, excluded hosts. What should have been
read and wasn't is quarantined: damaged records, pages that take too long. So `max_quarantined_share` is for damage.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import BinaryIO
from urllib.parse import urlsplit

from storage.digest_cache import remembered_digest
from storage.errors import SourceError
from tasks.checks.extras import need
from tasks.download.config import WebSource
from tasks.download.sources.rows import Refused, Row
from tasks.download.sources.streams import unreadable
from tasks.download.web import archives
from tasks.download.web.records import NotAnArchive, Record, read_records
from tasks.download.web.sections import Reach
from tasks.text.process import ExtractorProcess, Failed, process_of
from tasks.text.web.extract import NO_AI, Page

HTML = ("text/html", "application/xhtml+xml")
PAGES = ("response", "resource", "conversion", "revisit")  # types of records. Others describe them
SNIFFED = 1024  # bytes
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
            elif record.kind in PAGES and (url := _url(record)):
                found = _fate(record, url, source, extractor, limit)
                yield found._replace(why=found.why or url) if isinstance(found, Refused) else found
    except NotAnArchive as error:
        raise SourceError(
            f"{name} doesn't begin with a record of WARC, WET or ARC.", "Replace it, or remove it from the source."
        ) from error
    except OSError as error:
        raise unreadable(name, error) from error


def fingerprint(source: WebSource) -> dict[str, str]:
    """The versions of what finds the text, and the digests of lists of hosts. Raises ConfigError if the extra isn't
    installed, SourceError for a list that can't be read."""
    need("web", "a source of kind web")
    found = {name: version(name) for name in sorted({source.extractor, "fastwarc", "resiliparse"})}
    for file in source.exclude_host_files:
        path = Path(file).expanduser()
        try:
            found[f"{source.name}/{file}"] = remembered_digest(path)
        except OSError as error:
            raise unreadable(path, error) from error
    return found | archives.fingerprint(source)


def _url(record: Record) -> str:
    """The address of a page, or nothing if it isn't one of HTTP: name servers are in archives too."""
    url = record.fields.get("warc-target-uri", "").strip("<>")
    return url if url.lower().startswith(("http://", "https://")) else ""


def _fate(record: Record, url: str, source: WebSource, extractor: ExtractorProcess, limit: int) -> Row | Refused:
    removed = functools.partial(Refused, place=record.place, removed=True)
    if reason := _excluded(url, source):
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
    truncated = {"truncated": record.fields["warc-truncated"]} if "warc-truncated" in record.fields else {}
    language = {"language": identified} if identified else {}
    return Row({"url": url, **crawled, **language, **found, **truncated}, record.place)


def page_of(record: Record, limit: int) -> Page | Refused:
    """The content of a record, or why it isn't a page of text."""
    removed = functools.partial(Refused, place=record.place, removed=True)
    kind, encoding, content, opt_out = record.fields.get("content-type", ""), None, record.block, False
    if record.kind == "response" and content.startswith(b"HTTP/"):
        from fastwarc.warc import WarcRecord

        try:
            whole = WarcRecord.from_bytes(HTTP % len(content) + content)
            whole.parse_http(auto_decode="all")
            if whole.http_headers.status_code != 200:
                return removed("http_status")
            kind, encoding = whole.http_content_type or "", whole.http_charset
            opt_out = any(
                (name.lower() == "x-robots-tag" and NO_AI.search(value.lower()))
                or (name.lower() == "tdm-reservation" and value.strip() == "1")
                for name, value in whole.http_headers.items()
            )
            content = whole.reader.read(limit + 1)
        except (OSError, ValueError):
            return Refused("broken_http", record.place)
        if len(content) > limit:
            return Refused("too_long", record.place)
    kind = kind.partition(";")[0].strip().lower()
    begins = content[:SNIFFED]
    html = kind in HTML or (not kind and b"<html" in begins.lower())
    binary = b"\0" in begins and not begins.startswith((b"\xff\xfe", b"\xfe\xff"))
    if binary or begins.startswith(b"%PDF-") or not (html or kind == "text/plain"):
        return removed("not_html")
    return Page(content, encoding, html, opt_out)


@functools.cache
def _hosts(names: tuple[str, ...], files: tuple[str, ...]) -> frozenset[str]:
    """The hosts that a source leaves out. Raises SourceError for a file that can't be read."""
    lines = list(names)
    for file in files:
        try:
            lines += Path(file).expanduser().read_text("utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise unreadable(Path(file), error) from error
    return frozenset(line.strip().lower().strip(".") for line in lines if line.strip() and line[0] != "#")


def _excluded(url: str, source: WebSource) -> str:
    """Why a page isn't read, from its URL: `excluded_host` if it is on one of these hosts or on one below, or
    `excluded_url`. Empty if it is read."""
    hosts = _hosts(tuple(source.exclude_hosts), tuple(source.exclude_host_files))
    if hosts:
        try:
            labels = (urlsplit(url).hostname or "").rstrip(".").split(".")
        except ValueError:
            labels = []
        if any(".".join(labels[number:]) in hosts for number in range(len(labels))):
            return "excluded_host"
    unwanted = any(re.search(pattern, url) for pattern in source.exclude_urls)
    wanted = not source.only_urls or any(re.search(pattern, url) for pattern in source.only_urls)
    return "excluded_url" if unwanted or not wanted else ""
