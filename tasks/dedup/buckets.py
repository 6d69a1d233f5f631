"""Grouping rows by key within bounded memory: keys are spilled by partition, and each partition is sorted separately.

A partition is a range of the keys of one band. Partitions are small whatever the corpus, as long as there are few: each
shard has a piece of each, and a piece takes time to read.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from storage.shards.arrays import Int64, UInt32, UInt64
from tasks.dedup.kernels import may_repeat
from tasks.dedup.partitions import Parts, PartWriter, range_of

TYPES = (np.uint64, np.uint32)  # key, place
BYTES_A_KEY = 48  # key, row, order and their sorted copies while a partition is grouped
SMALL = 1 << 25  # bytes of a small partition
ENOUGH = 16  # maximum ranges made only to have small partitions


class Groups(NamedTuple):
    """Rows that share a key: group g is `members[ends[g - 1]:ends[g]]`, two or more rows in no particular order, of the
    key `keys[g]`."""

    members: Int64
    ends: Int64
    keys: UInt64


def ranges_for(keys: int, memory: int, size: int = BYTES_A_KEY) -> int:
    """The number of ranges (a power of two) to split `keys` keys into, of `size` bytes each: a range fits `memory`
    bytes and, as far as `ENOUGH` ranges allow, is `SMALL`."""
    return max(ranges_needed(keys, memory, size), min(ENOUGH, ranges_needed(keys, SMALL, size)))


def ranges_needed(keys: int, memory: int, size: int = BYTES_A_KEY) -> int:
    """The number of ranges (a power of two) for each to fit `memory` bytes."""
    ranges = 1
    while keys * size > ranges * memory:
        ranges *= 2
    return ranges


def spill(folder: Path, bands: Iterable[UInt64], places: UInt32, ranges: int) -> dict[str, Any]:
    """Write the keys of a shard's documents, one array per band, to the partitions `band * ranges` and following.

    `places` are the documents' indices in their shard.
    """
    with PartWriter(folder, TYPES) as file:
        for band, keys in enumerate(bands):
            file.write(range_of(keys, ranges), ranges, [keys, places], band * ranges)
    return file.counts


def grouped(spilled: Parts, starts: list[int], partition: int) -> Groups:
    """The groups of one partition. `starts` are the shards' first rows."""
    keys, rows = [np.empty(0, np.uint64)], [np.empty(0, np.int64)]
    for shard, (key, place) in spilled.read(partition):
        keys.append(key)
        rows.append(place.astype(np.int64) + starts[shard])
    return group(np.concatenate(keys), np.concatenate(rows))


def group(keys: UInt64, rows: Int64) -> Groups:
    """Group rows by equal key, leaving out rows whose key is unique."""
    chosen = may_repeat(keys)
    keys, rows = keys[chosen], rows[chosen]
    order = _order(keys)
    ordered = keys[order]
    same = ordered[1:] == ordered[:-1]
    shared = np.zeros(len(keys), np.bool_)
    shared[1:] |= same
    shared[:-1] |= same
    members, ordered = rows[order[shared]], ordered[shared]
    ends = np.flatnonzero(np.append(ordered[1:] != ordered[:-1], len(ordered) > 0)) + 1
    return Groups(members, ends, ordered[ends - 1])


def _order(keys: UInt64) -> Int64:
    """An order in which equal keys are adjacent. Sorting is several times as fast as an argsort, so the index replaces
    the low bits of the key; if that makes two different keys equal, which is rare, argsort is used."""
    width = np.uint64(len(keys).bit_length())
    packed = (keys >> width << width) | np.arange(len(keys), dtype=np.uint64)
    packed.sort()
    order = (packed & ((np.uint64(1) << width) - np.uint64(1))).astype(np.int64)
    high, ordered = packed >> width, keys[order]
    if ((high[1:] == high[:-1]) & (ordered[1:] != ordered[:-1])).any():
        order = np.argsort(keys)
    return order
