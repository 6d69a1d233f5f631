"""Local files, read as a stream: a bad row is rejected with its reason and location, and reading continues.

A line, or an element of a JSON array, longer than the limit is skipped without being held in memory. Invalid JSON,
invalid UTF-8, NULs and empty texts are rejected, each with its own reason.
"""

from __future__ import annotations

import codecs
import glob
import gzip
import io
import json
import os
import zlib
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import pyarrow as pa

from storage.digest_cache import path_text, remembered_digest
from storage.errors import BadDocument, SourceError
from tasks.download.config import FileSource, LocalSource
from tasks.download.formats import FORMATS, OFFICE, TEXTS
from tasks.download.sources.arrays import BrokenArray, is_array, split_array
from tasks.download.sources.parquet import read_parquet
from tasks.download.sources.remote import is_address
from tasks.download.sources.rows import Refused, Row, columns_of
from tasks.download.sources.tables import DELIMITERS, BrokenTable, Dialect, read_table

Read = TypeVar("Read")
MISSING = object()
PACKED = (".gz", ".zst")
KINDS = (".jsonl", ".json", ".csv", ".tsv", ".txt", ".md")  # each also packed
ENDINGS = (*KINDS, *(kind + packed for kind in KINDS for packed in PACKED), ".parquet")
ARCHIVES = (".warc", ".wet", ".arc")
ENDINGS_OF = {  # each kind of source
    "files": ENDINGS,
    "web": (*ARCHIVES, *(kind + packed for kind in ARCHIVES for packed in PACKED)),
    "documents": tuple(FORMATS),  # in upper or lower case
}
SUPPORTED = {"documents": (*OFFICE, *TEXTS, "and those of source code")}  # as errors list them, if not one by one
USUAL = {"files": ".jsonl", "web": ".warc.gz", "documents": ".pdf"}  # in advice
CARRIAGE = "its lines end with a carriage return only"
ONE_A_LINE = "a file that doesn't begin with [ needs an object on each line"
# The beginnings of files that aren't what their names say
BEGINNINGS = {
    b"\xff\xfe\x00\x00": "UTF-32",
    b"\x00\x00\xfe\xff": "UTF-32",
    b"\xff\xfe": "UTF-16",
    b"\xfe\xff": "UTF-16",
    b"{\x00": "UTF-16",
    b"\x00{": "UTF-16",
    b"[\x00": "UTF-16",
    b"\x00[": "UTF-16",
    b"\x1f\x8b": "gzip",
    b"\x28\xb5\x2f\xfd": "Zstandard",
    b"PAR1": "Parquet",
    b"PK\x03\x04": "a ZIP archive",
    b"7z\xbc\xaf\x27\x1c": "a 7z archive",
    b"\xfd7zXZ\x00": "xz",
}
TAR, TAR_SIGN, TAR_PLACE = "a tar archive", b"ustar", 257  # the sign comes after the first file's name, owner and size
WIDE_WINDOW = "too much memory"  # Zstandard's error for a window of more than 128 MB, which --long=28 and more make


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
    for path in found:
        if not _is_of(source.kind, path):
            other = next((kind for kind in ENDINGS_OF if _is_of(kind, path)), None)
            supported = f"Supported are {', '.join(SUPPORTED.get(source.kind, ENDINGS_OF[source.kind]))}."
            raise SourceError(
                f"Source {source.name}: {path} has an unknown extension.",
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


def unreadable(path: Path | str, error: Exception) -> SourceError:
    """The error for a file that can't be read as a whole."""
    if WIDE_WINDOW in str(error):
        return SourceError(
            f"{path} was compressed with a window of more than 128 MB, which can't be read.",
            f"Compress it again: zstd -dc --long=31 {Path(path).name} | zstd -o NEW.zst.",
        )
    return SourceError(f"{path} can't be read: {error}.", "Replace the file, or remove it from `paths`.")


def read_rows(source: FileSource, limit: int) -> Iterator[Row | Refused]:
    """The first `source.limit` rows of the files, or all if that is null, each with its place: the path as found, with
    the line or row. `limit` is the maximum length of a row in bytes."""
    return islice(_read_rows(source, limit), source.limit)


def _read_rows(source: FileSource, limit: int) -> Iterator[Row | Refused]:
    for path in find_files(source):
        yield from read_file(path, path_text(path), source, limit)


def read_file(
    path: Path, name: str, source: FileSource, limit: int, start: int = 0, end: int | None = None
) -> Iterator[Row | Refused]:
    """The rows of a file, with `name` in their places. Of a file with lines of JSON, only the lines that begin in the
    bytes from `start` to `end`, numbered from the first of them."""
    kind = kind_of(path)
    if kind == ".parquet":
        yield from read_parquet(path, name)
        return
    check_begun(path)
    with _open(path) as file:
        if start:
            _seek_line(file, path, start, end, limit)
            yield from _read_lines(file, path, name, limit, end)
            return
        begins = _guard(lambda: beginning(file), path)
        if kind in (".txt", ".md") and begins != TAR:
            yield _read_text(file, path, name, source.text_column, limit, begins)
            return
        if begins:
            raise _misnamed(path, begins)
        if kind in DELIMITERS:
            yield from _read_table(file, path, name, source, limit)
        elif kind == ".json" and _guard(lambda: is_array(file), path):
            yield from _read_array(file, path, name, limit)
        else:
            yield from _read_lines(file, path, name, limit, end)


def _seek_line(file: BinaryIO, path: Path, start: int, end: int | None, limit: int) -> None:
    """Go to the first line that begins at `start` or later, but no further than `end`, however long a line is."""
    file.seek(start - 1)
    while rest := _guard(lambda: file.readline(limit), path):
        if rest.endswith(b"\n") or (end is not None and file.tell() >= end):
            break


def kind_of(path: Path) -> str:
    """The kind of a file by its name, compressed or not: one of `KINDS`, or .parquet."""
    return Path(path.stem).suffix if path.suffix in PACKED else path.suffix


def beginning(file: BinaryIO) -> str | None:
    """The kind of data that a file with `peek` begins with, if that isn't text in UTF-8. Reads nothing."""
    start: bytes = file.peek(TAR_PLACE + len(TAR_SIGN))  # type: ignore[attr-defined]
    if start[TAR_PLACE:].startswith(TAR_SIGN):
        return TAR
    return next((what for begins, what in BEGINNINGS.items() if start.startswith(begins)), None)


def _misnamed(path: Path, what: str) -> SourceError:
    remedy = "Give it the extension of what it is."
    if what.startswith("UTF"):
        remedy = f"Convert it: iconv -f {what} -t UTF-8."
    elif what.endswith("archive") or what == "xz":
        remedy = "Unpack it, and name the files in it. Each may be compressed with gzip or Zstandard."
    return SourceError(f"{path} is {what}, not text in UTF-8 as its name says.", remedy)


def check_begun(path: Path) -> None:
    """Refuse an empty compressed file, whose download was cut: even compressed nothing has a header."""
    if path.suffix in PACKED and not path.stat().st_size:
        raise unreadable(path, EOFError("it is empty"))


def _open(path: Path) -> BinaryIO:
    if path.suffix == ".gz":
        return io.BufferedReader(gzip.open(path, "rb"))
    if path.suffix == ".zst":
        return io.BufferedReader(pa.input_stream(str(path), compression="zstd"))
    return path.open("rb")


def _read_table(file: BinaryIO, path: Path, name: str, source: FileSource, limit: int) -> Iterator[Row | Refused]:
    dialect = Dialect(source.delimiter or DELIMITERS[kind_of(path)], source.quotes)
    try:
        yield from read_table(lambda size: _guard(lambda: file.readline(size), path), name, dialect, limit)
    except BrokenTable as error:
        raise SourceError(
            f"{path} can't be read: {error}.",
            "Correct it, or set `delimiter` and `quotes: false` of the source to the way it is written.",
        ) from error


def _read_lines(file: BinaryIO, path: Path, name: str, limit: int, end: int | None = None) -> Iterator[Row | Refused]:
    """The lines that begin before `end`."""
    number, first = 0, end is None or not file.tell()
    while (end is None or file.tell() < end) and (line := _guard(lambda: file.readline(limit + 2), path)):
        number += 1
        place = f"{name}:{number}"
        whole = line.endswith(b"\n") or len(line) <= limit  # the last line may have no end
        if not whole or len(line.removesuffix(b"\n").removesuffix(b"\r")) > limit:
            while not whole and (rest := _guard(lambda: file.readline(limit), path)):
                whole = rest.endswith(b"\n")
            yield Refused("too_long", place)
            continue
        if first and number == 1:
            line = line.removeprefix(codecs.BOM_UTF8)
        if line.strip():
            yield _parse(line, place, ONE_A_LINE if kind_of(path) == ".json" else "")


def _read_array(file: BinaryIO, path: Path, name: str, limit: int) -> Iterator[Row | Refused]:
    elements = split_array(lambda size: _guard(lambda: file.read(size), path), limit)
    try:
        for number, element in enumerate(elements, 1):
            place = f"{name} row {number}"
            yield Refused("too_long", place) if element is None else _parse(element, place)
    except BrokenArray as error:
        raise unreadable(path, error) from error


def _parse(line: bytes, place: str, why: str = "") -> Row | Refused:
    try:
        row = json.loads(line.decode("utf-8"))
    except UnicodeDecodeError:
        return Refused("invalid_utf8", place)
    except ValueError:
        return Refused("broken_json", place, why=why or (CARRIAGE if b"}\r{" in line else ""))
    except RecursionError:
        return Refused("nested_too_deep", place)
    return Row(row, place) if isinstance(row, dict) else Refused("not_an_object", place)


def _read_text(file: BinaryIO, path: Path, place: str, column: str, limit: int, begins: str | None) -> Row | Refused:
    text = _guard(lambda: file.read(limit + 1), path)
    if len(text) > limit:
        return Refused("too_long", place)
    try:
        return Row({column: text.removeprefix(codecs.BOM_UTF8).decode("utf-8"), "file": path.name}, place)
    except UnicodeDecodeError:
        return Refused("invalid_utf8", place, why=f"it is {begins}" if begins else "")


def _guard(read: Callable[[], Read], path: Path) -> Read:
    """Read, raising SourceError for a damaged file: a fault of the source, not of a single row."""
    try:
        return read()
    except (zlib.error, EOFError, OSError) as error:
        raise unreadable(path, error) from error


def text_of(row: dict[str, Any], column: str, limit: int) -> tuple[str, dict[str, Any]]:
    """The text of a document's row, in a column or, as `content.text`, within one, and the row without it. Raises
    BadDocument with a one-word reason, and with `columns` if the row lacks the column."""
    text, rest = _taken(row, column)
    if text is MISSING:
        raise BadDocument("no_text", columns=columns_of(row))
    if not isinstance(text, str):
        raise BadDocument("no_text", why=f"{column} is {_described(text)}")
    if not text.strip():
        raise BadDocument("empty")
    if "\0" in text:
        raise BadDocument("nul")
    try:
        size = len(text.encode("utf-8"))
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
