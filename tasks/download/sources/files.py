"""Local files, read as a stream: a bad row is rejected with its reason and location, and reading continues.

A line longer than the limit is skipped without being held in memory. Invalid JSON, invalid UTF-8, NULs and empty texts
are rejected, each with its own reason.
"""

from __future__ import annotations

import glob
import gzip
import io
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from storage.errors import BadDocument, SourceError
from storage.remembered import remembered_digest
from tasks.download.config import FileSource

ENDINGS = (".jsonl", ".jsonl.gz", ".jsonl.zst", ".parquet", ".txt", ".md")


@dataclass(frozen=True)
class Refused:
    """A row that cannot be used: the reason, and its location (file and line)."""

    reason: str
    place: str


def find_files(source: FileSource) -> list[Path]:
    """The files of a source, sorted, without duplicates. Raises SourceError for a path or glob that matches none, and
    for an unknown file type."""
    found: set[Path] = set()
    seen: set[Path] = set()
    for pattern in source.paths:
        matches = [Path(name) for name in glob.glob(str(Path(pattern).expanduser()), recursive=True)]
        matches = sorted((path for path in matches if path.is_file()), key=lambda path: (len(path.parts), path))
        if not matches:
            raise SourceError(
                f"Source {source.name}: no file matches {pattern}.", "Check the path, or remove it from `paths`."
            )
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


def fingerprint(source: FileSource) -> dict[str, str]:
    """The SHA-256 of every file, by source name and path."""
    return {f"{source.name}/{path}": remembered_digest(path) for path in find_files(source)}


def read_rows(source: FileSource, limit: int) -> Iterator[dict[str, Any] | Refused]:
    """Every row of every file, either as a mapping or as rejected. `limit` is the maximum length of a row in bytes."""
    for path in find_files(source):
        if path.suffix in (".txt", ".md"):
            yield _read_text(path, source.text_column, limit)
        elif path.suffix == ".parquet":
            yield from _read_parquet(path)
        else:
            with _open(path) as file:
                yield from _read_lines(file, path, limit)


def _open(path: Path) -> BinaryIO:
    if path.suffix == ".gz":
        return io.BufferedReader(gzip.open(path, "rb"))
    if path.suffix == ".zst":
        return io.BufferedReader(pa.input_stream(str(path), compression="zstd"))
    return path.open("rb")


def _read_lines(file: BinaryIO, path: Path, limit: int) -> Iterator[dict[str, Any] | Refused]:
    number = 0
    while line := _guard(lambda: file.readline(limit + 1), path):
        number += 1
        place = f"{path.name}:{number}"
        if len(line) > limit and not line.endswith(b"\n"):
            while rest := _guard(lambda: file.readline(limit), path):
                if rest.endswith(b"\n"):
                    break
            yield Refused("too_long", place)
        elif line.strip():
            yield _parse(line, place)


def _parse(line: bytes, place: str) -> dict[str, Any] | Refused:
    try:
        row = json.loads(line.decode("utf-8"))
    except UnicodeDecodeError:
        return Refused("invalid_utf8", place)
    except ValueError:
        return Refused("broken_json", place)
    except RecursionError:
        return Refused("nested_too_deep", place)
    return row if isinstance(row, dict) else Refused("not_an_object", place)


def _read_text(path: Path, column: str, limit: int) -> dict[str, Any] | Refused:
    if path.stat().st_size > limit:
        return Refused("too_long", path.name)
    try:
        return {column: path.read_text(encoding="utf-8"), "file": path.name}
    except UnicodeDecodeError:
        return Refused("invalid_utf8", path.name)


def _read_parquet(path: Path) -> Iterator[dict[str, Any] | Refused]:
    """By row group, so that a damaged page costs the rows of its group and no others."""
    try:
        file = pq.ParquetFile(path, page_checksum_verification=True)
    except (pa.ArrowInvalid, OSError) as error:
        raise SourceError(
            f"{path} is not a Parquet file: {error}.", "Replace it, or remove it from `paths`."
        ) from error
    with file:
        number = 0
        for group in range(file.num_row_groups):
            end = number + file.metadata.row_group(group).num_rows
            try:
                for batch in file.iter_batches(batch_size=1024, row_groups=[group]):
                    yield from _rows(batch, path, number)
                    number += batch.num_rows
            except (pa.ArrowInvalid, OSError):
                yield from (Refused("damaged_page", f"{path.name} row {row + 1}") for row in range(number, end))
                number = end


def _rows(batch: pa.RecordBatch, path: Path, before: int) -> list[dict[str, Any] | Refused]:
    try:
        return list(batch.to_pylist())
    except UnicodeDecodeError:
        if batch.num_rows == 1:
            return [Refused("invalid_utf8", f"{path.name} row {before + 1}")]
        half = batch.num_rows // 2
        return [*_rows(batch.slice(0, half), path, before), *_rows(batch.slice(half), path, before + half)]


def _guard(read: Callable[[], bytes], path: Path) -> bytes:
    """Read, raising SourceError for a damaged file, which is a fault of the source and not of a single row."""
    try:
        return read()
    except (gzip.BadGzipFile, EOFError, OSError) as error:
        raise SourceError(f"{path} can't be read: {error}.", "Replace the file, or remove it from `paths`.") from error


def text_of(row: dict[str, Any], column: str, limit: int) -> str:
    """The text of a document's row. Raises BadDocument with a one-word reason."""
    text = row.get(column)
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
