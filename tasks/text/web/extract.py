"""Main text and metadata of a page, in a process that ends with a page that takes too long.

Extractors run in compiled code, which no thread can interrupt. So a worker has them in a process of its own, which the
system ends once a page has used its seconds of CPU. Seconds of CPU rather than of the clock, so that a busy machine
doesn't change which pages are kept. The process serves page after page, and is replaced only if it ended.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from storage.errors import LostWorker
from tasks.children.die_with_parent import die_with_parent
from tasks.text.web.encoding import decode
from tasks.text.web.formulas import put_formulas

if TYPE_CHECKING:
    from resiliparse.parse.html import HTMLTree

Extractor = Literal["trafilatura", "resiliparse"]
Extract = Callable[[str, "HTMLTree"], str]  # the main text of a page, given as text and parsed
PATIENCE = 20  # times the limit, by the clock, after which a process that doesn't even compute is ended
WIDEST = 300  # characters of a field of metadata
LICENCE = "a[rel~=license], link[rel~=license]"
RESERVED = "meta[name='tdm-reservation' i]"
NO_AI = re.compile(r"\bnoai\b")
DATES = "meta[property='article:published_time'], meta[itemprop=datePublished], meta[name=date]"


class Page(NamedTuple):
    """A page to read: its bytes, the encoding that HTTP declares, whether it is HTML or plain text, and whether HTTP's
    headers object to use for AI."""

    content: bytes
    encoding: str | None
    html: bool
    opt_out: bool = False


class Failed(NamedTuple):
    """Why a page wasn't read: time_over, or extractor_died with the end of what that said."""

    reason: str
    why: str = ""


class ExtractorProcess:
    """A process that extracts, started with the first page."""

    def __init__(self, extractor: Extractor, seconds: float) -> None:
        self._extractor, self._seconds = extractor, seconds
        self._process: subprocess.Popen[bytes] | None = None

    def read(self, page: Page) -> dict[str, Any] | Failed:
        """`text`, empty if the page has none, and metadata. The page ends the process if it takes too long."""
        if self._process is None:
            self._start()
        try:
            self._connection.send(tuple(page))
            if self._connection.poll(PATIENCE * self._seconds):
                found: dict[str, Any] = self._connection.recv()
                return found
        except (EOFError, OSError):
            pass
        status = self._end()
        if status in (-signal.SIGPROF, -signal.SIGKILL):
            return Failed("time_over")
        return Failed("extractor_died", self._said() or f"it ended with {status}")

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._end()

    def _start(self) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            numbers = [str(os.getpid()), str(theirs.fileno()), self._extractor, str(self._seconds)]
            command = [sys.executable, "-m", "tasks.text.web.extract", *numbers]
            self._errors = tempfile.TemporaryFile()  # noqa: SIM115  as long as the process
            self._process = subprocess.Popen(
                command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, stderr=self._errors
            )
        self._connection = Connection(ours.detach())
        try:
            self._connection.recv()  # it has loaded what it needs
        except EOFError as error:
            self._end()
            raise LostWorker(
                f"{self._extractor} can't be started: {self._said()}.", "Check the installation: gristmill doctor."
            ) from error

    def _said(self) -> str:
        """The end of the last line that the process wrote."""
        self._errors.seek(0)
        lines = self._errors.read().decode("utf-8", "replace").strip().splitlines()
        return lines[-1][-WIDEST:] if lines else ""

    def _end(self) -> int:
        """End the process. Returns its status, that of a kill if it still ran."""
        assert self._process is not None
        self._connection.close()
        try:
            status = self._process.wait(1)
        except subprocess.TimeoutExpired:
            self._process.kill()
            status = self._process.wait()
        self._process = None
        return status


def main() -> None:
    """Run `python -m tasks.text.web.extract PARENT SOCKET EXTRACTOR SECONDS`: answer pages until PARENT ends."""
    parent, number, extractor, seconds = sys.argv[1:]
    die_with_parent(int(parent))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent decides what to do
    extract = EXTRACTORS[extractor]()
    read_page(Page(b"<html><body><p>It loads what it needs.</p></body></html>", None, True), extract)
    with Connection(int(number)) as connection:
        connection.send(None)
        while True:
            try:
                page = Page(*connection.recv())
            except EOFError:
                return
            signal.setitimer(signal.ITIMER_PROF, float(seconds))  # then SIGPROF, which nothing catches, ends it
            found = read_page(page, extract)
            signal.setitimer(signal.ITIMER_PROF, 0)
            connection.send(found)


def read_page(page: Page, extract: Extract) -> dict[str, Any]:
    """`text`, empty if there is none, and the metadata that the page has: title, language, date, licence, and
    `opt_out` if it objects to use for AI."""
    text, encoding = decode(page.content, page.encoding)
    text = text.replace("\0", "")
    if not page.html:
        return {"text": text, "encoding": encoding}
    from resiliparse.parse.html import HTMLTree

    tree = HTMLTree.parse(text)
    metadata = _metadata(tree)
    if put_formulas(tree, text):
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


def _metadata(tree: HTMLTree) -> dict[str, Any]:
    document = tree.document

    def field(selector: str, *attributes: str) -> str:
        node = document.query_selector(selector) if document else None
        values = (node.getattr(name) for name in attributes) if node else iter(())
        return next((value for value in values if value), "")

    found = {
        "title": tree.title or "",
        "language": field("html", "lang", "xml:lang"),
        "date": field(DATES, "content"),
        "license": field(LICENCE, "href"),
    }
    kept: dict[str, Any] = {name: " ".join(value.split())[:WIDEST] for name, value in found.items() if value.strip()}
    robots = document.query_selector_all("meta[name=robots i]") if document else ()
    no_ai = any(NO_AI.search((node.getattr("content") or "").lower()) for node in robots)
    return kept | ({"opt_out": True} if no_ai or field(RESERVED, "content").strip() == "1" else {})


if __name__ == "__main__":
    main()
