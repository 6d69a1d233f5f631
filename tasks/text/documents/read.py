"""A document by its format. Runs in the process of `tasks/text/process.py`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from storage.errors import BadDocument
from tasks.text.documents.docx import read_docx
from tasks.text.documents.epub import read_epub
from tasks.text.documents.mail import read_mail
from tasks.text.documents.odt import read_odt
from tasks.text.documents.package import COMPOUND, Package
from tasks.text.documents.pdf import read_pdf
from tasks.text.documents.plain import read_code, read_markdown
from tasks.text.documents.pptx import read_pptx
from tasks.text.web.extract import EXTRACTORS, Extract, Page, read_page

PACKAGES = {"docx": read_docx, "odt": read_odt, "pptx": read_pptx, "epub": read_epub}
COMPOUND_FILE = "a file of Office before 2007, or encrypted"
KINDS = {
    b"%PDF-": "PDF",
    b"PK\x03\x04": "a ZIP file",
    COMPOUND: COMPOUND_FILE,
    b"{\\rtf": "RTF",
    b"\x1f\x8b": "gzip",
    b"\x28\xb5\x2f\xfd": "Zstandard",
    b"7z\xbc\xaf\x27\x1c": "a 7z archive",
    b"\xfd7zXZ\x00": "xz",
}
BEGINNINGS = {"pdf": "PDF", **dict.fromkeys(PACKAGES, "a ZIP file")}
WIDEST = 300  # characters of a field of metadata


def reader(extractor: str, limit: str) -> Callable[[bytes, str], dict[str, Any]]:
    """The function that reads a document of a format. `limit` is the maximum number of bytes that one unpacks to. It
    has loaded what it needs."""
    import lxml.etree
    import pypdfium2

    assert lxml.etree
    assert pypdfium2
    extract = EXTRACTORS[extractor]()
    read_page(Page(b"<html><body><p>It loads what it needs.</p></body></html>", None, True), extract)
    return functools.partial(read_document, extract, int(limit))


def read_document(extract: Extract, limit: int, content: bytes, form: str) -> dict[str, Any]:
    """`text`, empty if there is none, and the metadata that a document has. Raises BadDocument."""
    _check_kind(content, form)
    if form in PACKAGES:
        found = PACKAGES[form](Package(content, limit))
    elif form == "pdf":
        found = read_pdf(content)
    elif form == "html":
        found = read_page(Page(content, None, True), extract)
    elif form == "mail":
        found = read_mail(content, lambda html, declared: str(read_page(Page(html, declared, True), extract)["text"]))
    else:
        found = read_markdown(content) if form == "markdown" else read_code(content)
    if not found["text"].strip():
        raise BadDocument("no_text")
    return {name: _cut(value) if name != "text" else value for name, value in found.items()}


def _check_kind(content: bytes, form: str) -> None:
    """Raises BadDocument for content that begins as another format does, and for an empty file of those formats that
    hold more than text."""
    if not content and form in BEGINNINGS:
        raise BadDocument("damaged_document", why="it is empty")
    what = next((what for begins, what in KINDS.items() if content.startswith(begins)), None)
    if what and what != BEGINNINGS.get(form) and not (form in PACKAGES and what == COMPOUND_FILE):
        raise BadDocument("damaged_document", why=f"it is {what}")


def _cut(value: Any) -> Any:
    return value[:WIDEST] if isinstance(value, str) else value
