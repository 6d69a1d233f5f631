"""Candidate pairs: documents whose signatures agree in all rows of a band share a bucket (Leskovec et al., "Mining of
Massive Datasets", ch. 3), and are candidates if their whole signatures agree enough to reach the threshold. Buckets too
large for all pairs are handled in large_buckets.py.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from storage.shards.arrays import Int64
from tasks.dedup.buckets import TYPES, Groups, grouped, ranges_for, spill
from tasks.dedup.clusters import unique_edges
from tasks.dedup.config import DedupConfig
from tasks.dedup.corpus import Corpus, Shard
from tasks.dedup.near_duplicates import compare_kernels
from tasks.dedup.partitions import Parts
from tasks.shards import ShardResult, map_shards
from tasks.stage.output import Output

MISS_WEIGHT = 0.999  # a missed pair is lost; a false positive costs one comparison of signatures
DEVIATIONS = 4.0  # standard deviations below the threshold at which a pair is dropped: 1 in 30,000 is lost
PAIRS_AT_ONCE = 1 << 20
ROWS_AT_ONCE = 1 << 15  # whose signatures are read together: 16 MB
EDGES, LARGE = "edges.npy", "large.npy"


@functools.cache
def bands(threshold: float, permutations: int) -> tuple[int, int]:
    """(bands, rows per band) for the threshold and the number of permutations, as chosen by datasketch's optimiser,
    which weighs the area under the curve of `expected_recall` below the threshold and the area above the curve beyond
    it. For a threshold close to 1, where that would be a single band: two bands of half the rows, which miss even less.

    datasketch's quadrature takes 0.3 s, most of it to import SciPy. Here the integral of (1 − sʳ)ᵇ from 0 to t follows
    by parts from the integral I for b − 1: (t·(1 − tʳ)ᵇ + r·b·I) / (r·b + 1).
    """
    best, least = (0, 0), math.inf
    for rows in range(1, permutations + 1):
        below, whole, missed = threshold, 1.0, 1.0  # the integrals up to the threshold and up to 1; (1 − tʳ)ᵇ
        for count in range(1, permutations // rows + 1):
            missed *= 1 - threshold**rows
            both = rows * count
            below = (threshold * missed + both * below) / (both + 1)
            whole = both * whole / (both + 1)
            error = (1 - MISS_WEIGHT) * (threshold - below) + MISS_WEIGHT * (whole - below)
            if error < least:
                best, least = (count, rows), error
    return best if best[0] > 1 else (2, permutations // 2)


def expected_recall(similarity: float, count: int, rows: int) -> float:
    """The probability that a pair of this similarity shares a bucket in any of `count` bands: 1 − (1 − sʳ)ᵇ."""
    return float(1 - (1 - similarity**rows) ** count)


def agreement_at(config: DedupConfig, deviations: float) -> int:
    """The number of equal positions expected at the threshold, plus this many standard deviations of the estimate."""
    permutations = config.sketch.permutations
    deviation = math.sqrt(config.threshold * (1 - config.threshold) / permutations)
    agreeing = round(permutations * (config.threshold + deviations * deviation))
    return min(permutations, max(1, agreeing))


class Candidates:
    """The buckets of all bands."""

    def __init__(self, config: DedupConfig, corpus: Corpus, skipped: Int64, memory: int, out: Output) -> None:
        self.config, self.corpus, self.out = config, corpus, out
        self.count, self.height = bands(config.threshold, config.sketch.permutations)
        self.least = agreement_at(config, -DEVIATIONS)
        self.ranges = ranges_for(corpus.size, memory)
        work = functools.partial(_spill_shard, corpus, self.count, self.height, self.ranges, skipped)
        written = map_shards(work, corpus.shards, out, f"band-keys-{self.ranges}", releases_gil=True)
        self.spilled = Parts(written, TYPES)

    def pairs(self) -> tuple[Int64, list[Int64]]:
        """Candidate pairs from all buckets of up to `bucket_pairs` documents, and the members of each larger bucket."""
        work = functools.partial(_compare, self.corpus, self.spilled, self.least, self.config.bucket_pairs)
        partitions = range(self.count * self.ranges)
        compared = map_shards(work, partitions, self.out, f"compared-{self.ranges}", "partitions", releases_gil=True)
        large = [members for found in compared for members in _large(found)]
        return unique_edges(np.load(found.folder / EDGES) for found in compared), large


def _spill_shard(
    corpus: Corpus, count: int, height: int, ranges: int, skipped: Int64, shard: Shard, folder: Path
) -> dict[str, Any]:
    places = shard.without(skipped)
    signatures = corpus.signatures_of(shard, places)
    keys = []
    for band in range(count):
        keys.append(np.empty(len(places), np.uint64))
        compare_kernels.band_keys(signatures, band, height, keys[-1])
    return spill(folder, keys, places.astype(np.uint32), ranges)


def _compare(corpus: Corpus, spilled: Parts, least: int, limit: int, partition: int, folder: Path) -> dict[str, Any]:
    """The candidate pairs of one partition's buckets, and the members of those above `limit`."""
    groups = grouped(spilled, [shard.start for shard in corpus.shards], partition)
    starts = np.concatenate(([0], groups.ends[:-1]))
    large = np.flatnonzero(groups.ends - starts > limit)
    larger = [np.sort(groups.members[starts[g] : groups.ends[g]]) for g in large]
    np.save(folder / LARGE, np.concatenate([np.empty(0, np.int64), *larger]))
    np.save(folder / EDGES, unique_edges(_alike(corpus, least, *portion) for portion in portions(groups, limit)))
    return {"large": [len(members) for members in larger]}


def _large(found: ShardResult) -> list[Int64]:
    members = np.load(found.folder / LARGE)
    ends = np.cumsum(found.counts["large"], dtype=np.int64)
    return [members[end - size : end] for end, size in zip(ends, found.counts["large"], strict=True)]


def _alike(corpus: Corpus, least: int, members: Int64, ends: Int64) -> Int64:
    """All pairs within groups whose signatures agree in enough positions."""
    rows, local = np.unique(members, return_inverse=True)
    sizes = np.diff(ends, prepend=0)
    room = int((sizes * (sizes - 1) // 2).sum())
    first, second = np.empty(room, np.int32), np.empty(room, np.int32)
    signatures = corpus.signatures(rows)
    made = compare_kernels.similar_pairs(local.astype(np.int32), ends, signatures, least, first, second)
    return np.stack((rows[first[:made]], rows[second[:made]]), axis=1)


def portions(groups: Groups, limit: int) -> Iterator[tuple[Int64, Int64]]:
    """Groups of up to `limit` members as (members, ends), in portions of about `PAIRS_AT_ONCE` pairs and at most about
    `ROWS_AT_ONCE` members."""
    starts = np.concatenate(([0], groups.ends[:-1]))
    sizes = groups.ends - starts
    small = np.flatnonzero(sizes <= limit)
    pairs, rows = np.cumsum(sizes[small] * sizes[small]), np.cumsum(sizes[small])
    for chosen in np.split(small, np.flatnonzero(np.diff(pairs // PAIRS_AT_ONCE + rows // ROWS_AT_ONCE)) + 1):
        if len(chosen):
            members = np.concatenate([groups.members[starts[g] : groups.ends[g]] for g in chosen])
            yield members, np.cumsum(sizes[chosen])
