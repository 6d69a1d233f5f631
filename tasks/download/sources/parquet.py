"""Rows of Parquet files, by row group, so that a damaged page costs the rows of its group and no others.

Values become Python's if it has such a value. A date beyond its years, a time of day beyond 24 hours and an unknown
time zone are left out. Nanoseconds are kept as text.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Iterator
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import IO, Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as kinds

from storage.errors import SourceError
from tasks.download.sources.metadata import UNREADABLE
from tasks.download.sources.remote import RangedFile
from tasks.download.sources.rows import Refused, Row

# A date beyond Python's years; an unknown time zone; a map with a key twice, or with objects as keys
NO_VALUE = (OverflowError, ValueError, KeyError, TypeError, pa.ArrowException)
NOT_UTF8 = object()  # for a value whose text isn't UTF-8: its row is refused
PER_SECOND = {"s": 1, "ms": 1000, "us": 10**6, "ns": 10**9}
EPOCH, DAY = datetime(1970, 1, 1), 86_400
AHEAD = 64 << 20  # bytes of a group up to which its columns are fetched at once
GAP = 64 << 10  # bytes between columns that are fetched too rather than with another request


class Part(NamedTuple):
    """What is read of a file: the groups that begin in the bytes from `start` to `end`, and some columns or all."""

    start: int = 0
    end: int | None = None
    columns: list[str] | None = None


def open_parquet(path: Path, opened: Any = None, metadata: pq.FileMetaData | None = None) -> pq.ParquetFile:
    """A file, which may be open already, and whose footer may be known. Raises SourceError."""
    try:
        # Timestamps of 96 bits, which Spark writes, would be nanoseconds, with wrong years before 1677 and after 2262
        file = pq.ParquetFile(
            opened or path, metadata=metadata, page_checksum_verification=True, coerce_int96_timestamp_unit="us"
        )
    except pa.ArrowNotImplementedError as error:
        raise _not_read(path, error) from error
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise SourceError(
            f"{path} is not a Parquet file: {str(error).rstrip('.')}.", "Replace it, or remove it from the source."
        ) from error
    twice = [column for column, times in Counter(file.schema_arrow.names).items() if times > 1]
    if twice:
        file.close()
        raise SourceError(f"{path} has two columns {twice[0]}.", "Rename one, or remove the file from `paths`.")
    return file


def read_parquet(
    path: Path,
    name: str,
    opened: IO[bytes] | RangedFile | None = None,
    part: Part | None = None,
    metadata: pq.FileMetaData | None = None,
) -> Iterator[Row | Refused]:
    """The rows of a file or a part of it, those of a damaged group refused. It may be open already, and its footer
    known. Raises SourceError."""
    start, stop, columns = part or Part()
    far = isinstance(opened, RangedFile)
    with open_parquet(path, opened, metadata) as file:
        names = file.schema_arrow.names
        if lacking := [column for column in columns or () if column not in names]:
            raise SourceError(
                f"{path} lacks the column {lacking[0]}.", f"Correct `columns` of the source: it has {', '.join(names)}."
            )
        end = 0
        for group in range(file.num_row_groups):
            number, end = end, end + file.metadata.row_group(group).num_rows
            if (start or stop is not None) and not start <= _begin(file.metadata, group) < (stop or math.inf):
                continue
            if isinstance(opened, RangedFile):
                _fetch_ahead(opened, _chunks(file.metadata, group, columns))
            try:
                batches = file.iter_batches(batch_size=1024, row_groups=[group], columns=columns, use_threads=not far)
                for batch in batches:
                    yield from rows_of(batch, name, number)
                    number += batch.num_rows
            except pa.ArrowNotImplementedError as error:
                raise _not_read(path, error) from error
            except (pa.ArrowException, OSError):
                yield from (Refused("damaged_page", f"{name} row {row + 1}") for row in range(number, end))
                number = end


def _chunks(metadata: pq.FileMetaData, group: int, columns: list[str] | None = None) -> list[tuple[int, int]]:
    """(first byte, end) of each column of a group, or of some columns, in their order in the file."""
    of = metadata.row_group(group)
    every = [of.column(number) for number in range(of.num_columns)]
    wanted = [each for each in every if columns is None or each.path_in_schema.partition(".")[0] in columns]
    starts = [min(each.data_page_offset, each.dictionary_page_offset or each.data_page_offset) for each in wanted]
    return sorted((at, at + each.total_compressed_size) for at, each in zip(starts, wanted, strict=True))


def _begin(metadata: pq.FileMetaData, group: int) -> int:
    return next((start for start, _ in _chunks(metadata, group)), 0)


def _fetch_ahead(file: RangedFile, chunks: list[tuple[int, int]]) -> None:
    """Fetch the columns of a group with one request, if they lie together and aren't too large: else Arrow will read
    them one by one."""
    gaps = (after[0] - before[1] for before, after in pairwise(chunks))
    if chunks and chunks[-1][1] - chunks[0][0] <= AHEAD and max(gaps, default=0) <= GAP:
        file.expect(chunks[0][0], chunks[-1][1])


def _not_read(path: Path, error: Exception) -> SourceError:
    return SourceError(
        f"{path} has a column or an encoding that can't be read: {error}.",
        "Write the column in another type, such as text, or remove the file from `paths`.",
    )


def rows_of(batch: pa.RecordBatch, name: str, before: int) -> Iterator[Row | Refused]:
    """The rows of a batch, which have so many before them in the file."""
    columns = map(_values, batch.columns)
    for number, values in enumerate(zip(*columns, strict=True), before + 1):
        place = f"{name} row {number}"
        broken = any(value is NOT_UTF8 for value in values)
        yield (
            Refused("invalid_utf8", place) if broken else Row(dict(zip(batch.schema.names, values, strict=True)), place)
        )


def _values(column: pa.Array) -> list[Any]:
    """The values of a column, converted at once if Python can represent all of them."""
    if not _may_mislead(column.type):
        try:
            found: list[Any] = column.to_pylist(maps_as_pydicts="strict")
            return found
        except (UnicodeDecodeError, *NO_VALUE):
            pass
    return [_whole(scalar) for scalar in column]


def _may_mislead(kind: pa.DataType) -> bool:
    """Whether Arrow silently gives wrong values for some of a type: a time of day beyond 24 hours wraps, and a
    nanosecond is cut."""
    within = [kind.field(number).type for number in range(kind.num_fields)]
    return kinds.is_time(kind) or any(map(_may_mislead, within))


def _whole(scalar: pa.Scalar) -> Any:
    try:
        return _value(scalar)
    except UnicodeDecodeError:
        return NOT_UTF8


def _value(scalar: pa.Scalar) -> Any:
    """A value, or UNREADABLE if Python can't represent it. Nested values part by part. Raises UnicodeDecodeError."""
    kind = scalar.type
    if not scalar.is_valid:
        return None
    if kinds.is_map(kind):
        keys, values = ([_value(part) for part in scalar.values.field(number)] for number in range(2))
        pairs = list(zip(keys, values, strict=True))
        plain = all(isinstance(key, Hashable) and key is not UNREADABLE for key in keys)
        return dict(pairs) if plain and len(set(keys)) == len(keys) else [*map(list, pairs)]
    if kinds.is_struct(kind):
        names = [field.name for field in kind]
        members = {name: _value(scalar[number]) for number, name in enumerate(names)}
        return members if len(members) == len(names) else UNREADABLE
    if isinstance(scalar, pa.ListScalar):
        return [_value(element) for element in scalar.values]
    try:
        if kinds.is_timestamp(kind):
            return _timestamp(scalar.value, kind)
        if kinds.is_time(kind):
            return _time(scalar.value, kind)
        return scalar.as_py()
    except UnicodeDecodeError:
        raise
    except NO_VALUE:
        return UNREADABLE


def _timestamp(value: int, kind: pa.TimestampType) -> Any:
    seconds, part = divmod(value, PER_SECOND[kind.unit])
    part *= 10**9 // PER_SECOND[kind.unit]
    found = EPOCH + timedelta(seconds=seconds, microseconds=part // 1000)
    if kind.tz is not None:
        found = found.replace(tzinfo=UTC).astimezone(pa.lib.string_to_tzinfo(kind.tz))
    return _with_nanoseconds(found, part % 1000)


def _time(value: int, kind: pa.Time32Type | pa.Time64Type) -> Any:
    seconds, part = divmod(value, PER_SECOND[kind.unit])
    if not 0 <= seconds < DAY:
        raise OverflowError("not a time of day")
    part *= 10**9 // PER_SECOND[kind.unit]
    return _with_nanoseconds((EPOCH + timedelta(seconds=seconds, microseconds=part // 1000)).time(), part % 1000)


def _with_nanoseconds(found: Any, nanoseconds: int) -> Any:
    """A time, or, if it has nanoseconds, text with nine digits after the second."""
    if not nanoseconds:
        return found
    text = found.isoformat(timespec="microseconds")
    second = text.index(".") + 7
    return f"{text[:second]}{nanoseconds:03d}{text[second:]}"
