"""Grouping rows by key within bounded memory: keys are spilled by partition, each partition is sorted by itself.

Every shard writes one Parquet file with a row group for each (band, range of the key); a partition is the same row
group of all files. One range a band is enough until the keys of a band pass the memory limit, then there are more.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from tasks.dedup.corpus import Rows
from tasks.shards import ShardResult
from tasks.text.kernels import Hashes

Places = npt.NDArray[np.uint32]  # of documents in their shard

FILE = "keys.parquet"
SCHEMA = pa.schema([("key", pa.uint64()), ("place", pa.uint32())])
BYTES_A_KEY = 48  # key, row, order and their sorted copies, while a partition is grouped


class Groups(NamedTuple):
    """Rows that share a key: group g is `members[ends[g - 1]:ends[g]]`, two or more rows, in no order."""

    members: Rows
    ends: Rows


def ranges_needed(keys: int, memory: int) -> int:
    """Ranges (a power of two) into which the `keys` of a band are cut so that one fits into `memory` bytes."""
    ranges = 1
    while keys * BYTES_A_KEY > ranges * memory:
        ranges *= 2
    return ranges


def spill(folder: Path, bands: Iterable[Hashes], places: Places, ranges: int) -> dict[str, Any]:
    """Write the keys of a shard's documents, one array a band; the counts name the partition of each row group."""
    shift = np.uint64(64 - (ranges - 1).bit_length())
    partitions: list[int] = []
    plain: dict[str, Any] = {"compression": "none", "use_dictionary": False, "write_statistics": False}
    with pq.ParquetWriter(folder / FILE, SCHEMA, **plain) as file:
        for band, keys in enumerate(bands):
            cut = np.zeros(len(keys), np.uint64) if ranges == 1 else keys >> shift
            for number in range(ranges):
                chosen = slice(None) if ranges == 1 else cut == number
                if len(keys[chosen]):
                    file.write_table(pa.table([keys[chosen], places[chosen]], schema=SCHEMA))
                    partitions.append(band * ranges + number)
    return {"partitions": partitions}


def grouped(spilled: list[ShardResult], starts: list[int], partition: int) -> Groups:
    """The groups of one partition. `starts` are the first rows of the shards."""
    keys, rows = [np.empty(0, np.uint64)], [np.empty(0, np.int64)]
    for shard, start in zip(spilled, starts, strict=True):
        partitions = shard.counts["partitions"]
        if partition in partitions:
            with pq.ParquetFile(shard.folder / FILE) as file:
                table = file.read_row_group(partitions.index(partition), use_threads=False)
            keys.append(table["key"].to_numpy())
            rows.append(table["place"].to_numpy().astype(np.int64) + start)
    return group(np.concatenate(keys), np.concatenate(rows))


def group(keys: Hashes, rows: Rows) -> Groups:
    """Rows by equal key, without those that are alone with theirs."""
    order = _order(keys)
    ordered = keys[order]
    same = ordered[1:] == ordered[:-1]
    shared = np.zeros(len(keys), np.bool_)
    shared[1:] |= same
    shared[:-1] |= same
    members, ordered = rows[order[shared]], ordered[shared]
    ends = np.flatnonzero(np.append(ordered[1:] != ordered[:-1], len(ordered) > 0)) + 1
    return Groups(members, ends)


def _order(keys: Hashes) -> Rows:
    """An order in which equal keys are neighbours. Sorting is several times as fast as finding the order of a sort, so
    the place goes into the key's low bits; where that makes two keys one, which is rare, the slow way is taken."""
    width = np.uint64(len(keys).bit_length())
    packed = (keys >> width << width) | np.arange(len(keys), dtype=np.uint64)
    packed.sort()
    order = (packed & ((np.uint64(1) << width) - np.uint64(1))).astype(np.int64)
    high, ordered = packed >> width, keys[order]
    if ((high[1:] == high[:-1]) & (ordered[1:] != ordered[:-1])).any():
        order = np.argsort(keys)
    return order
