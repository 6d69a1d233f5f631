"""Rows spilled to disk by partition, so that related rows can be brought together within bounded memory.

Each shard writes one Parquet file with a row group per partition that it has rows of; a partition is read from all
files.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import pyarrow as pa

from storage.shards.arrays import AnyArray, UInt64
from storage.shards.parquet import open_parquet, parquet_writer
from tasks.shards import ShardResult

FILE = "parts.parquet"


def range_of(keys: UInt64, ranges: int) -> UInt64:
    """The range that each key falls into, out of `ranges` (a power of two)."""
    return keys >> np.uint64(65 - ranges.bit_length()) if ranges > 1 else np.zeros(len(keys), np.uint64)


class PartWriter:
    """Writes the file of one shard."""

    def __init__(self, folder: Path, schema: pa.Schema) -> None:
        self._file = parquet_writer(
            folder / FILE, schema, compression="none", use_dictionary=False, write_statistics=False
        )
        self._written: list[int] = []

    def __enter__(self) -> PartWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.__exit__(kind, error, trace)

    @property
    def counts(self) -> dict[str, Any]:
        """The counts that `read_part` needs in the shard's result: the partition of each row group."""
        return {"parts": self._written}

    def write(self, part: AnyArray, parts: int, columns: Sequence[AnyArray], first: int = 0) -> None:
        """Write rows as one row group per partition that has any: row i goes to `first + part[i]` (part < `parts`)."""
        if parts == 1 and len(part):
            self._write(first, columns)
            return
        order = np.argsort(part.astype(np.min_scalar_type(parts)), kind="stable")  # a radix sort for up to 16 bits
        ends = np.searchsorted(part[order], np.arange(parts), "right")
        for number in np.flatnonzero(np.diff(ends, prepend=0)).tolist():
            chosen = order[ends[number - 1] if number else 0 : ends[number]]
            self._write(first + number, [column[chosen] for column in columns])

    def _write(self, number: int, columns: Sequence[AnyArray]) -> None:
        self._file.write_table(pa.table(list(columns), schema=self._file.schema))
        self._written.append(number)


def read_part(results: Sequence[ShardResult], number: int) -> Iterator[tuple[int, pa.Table]]:
    """What each shard wrote for a partition, as (index of the shard, rows)."""
    for shard, result in enumerate(results):
        groups = [place for place, part in enumerate(result.counts["parts"]) if part == number]
        if groups:
            with open_parquet(result.folder / FILE) as file:
                yield shard, file.read_row_groups(groups, use_threads=False)
