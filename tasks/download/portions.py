"""Files of documents, read in portions by all workers.

A portion is some whole files, or the lines of one that begin in a range of its bytes. Portions depend only on the
files, so shards are the same for any number of workers (law 4). Only lines of JSON are divided: a row of a table may
span lines, and a compressed file can't be read from its middle.
"""

from __future__ import annotations

import functools
import hashlib
import socket
from collections import Counter
from collections.abc import Iterator
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple

from storage.digest_cache import path_text
from storage.errors import BadDocument, SourceError
from storage.shards.documents import Document
from storage.shards.lines import as_line, open_lines, read_json_lines, write_json_lines
from tasks.download.config import DownloadConfig, HubSource, LocalSource, WebSource
from tasks.download.sources import files
from tasks.download.sources.metadata import NotKept, to_json
from tasks.download.sources.rows import Refused, Row
from tasks.download.web.pages import close_processes, read_pages
from tasks.download.writers import ShardWriter
from tasks.shards import map_shards
from tasks.stage.output import Output

SHARDS = 4  # about the number of full shards from a portion
READ_BYTES = 1 << 20
DOCUMENTS, REFUSED, REMOVED = "documents", "refused.jsonl", "removed.jsonl"


class Span(NamedTuple):
    """The lines of a file that begin in these bytes, or the whole file if `end` is None. `name` is the path as found.
    `size` and `modified` are those of the file at that time."""

    path: Path
    name: str
    size: int
    modified: int
    start: int = 0
    end: int | None = None


Portion = tuple[Span, ...]


class Read(NamedTuple):
    """What was refused of a source. Removed rows may outnumber the documents, so they stay on disk: their number by
    reason, and the files that have them."""

    refused: list[Refused]
    removed: Counter[str]
    files: list[Path]

    def removed_rows(self) -> Iterator[Refused]:
        """The removed rows, in order."""
        return (Refused(**row) for file in self.files for row in read_json_lines(file))


def portions(source: LocalSource, size: int) -> list[Portion]:
    """The files of a source in portions of about `size` bytes. A single portion if the source has a limit."""
    found: list[Portion] = []
    small: list[Span] = []
    for path in files.find_files(source):
        state = path.stat()
        span = Span(path.absolute(), path_text(path), state.st_size, state.st_mtime_ns)
        if path.suffix == ".jsonl" and span.size > size and source.limit is None:
            found += [tuple(small)] if small else []
            found += [(span._replace(start=at, end=at + size),) for at in range(0, span.size, size)]
            small = []
            continue
        small.append(span)
        if sum(each.size for each in small) >= size and source.limit is None:
            found.append(tuple(small))
            small = []
    return [*found, *([tuple(small)] if small else [])]


def read_portions(
    source: LocalSource, config: DownloadConfig, out: Output, writer: ShardWriter, dropped: Counter[NotKept]
) -> Read:
    """Read all documents of a source into shards, which `writer` takes. Returns the refused rows, and adds to `dropped`
    the fields that metadata can't hold. Raises SourceError."""
    jobs = portions(source, SHARDS * config.shard_bytes)
    name = hashlib.sha256(source.name.encode()).hexdigest()[:16]  # any text may be a source's name
    try:
        read = map_shards(functools.partial(_read, source, config), jobs, out, f"{DOCUMENTS}-{name}", "portions")
    finally:
        close_processes()
    refused: list[Refused] = []
    removed: Counter[str] = Counter()
    before: Counter[str] = Counter()  # lines, by divided file
    for portion, result in zip(jobs, read, strict=True):
        writer.take(source.name, result)
        for field, why, times in result.counts["dropped"]:
            dropped[NotKept(source.name, field, why)] += times
        rows = [Refused(**row) for row in read_json_lines(result.folder / REFUSED)]
        if portion[0].end is not None:
            rows = [_in_file(row, before[portion[0].name]) for row in rows]
            before[portion[0].name] += result.counts["lines"]
        refused += rows
        removed.update(result.counts.get("removed", {}))
    files = [result.folder / REMOVED for result in read if result.counts.get("removed")]
    return Read(refused, removed, files)


def _in_file(row: Refused, before: int) -> Refused:
    """The row with its line in the file. In a divided file a worker counts from the first line that it reads."""
    name, _, line = row.place.rpartition(":")
    return row._replace(place=f"{name}:{before + int(line)}")


def read_document(
    source: LocalSource | HubSource, row: Row, config: DownloadConfig, dropped: Counter[NotKept]
) -> Document | Refused:
    """The document of a row. `dropped` counts the fields that metadata can't hold."""
    try:
        text, rest = files.text_of(row.values, source.text_column, config.max_document_bytes)
        document = Document.new(text, source.name, **to_json(rest, config.max_metadata_bytes, source.name, dropped))
        document.metadata.encode()
    except UnicodeEncodeError:
        return Refused("lone_surrogate", row.place)
    except BadDocument as error:
        return Refused.by(error, row.place)
    return document


def _read(source: LocalSource, config: DownloadConfig, portion: Portion, folder: Path) -> dict[str, Any]:
    """Write a portion's shards and refused rows. Returns the counts."""
    writer = ShardWriter(config, folder / DOCUMENTS)
    dropped: Counter[NotKept] = Counter()
    refused: list[Refused] = []
    removed: Counter[str] = Counter()
    with open_lines(folder / REMOVED) as file:
        for row in islice(chain.from_iterable(_rows(span, source, config) for span in portion), source.limit):
            found = row if isinstance(row, Refused) else read_document(source, row, config, dropped)
            if not isinstance(found, Refused):
                writer.add(found)
            elif found.removed:
                removed[found.reason] += 1
                file.write(as_line(found._asdict()))
            else:
                refused.append(found)
    writer.close()
    write_json_lines(folder / REFUSED, (row._asdict() for row in refused))
    return {
        "documents": writer.seen,
        "characters": writer.characters[source.name],
        "removed": removed,
        "lines": sum(_lines(span) for span in portion if span.end is not None),
        "dropped": [[what.field, what.why, times] for what, times in dropped.items()],
    }


def _check_unchanged(span: Span) -> None:
    state = span.path.stat() if span.path.exists() else None
    if state is None or (state.st_size, state.st_mtime_ns) != (span.size, span.modified):
        raise SourceError(
            f"{span.name} on {socket.gethostname()} is not the file that the run began with.",
            "Run again once nothing writes to it. Workers on other hosts must see the same files at the same paths.",
        )


def _rows(span: Span, source: LocalSource, config: DownloadConfig) -> Iterator[Row | Refused]:
    _check_unchanged(span)
    if isinstance(source, WebSource):
        return read_pages(span.path, span.name, source, config.max_document_bytes)
    return files.read_file(span.path, span.name, source, config.max_document_bytes, span.start, span.end)


def _lines(span: Span) -> int:
    """The number of lines that begin in a span's bytes: one after each line feed, and one at the start of the file."""
    assert span.end is not None
    _check_unchanged(span)
    lines, at = int(span.start == 0), max(0, span.start - 1)
    with span.path.open("rb") as file:
        file.seek(at)
        while at < span.end - 1 and (read := file.read(min(READ_BYTES, span.end - 1 - at))):
            lines, at = lines + read.count(b"\n"), at + len(read)
    return lines
