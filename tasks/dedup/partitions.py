"""Rows spilled to disk by partition, so that related rows can be brought together within bounded memory.

Each shard writes one file with the columns of each partition that it has rows of, one after the other as they are in
memory. A partition is read from all files. Reading such a piece takes 20 µs, a row group of Parquet 500. Memory holds
only the place of each piece, 20 bytes for each partition of each shard.
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
        """The counts that `Parts` needs in the shard's result: the partition and the rows of each piece."""
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
            self._file.write(np.ascontiguousarray(column, kind).data)  # `tofile` would open the file again
        self._written.append((number, len(columns[0])))


class Parts:
    """The files that a map's shards wrote, to be read by partition."""

    def __init__(self, written: Sequence[ShardResult], types: Types) -> None:
        self._types = types
        self._folders = [str(result.folder) for result in written]
        width = sum(np.dtype(kind).itemsize for kind in types)
        pieces = [np.array(result.counts["parts"], np.int64).reshape(-1, 2) for result in written]
        numbers, rows = np.concatenate([np.empty((0, 2), np.int64), *pieces]).T
        order = np.argsort(numbers, kind="stable")  # within a partition by shard, and as they were written
        starts = [np.cumsum(piece[:, 1]) - piece[:, 1] for piece in pieces]
        self._numbers = numbers[order].astype(np.uint32)
        self._shards = np.repeat(np.arange(len(pieces)), [len(piece) for piece in pieces])[order].astype(np.uint32)
        self._rows = rows[order].astype(np.uint32)
        self._places = width * np.concatenate([np.empty(0, np.int64), *starts])[order]

    def read(self, number: int) -> Iterator[tuple[int, list[AnyArray]]]:
        """The pieces of a partition, as (index of the shard, columns)."""
        mine = slice(*np.searchsorted(self._numbers, (number, number + 1)))
        of_pieces = (self._shards, self._rows, self._places)
        for shard, rows, at in zip(*(column[mine].tolist() for column in of_pieces), strict=True):
            yield shard, _read(Path(self._folders[shard]) / FILE, self._types, rows, at)


def _read(path: Path, types: Types, rows: int, at: int) -> list[AnyArray]:
    with path.open("rb") as file:
        file.seek(at)
        columns = [np.fromfile(file, kind, rows) for kind in types]
    if any(len(column) != rows for column in columns):
        remedy = f"Delete {path.parent} and run again: its shard is read again."
        raise DamagedArtifact(f"{path} ends too early.", remedy)
    return columns
