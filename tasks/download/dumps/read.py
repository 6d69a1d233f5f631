"""A dump by its format, and the versions of what reads it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

from tasks.checks.extras import need
from tasks.download.config import DumpSource
from tasks.download.dumps.arxiv import read_papers
from tasks.download.dumps.gutenberg import read_book
from tasks.download.dumps.stackexchange import read_questions
from tasks.download.dumps.wikipedia import read_articles
from tasks.download.sources.rows import Refused, Row
from tasks.download.sources.streams import check_begun, unreadable

LIBRARIES = {"wikipedia": "mwparserfromhell"}  # whose versions change the text


def read_dump(
    path: Path,
    name: str,
    source: DumpSource,
    limit: int,
    scratch: Path,
    lost: Counter[str],
    start: int = 0,
    end: int | None = None,
) -> Iterator[Row | Refused]:
    """What a dump holds, each with its text and metadata, or refused. From `start` to `end` is a range of the bytes of
    a `multistream` dump. `scratch` is a folder for what doesn't fit into memory. `lost` counts by name what has no text
    in place of it, such as templates. Raises SourceError."""
    check_begun(path)
    try:
        if source.format == "wikipedia":
            yield from read_articles(path, name, source, limit, lost, start, end)
        elif source.format == "stackexchange":
            yield from read_questions(path, name, source, limit, scratch)
        elif source.format == "arxiv":
            yield from read_papers(path, name, source, limit, lost)
        else:
            yield from read_book(path, name, limit, lost)
    except OSError as error:
        raise unreadable(path, error) from error


def fingerprint(source: DumpSource) -> dict[str, str]:
    """The version of the library that reads the markup. Raises ConfigError if the extra isn't installed."""
    need("dumps", "a source of kind dump")
    return {name: version(name) for format_, name in LIBRARIES.items() if format_ == source.format}
