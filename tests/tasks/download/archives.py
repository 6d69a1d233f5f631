"""Web archives made byte by byte, as no library writes broken ones."""

from __future__ import annotations

import gzip

SENTENCE = "The {} of the valley turned for two hundred years before anyone thought of writing its story down. "


def html(subject: str, head: str = "", language: str = "en", times: int = 4) -> bytes:
    """A page with a menu, a title and an article of some sentences about a subject."""
    menu = "".join(f"<li><a href='/{word}'>{word}</a></li>" for word in ("Home", "News", "Contact"))
    paragraphs = "".join(f"<p>{SENTENCE.format(f'{subject} {number}')}</p>" for number in range(times))
    return (
        f"<!DOCTYPE html><html lang='{language}'><head><title>About {subject}</title>{head}</head><body>"
        f"<nav><ul>{menu}</ul></nav><article><h1>{subject}</h1>{paragraphs}</article></body></html>"
    ).encode()


def http(body: bytes, kind: str = "text/html; charset=utf-8", status: str = "200 OK", *headers: str) -> bytes:
    """A response of a server."""
    lines = [f"HTTP/1.1 {status}", *([f"Content-Type: {kind}"] if kind else []), *headers]
    return "\r\n".join([*lines, "", ""]).encode() + body


def warc(
    url: str, block: bytes, kind: str = "response", length: int | str | None = None, *headers: str, date: str = "2024"
) -> bytes:
    """A record of WARC, of its own length unless another is given."""
    lines = [
        "WARC/1.0",
        f"WARC-Type: {kind}",
        f"WARC-Target-URI: {url}",
        f"WARC-Date: {date}-05-01T00:00:00Z",
        "WARC-Record-ID: <urn:uuid:00000000-0000-0000-0000-000000000000>",
        f"Content-Type: {'application/http; msgtype=response' if kind == 'response' else 'text/plain'}",
        *headers,
        f"Content-Length: {len(block) if length is None else length}",
    ]
    return "\r\n".join([*lines, "", ""]).encode() + block + b"\r\n\r\n"


def page(subject: str, head: str = "", language: str = "en") -> bytes:
    """A record with a page about a subject, at an address that ends with it."""
    return warc(f"https://example.org/{subject}", http(html(subject, head, language)))


def arc(url: str, block: bytes, kind: str = "text/html") -> bytes:
    """A record of ARC 1."""
    return f"{url} 192.0.2.1 20080102030405 {kind} {len(block)}\n".encode() + block + b"\n"


def packed(*records: bytes) -> bytes:
    """Records, each a member of gzip."""
    return b"".join(gzip.compress(record, mtime=0) for record in records)
