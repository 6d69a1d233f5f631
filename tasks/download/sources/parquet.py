"""Rows of Parquet files, by row group, so that a damaged page costs the rows of its group and no others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from storage.errors import SourceError
from tasks.download.sources.metadata import UNREADABLE
from tasks.download.sources.rows import Refused, Row

# Text that is no UTF-8; a date beyond Python's years; a time of nanoseconds; a time zone that nobody knows
NO_VALUE = (UnicodeDecodeError, OverflowError, ValueError, KeyError)


def read_parquet(path: Path, name: str) -> Iterator[Row | Refused]:
    """The rows of a file, those of a damaged group refused. Raises SourceError."""
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
        return [
            Row(values, f"{name} row {row}")
            for row, values in enumerate(batch.to_pylist(maps_as_pydicts="strict"), before + 1)
        ]
    except NO_VALUE as error:
        if batch.num_rows > 1:
            half = batch.num_rows // 2
            return [*_rows(batch.slice(0, half), name, before), *_rows(batch.slice(half), name, before + half)]
        if isinstance(error, UnicodeDecodeError):
            return [Refused("invalid_utf8", f"{name} row {before + 1}")]
        return [Row(_readable(batch), f"{name} row {before + 1}")]


def _readable(row: pa.RecordBatch) -> dict[str, Any]:
    """The fields of a single row; those that Python has no value for as Arrow writes them, and a map that has a key
    twice as pairs."""
    fields = {}
    for column, values in zip(row.schema.names, row.columns, strict=True):
        try:
            fields[column] = values[0].as_py()
        except NO_VALUE:
            fields[column] = _written(values)
    return fields


def _written(value: pa.Array) -> Any:
    try:
        text: str = value.cast(pa.string())[0].as_py()
    except (pa.ArrowException, *NO_VALUE):
        return UNREADABLE
    if text.startswith("<"):  # value out of range
        return UNREADABLE
    return text.replace(" ", "T", 1) if pa.types.is_timestamp(value.type) else text
