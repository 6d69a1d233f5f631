"""Main text and metadata of a page. Runs in the process of `tasks/text/process.py`."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from tasks.text.scripts import shifted_in_html
from tasks.text.web.encoding import decode
from tasks.text.web.formulas import put_formulas

if TYPE_CHECKING:
    from resiliparse.parse.html import HTMLTree

Extractor = Literal["trafilatura", "resiliparse"]
Extract = Callable[[str, "HTMLTree"], str]  # the main text of a page, given as text and parsed
WIDEST = 300  # characters of a field of metadata
LICENCE = "a[rel~=license], link[rel~=license]"
RESERVED = "meta[name='tdm-reservation' i]"
NO_AI = re.compile(r"\bnoai\b")
DATES = (
    "meta[property='article:published_time'], meta[property='og:published_time'], meta[itemprop=datePublished], "
    "meta[name=date i], meta[name='parsely-pub-date'], meta[name=pdate], meta[name='sn-post-date'], "
    "meta[name='dc.date' i], meta[name='dc.date.issued' i]"
)
PUBLISHED = re.compile(r'"datePublished"\s*:\s*"(\d{4}-[^"]{2,30})"')  # in JSON-LD


class Page(NamedTuple):
    """A page to read: its bytes, the encoding that HTTP declares, whether it is HTML or plain text, whether HTTP's
    headers object to use for AI, and whether it ends too early."""

    content: bytes
    encoding: str | None
    html: bool
    opt_out: bool = False
    cut: bool = False


def reader(extractor: str) -> Callable[..., dict[str, Any]]:
    """The function that reads the fields of a Page, by one of EXTRACTORS. It has loaded what it needs."""
    extract = EXTRACTORS[extractor]()
    read_page(Page(b"<html><body><p>It loads what it needs.</p></body></html>", None, True), extract)
    return lambda *page: read_page(Page(*page), extract)


def read_page(page: Page, extract: Extract) -> dict[str, Any]:
    """`text`, empty if there is none, and the metadata that the page has: title, language, date, licence, and
    `opt_out` if it objects to use for AI."""
    text, encoding = decode(page.content, page.encoding)
    text = text.replace("\0", "")
    if not page.html:
        return {"text": text, "encoding": encoding}
    from resiliparse.parse.html import HTMLTree

    text = shifted_in_html(text)
    tree = HTMLTree.parse(text)
    metadata = _metadata(tree, text)
    if put_formulas(tree):
        text = str(tree)
    return {"text": extract(text, tree), "encoding": encoding, **metadata}


def _trafilatura() -> Extract:
    import logging

    from trafilatura import extract

    logging.getLogger("trafilatura").setLevel(logging.CRITICAL)  # the fate of a page says what it would
    return lambda html, _: extract(html, include_comments=False) or ""


def _resiliparse() -> Extract:
    from resiliparse.extract.html2text import extract_plain_text

    return lambda _, tree: extract_plain_text(tree, main_content=True, alt_texts=False, comments=False).strip()


EXTRACTORS: dict[str, Callable[[], Extract]] = {"trafilatura": _trafilatura, "resiliparse": _resiliparse}


def _metadata(tree: HTMLTree, html: str) -> dict[str, Any]:
    document = tree.document

    def field(selector: str, *attributes: str) -> str:
        node = document.query_selector(selector) if document else None
        values = (node.getattr(name) for name in attributes) if node else iter(())
        return next((value for value in values if value), "")

    found = {
        "title": tree.title or "",
        "language": field("html", "lang", "xml:lang"),
        "date": field(DATES, "content") or (published[1] if (published := PUBLISHED.search(html)) else ""),
        "license": field(LICENCE, "href"),
    }
    kept: dict[str, Any] = {name: " ".join(value.split())[:WIDEST] for name, value in found.items() if value.strip()}
    robots = document.query_selector_all("meta[name=robots i]") if document else ()
    no_ai = any(NO_AI.search((node.getattr("content") or "").lower()) for node in robots)
    return kept | ({"opt_out": True} if no_ai or field(RESERVED, "content").strip() == "1" else {})
