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
import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from storage.errors import BadDocument, SourceError
from storage.remembered import path_text, remembered_digest
from tasks.download.config import FileSource
from tasks.download.sources.arrays import BrokenArray, is_array, split_array
from tasks.download.sources.rows import Refused, Row, columns_of

Read = TypeVar("Read")
# Text that is no UTF-8; a date beyond Python's years; a time zone that nobody knows
UNREADABLE = (UnicodeDecodeError, OverflowError, ValueError, KeyError)
LINES, JSON = (".jsonl", ".jsonl.gz", ".jsonl.zst"), (".json", ".json.gz", ".json.zst")
ONE_A_LINE = "what does not begin with [ has an object a line"
ENDINGS = (*LINES, *JSON, ".parquet", ".txt", ".md")


def find_files(source: FileSource) -> list[Path]:
    """The files of a source, sorted, without duplicates. Raises SourceError for a path or glob that matches none, and
    for an unknown file type."""
    found: set[Path] = set()
    seen: set[Path] = set()
    for pattern in source.paths:
        met = [Path(name) for name in glob.glob(str(Path(pattern).expanduser()), recursive=True)]
        matches = sorted((path for path in met if path.is_file()), key=lambda path: (len(path.parts), path))
        if not matches:
            raise _no_files(source, pattern, met)
        for path in matches:  # by its shortest path, as a loop of symbolic links leads to a file again and again
            if path.resolve() not in seen:
                seen.add(path.resolve())
                found.add(path)
    for path in found:
        if not path.name.endswith(ENDINGS):
            raise SourceError(
                f"Source {source.name}: {path} has an unknown extension.", f"Supported are {', '.join(ENDINGS)}."
            )
    return sorted(found)


def _no_files(source: FileSource, pattern: str, met: list[Path]) -> SourceError:
    told, literal = f"Source {source.name}: {pattern}", glob.escape(pattern) == pattern
    if any(path.is_dir() for path in met):
        what = "is a folder" if literal else "matches folders only"
        remedy = f"Write {pattern.rstrip('/')}/**/*.jsonl for the .jsonl files in it and below."
        return SourceError(f"{told} {what}.", remedy)
    if met:
        broken = any(path.is_symlink() for path in met) and not any(path.exists() for path in met)
        what = "a link that leads nowhere" if broken else "a pipe or a device"
        return SourceError(
            f"{told} {'is' if literal else 'matches only'} {what}.", "Give plain files: each is read several times."
        )
    if re.match(r"[a-z][a-z0-9+.-]+://", pattern):
        return SourceError(
            f"{told} is a URL, which is not read.",
            "Download it, or use a source of `kind: hub` for a data set of the Hugging Face hub.",
        )
    path = Path(pattern).expanduser()
    where = "" if path.is_absolute() else f" in {Path.cwd()}, where the run started"
    return SourceError(
        f"Source {source.name}: no file matches {pattern}{where}.", "Check the path, or remove it from `paths`."
    )


def fingerprint(source: FileSource) -> dict[str, str]:
    """The SHA-256 of every file, by source name and path. Raises SourceError for one that can't be read."""
    digests = {}
    for path in find_files(source):
        try:
            digests[f"{source.name}/{path_text(path)}"] = remembered_digest(path)
        except OSError as error:
            raise _unreadable(path, error) from error
    return digests


def _unreadable(path: Path, error: Exception) -> SourceError:
    return SourceError(f"{path} can't be read: {error}.", "Replace the file, or remove it from `paths`.")


def read_rows(source: FileSource, limit: int) -> Iterator[Row | Refused]:
    """The first `source.limit` rows of the files, all if that is null, each with its place: the path as found, with the
    line or row. `limit` is the maximum length of a row in bytes."""
    return islice(_read_rows(source, limit), source.limit)


def _read_rows(source: FileSource, limit: int) -> Iterator[Row | Refused]:
    for path in find_files(source):
        name = path_text(path)
        if path.suffix in (".txt", ".md"):
            yield _read_text(path, name, source.text_column, limit)
        elif path.suffix == ".parquet":
            yield from _read_parquet(path, name)
        else:
            _check_begun(path)
            with _open(path) as file:
                array = path.name.endswith(JSON) and _guard(lambda: is_array(file), path)
                yield from (_read_array if array else _read_lines)(file, path, name, limit)


def _check_begun(path: Path) -> None:
    """A compressed file without a byte is one whose download was cut: even that of no text has a header."""
    if path.suffix not in (".json", ".jsonl") and not path.stat().st_size:
        raise _unreadable(path, EOFError("it is empty"))


def _open(path: Path) -> BinaryIO:
    if path.suffix == ".gz":
        return io.BufferedReader(gzip.open(path, "rb"))
    if path.suffix == ".zst":
        return io.BufferedReader(pa.input_stream(str(path), compression="zstd"))
    return path.open("rb")


def _read_lines(file: BinaryIO, path: Path, name: str, limit: int) -> Iterator[Row | Refused]:
    number = 0
    while line := _guard(lambda: file.readline(limit + 1), path):
        number += 1
        place = f"{name}:{number}"
        if len(line) > limit and not line.endswith(b"\n"):
            while rest := _guard(lambda: file.readline(limit), path):
                if rest.endswith(b"\n"):
                    break
            yield Refused("too_long", place)
            continue
        if number == 1:
            line = line.removeprefix(codecs.BOM_UTF8)
        if line.strip():
            yield _parse(line, place, ONE_A_LINE if path.name.endswith(JSON) else "")


def _read_array(file: BinaryIO, path: Path, name: str, limit: int) -> Iterator[Row | Refused]:
    elements = split_array(lambda size: _guard(lambda: file.read(size), path), limit)
    try:
        for number, element in enumerate(elements, 1):
            place = f"{name} row {number}"
            yield Refused("too_long", place) if element is None else _parse(element, place)
    except BrokenArray as error:
        raise _unreadable(path, error) from error


def _parse(line: bytes, place: str, why: str = "") -> Row | Refused:
    try:
        row = json.loads(line.decode("utf-8"))
    except UnicodeDecodeError:
        return Refused("invalid_utf8", place)
    except ValueError:
        return Refused("broken_json", place, why=why)
    except RecursionError:
        return Refused("nested_too_deep", place)
    return Row(row, place) if isinstance(row, dict) else Refused("not_an_object", place)


def _read_text(path: Path, place: str, column: str, limit: int) -> Row | Refused:
    if path.stat().st_size > limit:
        return Refused("too_long", place)
    try:
        return Row({column: path.read_text(encoding="utf-8-sig"), "file": path.name}, place)
    except UnicodeDecodeError:
        return Refused("invalid_utf8", place)


def _read_parquet(path: Path, name: str) -> Iterator[Row | Refused]:
    """By row group, so that a damaged page costs the rows of its group and no others."""
    try:
        file = pq.ParquetFile(path, page_checksum_verification=True)
    except (pa.ArrowInvalid, OSError, UnicodeDecodeError) as error:
        raise SourceError(
            f"{path} is not a Parquet file: {error}.", "Replace it, or remove it from `paths`."
        ) from error
    with file:
        twice = [column for column, times in Counter(file.schema_arrow.names).items() if times > 1]
        if twice:
            raise SourceError(f"{path} has two columns {twice[0]}.", "Rename one, or remove the file from `paths`.")
        number = 0
        for group in range(file.num_row_groups):
            end = number + file.metadata.row_group(group).num_rows
            try:
                for batch in file.iter_batches(batch_size=1024, row_groups=[group]):
                    yield from _rows(batch, name, number)
                    number += batch.num_rows
            except (pa.ArrowInvalid, OSError):
                yield from (Refused("damaged_page", f"{name} row {row + 1}") for row in range(number, end))
                number = end


def _rows(batch: pa.RecordBatch, name: str, before: int) -> list[Row | Refused]:
    try:
        return [Row(values, f"{name} row {row}") for row, values in enumerate(batch.to_pylist(), before + 1)]
    except UNREADABLE as error:
        if batch.num_rows > 1:
            half = batch.num_rows // 2
            return [*_rows(batch.slice(0, half), name, before), *_rows(batch.slice(half), name, before + half)]
        if isinstance(error, UnicodeDecodeError):
            return [Refused("invalid_utf8", f"{name} row {before + 1}")]
        return [Row(_readable(batch), f"{name} row {before + 1}")]


def _readable(row: pa.RecordBatch) -> dict[str, Any]:
    """The fields of a single row, but for those that Python has no value for."""
    fields = {}
    for column, values in zip(row.schema.names, row.columns, strict=True):
        with suppress(*UNREADABLE):
            fields[column] = values[0].as_py()
    return fields


def _guard(read: Callable[[], Read], path: Path) -> Read:
    """Read, raising SourceError for a damaged file, which is a fault of the source and not of a single row."""
    try:
        return read()
    except (zlib.error, EOFError, OSError) as error:
        raise _unreadable(path, error) from error


def text_of(row: dict[str, Any], column: str, limit: int) -> str:
    """The text of a document's row. Raises BadDocument with a one-word reason, and `columns` if it has no such one."""
    if column not in row:
        raise BadDocument("no_text", columns=columns_of(row))
    text = row[column]
    if not isinstance(text, str):
        raise BadDocument("no_text")
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
    return text
