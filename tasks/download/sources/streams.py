"""The rows of a text file, read as a stream: of a file on disk, or of a member of an archive.

A line, or an element of a JSON array, longer than the limit is skipped without being held in memory. Invalid JSON and
invalid UTF-8 are rejected, each with its own reason. What is wrong with a file as a whole raises SourceError.
"""

from __future__ import annotations

import codecs
import gzip
import io
import json
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import orjson
import pyarrow as pa

from storage.errors import SourceError
from tasks.download.config import FileSource
from tasks.download.sources.arrays import BrokenArray, is_array, split_array
from tasks.download.sources.rows import Refused, Row
from tasks.download.sources.tables import DELIMITERS, BrokenTable, Dialect, read_table

Read = TypeVar("Read")
PACKED = (".gz", ".zst")
KINDS = (".jsonl", ".json", ".csv", ".tsv", ".txt", ".md")  # each also packed
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
DEPTH, LARGE = 32, 2.0**63  # of values that orjson reads as `json` does
WIDE_WINDOW = "too much memory"  # Zstandard's error for a window of more than 128 MB, which --long=28 and more make


def read_stream(
    file: BinaryIO, path: Path, name: str, source: FileSource, limit: int, end: int | None = None
) -> Iterator[Row | Refused]:
    """The rows of a file with `peek` at its beginning, unpacked already. `path` says what it holds, and is named in
    errors, `name` in places. Of lines of JSON, only those that begin before the byte `end`. Raises SourceError."""
    kind = kind_of(path)
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


def read_lines_from(
    file: BinaryIO, path: Path, name: str, limit: int, start: int, end: int | None
) -> Iterator[Row | Refused]:
    """The rows of a file of JSON lines that begin in the bytes from `start` to `end`, numbered from the first."""
    _seek_line(file, path, start, end, limit)
    yield from _read_lines(file, path, name, limit, end)


def unreadable(path: Path | str, error: Exception) -> SourceError:
    """The error for a file that can't be read as a whole."""
    if WIDE_WINDOW in str(error):
        return SourceError(
            f"{path} was compressed with a window of more than 128 MB, which can't be read.",
            f"Compress it again: zstd -dc --long=31 {Path(path).name} | zstd -o NEW.zst.",
        )
    return SourceError(f"{path} can't be read: {error}.", "Replace the file, or remove it from `paths`.")


def _seek_line(file: BinaryIO, path: Path, start: int, end: int | None, limit: int) -> None:
    """Go to the first line that begins at `start` or later, but no further than `end`, however long a line is."""
    file.seek(start - 1)
    while rest := _guard(lambda: file.readline(limit), path):
        if rest.endswith(b"\n") or (end is not None and file.tell() >= end):
            break


def kind_of(path: Path) -> str:
    """The kind of a file by its name, compressed or not: one of `KINDS`, .parquet, .mds, .tar …"""
    return Path(path.stem).suffix if path.suffix in (*PACKED, ".zstd") else path.suffix


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
    elif what in ("a 7z archive", "xz"):
        remedy = "Unpack it, and name the files in it. Each may be compressed with gzip or Zstandard."
    return SourceError(f"{path} is {what}, not text in UTF-8 as its name says.", remedy)


def check_begun(path: Path) -> None:
    """Refuse an empty compressed file, whose download was cut: even compressed nothing has a header."""
    if path.suffix in PACKED and not path.stat().st_size:
        raise unreadable(path, EOFError("it is empty"))


def open_file(path: Path) -> BinaryIO:
    """A file with `peek`, unpacked."""
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
    broken = ONE_A_LINE if kind_of(path) == ".json" else ""

    def read() -> bytes:
        return file.readline(limit + 2)

    while (end is None or file.tell() < end) and (line := _guard(read, path)):
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
            yield _parse(line, place, broken)


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
        row = _value(line)
    except UnicodeDecodeError:
        return Refused("invalid_utf8", place)
    except ValueError:
        return Refused("broken_json", place, why=why or (CARRIAGE if b"}\r{" in line else ""))
    except RecursionError:
        return Refused("nested_too_deep", place)
    return Row(row, place) if isinstance(row, dict) else Refused("not_an_object", place)


def _value(line: bytes) -> Any:
    """The value as `json` reads it: by orjson, in a third of the time, unless it is one of those that they read
    differently. orjson refuses NaN, lone surrogates and some of the numbers, and rounds integers beyond 64 bits."""
    try:
        row = orjson.loads(line)
    except orjson.JSONDecodeError:
        return json.loads(line.decode("utf-8"))
    return row if _alike(row, DEPTH) else json.loads(line.decode("utf-8"))


def _alike(value: Any, depth: int) -> bool:
    """Whether a value of orjson can't be another of `json`: none of its floats may be an integer, and it isn't so deep
    that `json` may refuse it."""
    if isinstance(value, float):
        return abs(value) < LARGE
    if isinstance(value, dict):
        value = value.values()
    elif not isinstance(value, list):
        return True
    return depth > 0 and all(type(each) is str or _alike(each, depth - 1) for each in value)


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
