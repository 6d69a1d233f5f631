"""Near-duplicates by SimHash (Charikar 2002; Manku et al. 2007): 64-bit hashes with a small Hamming distance.

Two hashes that differ in k bits agree in at least two of k + 2 blocks, so each pair of blocks is a key, and documents
that share a key are compared. The distance is exact, so there is nothing to verify. Off by default: at three bits it
finds what MinHash finds above a similarity of about 0.95, with a fraction of the space.
"""

from __future__ import annotations

import functools
from itertools import combinations, pairwise
from pathlib import Path

import numpy as np

from storage.shards.arrays import Int64, UInt64
from storage.shards.documents import read_batches
from tasks.dedup import kernels
from tasks.dedup.buckets import group
from tasks.dedup.clusters import unique_edges
from tasks.dedup.config import SimHashConfig, SketchConfig
from tasks.dedup.corpus import Corpus, Shard
from tasks.dedup.near_duplicates import compare_kernels
from tasks.dedup.sketch import scanner_of
from tasks.shards import map_shards
from tasks.stage.output import Output

FILE = "simhash.npy"
BITS = 64


def simhashes(sketch: SketchConfig, corpus: Corpus, out: Output) -> UInt64:
    """The SimHash of every row, held in memory: 8 bytes per document."""
    work = functools.partial(_hash_shard, sketch)
    results = map_shards(work, corpus.shards, out, "simhash", releases_gil=True)
    return np.concatenate([np.load(result.folder / FILE) for result in results])


def simhash_edges(config: SimHashConfig, hashes: UInt64, skipped: Int64) -> Int64:
    """Pairs of rows whose hashes differ in at most `max_distance` bits. Rows with equal hashes are paired only with the
    first of them."""
    rows = np.setdiff1d(np.arange(len(hashes)), skipped, assume_unique=True)
    values, first, places = np.unique(hashes[rows], return_index=True, return_inverse=True)
    equal = np.stack((rows[first[places]], rows), axis=1)
    found = [equal[equal[:, 0] != equal[:, 1]]]
    for mask in _masks(config.max_distance):
        groups = group(values & mask, np.arange(len(values)))
        pairs = _close(values[groups.members], groups.ends, config.max_distance)
        found.append(np.sort(rows[first[groups.members[pairs]]], axis=1))
    return unique_edges(found)


def distances(hashes: UInt64, pairs: Int64) -> Int64:
    """The Hamming distance of the hashes of each pair of rows."""
    differing: Int64 = np.bitwise_count(hashes[pairs[:, 0]] ^ hashes[pairs[:, 1]]).astype(np.int64)
    return differing


def _masks(distance: int) -> list[np.uint64]:
    cuts = np.linspace(0, BITS, distance + 3).astype(int)
    blocks = [(1 << int(end)) - (1 << int(start)) for start, end in pairwise(cuts)]
    return [np.uint64(one | other) for one, other in combinations(blocks, 2)]


def _close(values: UInt64, ends: Int64, distance: int) -> Int64:
    room = 0
    while True:  # the first pass counts, the second one writes
        first, second = np.empty(room, np.int32), np.empty(room, np.int32)
        found = compare_kernels.close_pairs(values, ends, distance, first, second)
        if found <= room:
            return np.stack((first[:found], second[:found]), axis=1)
        room = found


def _hash_shard(config: SketchConfig, shard: Shard, folder: Path) -> dict[str, int]:
    scanner = scanner_of(config)
    made = [np.empty(0, np.uint64)]
    for _, batch in read_batches(shard.documents, ["text"]):
        hashes = np.empty(len(batch), np.uint64)
        for scanned in scanner.scan(batch["text"]):
            part = np.empty(len(scanned.rows), np.uint64)
            kernels.simhashes(scanned.words, scanned.word_ends, config.ngram, part)
            hashes[scanned.rows] = part
        made.append(hashes)
    np.save(folder / FILE, np.concatenate(made))
    return {"documents": shard.size}
