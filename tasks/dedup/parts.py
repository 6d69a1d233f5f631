"""Rows spilled to disk by partition, so that related rows can be brought together within bounded memory.

Each shard writes one file with the columns of each partition that it has rows of, one after the other as they are in
memory; a partition is read from all files. Reading such a piece takes 20 µs, a row group of Parquet 500.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from storage.errors import DamagedArtifact
from storage.shards.arrays import AnyArray, UInt64
from tasks.shards import ShardResult

FILE = "parts.bin"
Types = Sequence[type[np.generic]]  # of the columns


def range_of(keys: UInt64, ranges: int) -> UInt64:
    """The range that each key falls into, out of `ranges` (a power of two)."""
    return keys >> np.uint64(65 - ranges.bit_length()) if ranges > 1 else np.zeros(len(keys), np.uint64)


class PartWriter:
    """Writes the file of one shard."""

    def __init__(self, folder: Path, types: Types) -> None:
        self._types = types
        self._file = (folder / FILE).open("wb")
        self._written: list[tuple[int, int]] = []

    def __enter__(self) -> PartWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    @property
    def counts(self) -> dict[str, Any]:
        """The counts that `read_part` needs in the shard's result: the partition and the rows of each piece."""
        return {"parts": self._written}

    def write(self, part: AnyArray, parts: int, columns: Sequence[AnyArray], first: int = 0) -> None:
        """Write rows as one piece per partition that has any: row i goes to `first + part[i]` (part < `parts`)."""
        if parts == 1 and len(part):
            self._write(first, columns)
            return
        order = np.argsort(part.astype(np.min_scalar_type(parts)), kind="stable")  # a radix sort for up to 16 bits
        ends = np.searchsorted(part[order], np.arange(parts), "right")
        for number in np.flatnonzero(np.diff(ends, prepend=0)).tolist():
            chosen = order[ends[number - 1] if number else 0 : ends[number]]
            self._write(first + number, [column[chosen] for column in columns])

    def _write(self, number: int, columns: Sequence[AnyArray]) -> None:
        for column, kind in zip(columns, self._types, strict=True):
            column.astype(kind, copy=False).tofile(self._file)
        self._written.append((number, len(columns[0])))


def read_part(results: Sequence[ShardResult], types: Types, number: int) -> Iterator[tuple[int, list[AnyArray]]]:
    """What each shard wrote for a partition, piece by piece, as (index of the shard, columns)."""
    width = sum(np.dtype(kind).itemsize for kind in types)
    for shard, result in enumerate(results):
        at = 0
        for part, rows in result.counts["parts"]:
            if part == number:
                yield shard, _read(result.folder / FILE, types, rows, at)
            at += rows * width


def _read(path: Path, types: Types, rows: int, at: int) -> list[AnyArray]:
    with path.open("rb") as file:
        file.seek(at)
        columns = [np.fromfile(file, kind, rows) for kind in types]
    if any(len(column) != rows for column in columns):
        raise DamagedArtifact(f"{path} ends too early.", f"Delete {path.parent} and run again: its shard is read anew.")
    return columns
