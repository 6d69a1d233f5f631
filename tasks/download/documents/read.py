"""Documents as rows, and what came of each: text, removed for a reason, or quarantined.

Documents that have no text by their nature are removed: scans, pictures. What should have been read and wasn't is
quarantined: damaged files, those with a password, those that take too long.
"""

from __future__ import annotations

import functools
import glob
import re
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any, BinaryIO

from storage.digest_cache import path_text, remembered_digest
from storage.errors import BadDocument
from tasks.checks.extras import need
from tasks.download.config import DocumentSource
from tasks.download.documents.licences import forget_licences, licences_of
from tasks.download.formats import MAILBOX, form_of
from tasks.download.sources.files import find_files
from tasks.download.sources.rows import Refused, Row
from tasks.download.sources.streams import unreadable
from tasks.text.documents import read as reader
from tasks.text.languages import language_of
from tasks.text.process import ExtractorProcess, Failed, process_of

READER = reader.__name__
REMOVED = ("no_text", "scanned", "not_text")
LICENSED = ("code", "markdown", "text")
MESSAGE, DATED = re.compile(rb"From "), re.compile(rb"From .*\d:\d\d")  # lines before messages


def read_documents(path: Path, name: str, source: DocumentSource, limit: int) -> Iterator[Row | Refused]:
    """The document of a file, or those of a mailbox, each a row with its text and metadata, or refused. `name` is the
    path in their places, `limit` the maximum number of bytes, packed or unpacked. Raises SourceError."""
    process = process_of(READER, (source.extractor, str(limit)), source.seconds)
    relative, root = _relative(path, _roots(tuple(source.paths)))
    form = form_of(path)
    origin = {"file": path.name, "path": str(relative), "format": form}
    if form == "code" and (language := language_of(path.name)):
        origin["programming_language"] = language
    try:
        with path.open("rb") as file:
            if path.suffix.lower() == MAILBOX:
                try:
                    for number, message in enumerate(_messages(file, limit), 1):
                        yield _read(message, "mail", f"{name} message {number}", {**origin, "message": number}, process)
                except BadDocument as error:
                    yield Refused(error.message, name, why=error.facts["why"])
                return
            content = file.read(limit + 1)
    except OSError as error:
        raise unreadable(path, error) from error
    found = _read(content if len(content) <= limit else None, form, name, origin, process)
    if isinstance(found, Row) and "license" not in found.values:
        found.values.update(_licence(path, root))
    yield found


def _read(
    content: bytes | None, form: str, place: str, origin: dict[str, Any], process: ExtractorProcess
) -> Row | Refused:
    if content is None:
        return Refused("too_long", place)
    found = process.read((content, form))
    if isinstance(found, Failed):
        return Refused(found.reason, place, why=found.why, removed=found.reason in REMOVED)
    return Row({**found, **origin}, place)


def _messages(file: BinaryIO, limit: int) -> Iterator[bytes | None]:
    """The messages of a mailbox without their envelopes, or None for one that is too long. Raises BadDocument."""
    lines: list[bytes] | None = None
    size, blank, begins = 0, True, MESSAGE
    while line := file.readline(limit):
        if blank and begins.match(line):
            if lines is not None:
                yield b"".join(lines) if size <= limit else None
            elif DATED.match(line):  # then a sentence that begins like it is no new message
                begins = DATED
            lines, size = [], 0
        elif lines is None:
            if line.strip():
                raise BadDocument("damaged_document", why="it doesn't begin with a message, as a mailbox does")
        else:
            size += len(line)
            if size <= limit:
                lines.append(line[1:] if line[:1] == b">" and MESSAGE.match(line.lstrip(b">")) else line)
        blank = not line.strip()
    if lines is not None:
        yield b"".join(lines) if size <= limit else None


@functools.cache
def _roots(patterns: tuple[str, ...]) -> tuple[Path, ...]:
    """The folder of each pattern up to its first wildcard."""
    found = []
    for pattern in patterns:
        path = Path(pattern).expanduser().absolute()
        if not path.is_file():
            wild = next((at for at, part in enumerate(path.parts) if glob.has_magic(part)), len(path.parts))
            path = Path(*path.parts[: wild + 1])
        found.append(path.parent)
    return tuple(found)


def _relative(path: Path, roots: tuple[Path, ...]) -> tuple[Path, Path]:
    """A file's path below the first of these folders that it is in, and that folder."""
    root = next((root for root in roots if path.is_relative_to(root)), path.parent)
    return path.relative_to(root), root


def _licence(path: Path, root: Path) -> dict[str, str]:
    """The licence of a file that doesn't state its own, and where it is stated. Nothing for office documents."""
    found = licences_of(path, root) if form_of(path) in LICENSED else ()
    known = sorted({each.identifier for each in found if each.identifier})
    named = {"license": ", ".join(known)} if known else {}
    return {**named, "license_file": str(found[0].path.relative_to(root))} if found else {}


def said_beside(source: DocumentSource, path: Path) -> str:
    """What the metadata of a document has besides its content: its path below the folder of a pattern, and the licence
    that files beside it state."""
    relative, root = _relative(path, _roots(tuple(source.paths)))
    return " ".join(["", str(relative), *_licence(path, root).values()])


def versions(source: DocumentSource) -> dict[str, str]:
    """The versions of what finds the text."""
    return {name: version(name) for name in sorted({source.extractor, "lxml", "pypdfium2", "resiliparse"})}


def fingerprint(source: DocumentSource) -> dict[str, str]:
    """The versions of what finds the text, and the digests of the files that state licences. Raises ConfigError if the
    extra isn't installed, SourceError for a file that can't be read."""
    need(source.extra, "a source of kind documents")
    found = versions(source)
    forget_licences()
    roots = _roots(tuple(source.paths))
    files = (path.absolute() for path in find_files(source) if form_of(path) in LICENSED)
    licences = {each.path for path in files for each in licences_of(path, _relative(path, roots)[1])}
    for path in sorted(licences):
        try:
            found[f"{source.name}/{path_text(path)}"] = remembered_digest(path)
        except OSError as error:
            raise unreadable(path, error) from error
    return found
