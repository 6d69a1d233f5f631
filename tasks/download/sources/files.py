"""Local files: which there are, and their rows. A bad row is rejected with its reason and place, and reading goes on.

streams.py reads text, containers/ what holds several files or tables in binary form. NULs and empty texts are rejected
here, each with its own reason.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from storage.digest_cache import path_text, remembered_digest
from storage.errors import BadDocument, SourceError
from tasks.download.config import DumpSource, FileSource, LocalSource
from tasks.download.formats import FORMATS, OFFICE, TEXTS
from tasks.download.sources.containers.arrow import read_arrow
from tasks.download.sources.containers.mds import INDEX, check_index, read_mds
from tasks.download.sources.containers.members import CONTAINERS, read_archive
from tasks.download.sources.parquet import read_parquet
from tasks.download.sources.remote import is_address
from tasks.download.sources.rows import Refused, Row, columns_of, first
from tasks.download.sources.streams import (
    KINDS,
    PACKED,
    check_begun,
    kind_of,
    open_file,
    read_lines_from,
    read_stream,
    unreadable,
)

MISSING = object()
ENDINGS = (
    *KINDS,
    *(kind + packed for kind in KINDS for packed in PACKED),
    ".parquet",
    ".arrow",
    ".mds",
    ".mds.zstd",
    *CONTAINERS,
)
ARCHIVES = (".warc", ".wet", ".arc")
ENDINGS_OF = {  # each kind of source
    "files": ENDINGS,
    "web": (*ARCHIVES, *(kind + packed for kind in ARCHIVES for packed in PACKED)),
    "documents": tuple(FORMATS),  # in upper or lower case
    "dump": (".xml.bz2", ".7z"),
}
ENDINGS_OF_FORMAT = {  # of dumps
    "wikipedia": (".xml", ".bz2", ".xml.gz", ".xml.zst"),  # parts end with .xml-p1p41242.bz2
    "stackexchange": (".7z", ".xml"),
    "gutenberg": (".txt", ".txt.gz", ".txt.zst"),
    "arxiv": (".tar", ".gz"),
}
SUPPORTED = {"documents": (*OFFICE, *TEXTS, "and those of source code")}  # as errors list them, if not one by one
MOST_LISTED = 20  # endings, in an error
USUAL = {"files": ".jsonl", "web": ".warc.gz", "documents": ".pdf", "dump": ".*"}  # in advice


def find_files(source: LocalSource) -> list[Path]:
    """The local files of a source, sorted, without duplicates. Raises SourceError for a path or glob that matches none,
    for a link to nothing, and for an unknown file type."""
    found: set[Path] = set()
    seen: set[Path] = set()
    for pattern in source.paths:
        if source.kind == "web" and is_address(pattern):
            continue
        plain = Path(pattern).expanduser()  # a file's name may have brackets in it
        met = [plain] if plain.is_file() else [Path(name) for name in glob.glob(str(plain), recursive=True)]
        matches = sorted((path for path in met if path.is_file()), key=lambda path: (len(path.parts), path))
        if not matches:
            raise _no_files(source, pattern, met)
        # `realpath`, as the path itself may go through a loop until the system gives up
        if broken := [path for path in met if path.is_symlink() and not Path(os.path.realpath(path)).exists()]:
            raise SourceError(f"Source {source.name}: {broken[0]} is a broken link.", "Repair the link, or remove it.")
        for path in matches:  # shortest path first, as a loop of symbolic links reaches a file again and again
            if path.resolve() not in seen:
                seen.add(path.resolve())
                found.add(path)
    if shards := {path for path in found if source.kind == "files" and kind_of(path) == ".mds"}:
        found -= {path.with_name(INDEX) for path in shards}
        check_index(shards)
    endings = ENDINGS_OF_FORMAT[source.format] if isinstance(source, DumpSource) else ENDINGS_OF[source.kind]
    dump = isinstance(source, DumpSource)
    unknown = [
        path for path in sorted(found) if not (path.name.endswith(endings) if dump else _is_of(source.kind, path))
    ]
    if unknown:
        path, *others = unknown
        other = next((kind for kind in ENDINGS_OF if kind != source.kind and _is_of(kind, path)), None)
        supported = f"Supported are {', '.join(SUPPORTED.get(source.kind, endings))}."
        listed = ", ".join(sorted({each.suffix or each.name for each in others})[:MOST_LISTED])
        more = f" So have {len(others):,} more files: {listed}." if others else ""
        raise SourceError(
            f"Source {source.name}: {path} has an unknown extension.{more}",
            f"Use a source of `kind: {other}`." if other else supported,
        )
    return sorted(found)


def _is_of(kind: str, path: Path) -> bool:
    """Whether a source of a kind reads a file, by its name."""
    return (path.name.lower() if kind == "documents" else path.name).endswith(ENDINGS_OF[kind])


def _no_files(source: LocalSource, pattern: str, met: list[Path]) -> SourceError:
    subject, literal = f"Source {source.name}: {pattern}", glob.escape(pattern) == pattern
    if any(path.is_dir() for path in met):
        what = "is a folder" if literal else "matches only folders"
        ending = USUAL[source.kind]
        remedy = f"Write {pattern.rstrip('/')}/**/*{ending} for the {ending} files in it and below."
        return SourceError(f"{subject} {what}.", remedy)
    if met:
        broken = any(path.is_symlink() for path in met) and not any(path.exists() for path in met)
        what = "a broken link" if broken else "a pipe or a device"
        return SourceError(
            f"{subject} {'is' if literal else 'matches only'} {what}.", "Give plain files: each is read several times."
        )
    if is_address(pattern):
        return SourceError(
            f"{subject} is a URL, which can't be read.",
            "Download it, or use a source of `kind: web` for a web archive, of `kind: hub` for a data set of the "
            "Hugging Face hub.",
        )
    path = Path(pattern).expanduser()
    where = "" if path.is_absolute() else f" in {Path.cwd()}, where the run started"
    return SourceError(
        f"Source {source.name}: no file matches {pattern}{where}.", "Check the path, or remove it from `paths`."
    )


def fingerprint(source: LocalSource) -> dict[str, str]:
    """The SHA-256 of every file, by source name and path. Raises SourceError for one that can't be read."""
    digests = {}
    for path in find_files(source):
        try:
            digests[f"{source.name}/{path_text(path)}"] = remembered_digest(path)
        except OSError as error:
            raise unreadable(path, error) from error
    return digests


def size(source: LocalSource) -> int:
    """Bytes of all files of a source. Raises SourceError for one that can't be read."""
    total = 0
    for path in find_files(source):
        try:
            total += path.stat().st_size
        except OSError as error:
            raise unreadable(path, error) from error
    return total


def read_rows(source: FileSource, limit: int) -> Iterator[Row | Refused]:
    """The first `source.limit` rows of the files, or all if that is null, each with its place: the path as found, with
    the line or row. `limit` is the maximum length of a row in bytes."""
    return first(_read_rows(source, limit), source.limit)


def _read_rows(source: FileSource, limit: int) -> Iterator[Row | Refused]:
    for path in find_files(source):
        yield from read_file(path, path_text(path), source, limit)


def read_file(
    path: Path, name: str, source: FileSource, limit: int, start: int = 0, end: int | None = None
) -> Iterator[Row | Refused]:
    """The rows of a file, with `name` in their places. Of a file with lines of JSON, only the lines that begin in the
    bytes from `start` to `end`, numbered from the first of them."""
    if (kind := kind_of(path)) == ".parquet":
        yield from read_parquet(path, name)
        return
    check_begun(path)
    if kind == ".arrow":
        yield from read_arrow(path, name)
    elif kind == ".mds":
        yield from read_mds(path, name, limit)
    elif path.name.endswith(CONTAINERS):
        yield from read_archive(path, name, source, limit)
    else:
        with open_file(path) as file:
            if start:
                yield from read_lines_from(file, path, name, limit, start, end)
            else:
                yield from read_stream(file, path, name, source, limit, end)


def text_of(row: dict[str, Any], column: str, limit: int) -> tuple[str, dict[str, Any]]:
    """The text of a document's row, in a column or, as `content.text`, within one, and the row without it. Raises
    BadDocument with a one-word reason, and with `columns` if the row lacks the column."""
    text, rest = _taken(row, column)
    if text is MISSING:
        raise BadDocument("no_text", columns=columns_of(row))
    if not isinstance(text, str):
        raise BadDocument("no_text", why=f"{column} is {_described(text)}")
    if not text or text.isspace():
        raise BadDocument("empty")
    if "\0" in text:
        raise BadDocument("nul")
    try:
        size = len(text) if text.isascii() else len(text.encode("utf-8"))
    except UnicodeEncodeError as error:
        raise BadDocument("lone_surrogate") from error
    if size > limit:
        raise BadDocument("too_long")
    return text, rest


def _taken(row: dict[str, Any], column: str) -> tuple[Any, dict[str, Any]]:
    """The value of a column or at a path, MISSING if there is none, and the rest of the row."""
    rest = dict(row)
    if column in rest:
        return rest.pop(column), rest
    first, _, below = column.partition(".")
    if not below or not isinstance(rest.get(first), dict):
        return MISSING, rest
    text, left = _taken(rest[first], below)
    rest[first] = left
    return text, rest if left else {name: value for name, value in rest.items() if name != first}


def _described(value: Any) -> str:
    if isinstance(value, dict):
        return f"an object with {', '.join(columns_of(value)) or 'no key'}; text_column may be a path"
    names = {
        list: "a list",
        type(None): "null",
        bool: "true or false",
        int: "a number",
        float: "a number",
        bytes: "binary: write it as a column of text",
    }
    return names.get(type(value), "not a text")
