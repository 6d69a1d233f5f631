"""Verification: the exact Jaccard similarity of pairs, from the shingles of their texts.

A signature is only an estimate; what is removed is decided here. The shingles of the candidate rows are computed from
the texts once, kept in files, and read for a few pairs at a time.
"""

from __future__ import annotations

import functools
from pathlib import Path

import numpy as np
import pyarrow as pa
import xxhash

from storage.shards.arrays import Float64, Int64, UInt64
from storage.shards.documents import read_batches
from tasks.dedup import kernels
from tasks.dedup.config import SketchConfig
from tasks.dedup.corpus import Corpus, Shard
from tasks.dedup.near_duplicates import compare_kernels
from tasks.dedup.sketch import scanner_of
from tasks.shards import in_threads, map_shards
from tasks.stage.output import Output
from tasks.text.scan import Scanner

SETS, ENDS = "sets.npy", "ends.npy"
EDGES_AT_ONCE = 1 << 13
SHINGLES_AT_ONCE = 1 << 21  # 16 MB


class Shingles:
    """The shingle sets of the rows requested so far."""

    def __init__(self, config: SketchConfig, corpus: Corpus, out: Output) -> None:
        self.config, self.corpus, self.out = config, corpus, out
        self.files: list[UInt64] = []
        self.rows: Int64 = np.empty(0, np.int64)
        self.places: Int64 = np.empty((0, 3), np.int64)  # file, start, end

    def similarities(self, edges: Int64) -> Float64:
        """The exact Jaccard similarity of each pair of rows."""
        self.take(np.unique(edges))
        portions = np.split(edges, range(EDGES_AT_ONCE, len(edges), EDGES_AT_ONCE))
        return np.concatenate(list(in_threads(self._similarities, portions, self.out)))

    def _similarities(self, edges: Int64) -> Float64:
        if not len(edges):
            return np.empty(0)
        rows, local = np.unique(edges, return_inverse=True)
        places = self.places[np.searchsorted(self.rows, rows)]
        sizes = places[:, 2] - places[:, 1]
        if sizes.sum() > SHINGLES_AT_ONCE and len(edges) > 1:
            half = len(edges) // 2
            return np.concatenate((self._similarities(edges[:half]), self._similarities(edges[half:])))
        sets = np.concatenate([self.files[file][start:end] for file, start, end in places.tolist()])
        first, second = local.reshape(-1, 2).astype(np.int32).T
        values = np.empty(len(edges))
        compare_kernels.jaccards(
            sets, np.cumsum(sizes), np.ascontiguousarray(first), np.ascontiguousarray(second), values
        )
        return values

    def take(self, rows: Int64) -> None:
        """Compute the shingles of ascending rows from their texts, unless that was done before."""
        missing = np.setdiff1d(rows, self.rows, assume_unique=True)
        if not len(missing):
            return
        jobs = list(self.corpus.split(missing))
        work = functools.partial(_take_shingles, self.config)
        # Named after its rows, so that a resumed run cannot mistake other rows' shingles for these
        name = f"shingles-{xxhash.xxh3_64_hexdigest(missing.tobytes())}"
        results = map_shards(work, jobs, self.out, name, releases_gil=True)
        for (shard, local), result in zip(jobs, results, strict=True):
            ends = np.load(result.folder / ENDS)
            starts = np.concatenate(([0], ends[:-1]))
            places = np.stack((np.full(len(ends), len(self.files)), starts, ends), axis=1)
            self.files.append(np.asarray(np.load(result.folder / SETS, mmap_mode="r")))
            self.rows = np.concatenate((self.rows, local + shard.start))
            self.places = np.concatenate((self.places, places))
        order = np.argsort(self.rows)
        self.rows, self.places = self.rows[order], self.places[order]


def _take_shingles(config: SketchConfig, job: tuple[Shard, Int64], folder: Path) -> dict[str, int]:
    shard, wanted = job
    scanner = scanner_of(config)
    found: list[UInt64] = []
    for start, batch in read_batches(shard.documents, ["text"], holding=wanted.tolist()):
        first, last = np.searchsorted(wanted, (start, start + len(batch)))
        found += shingle_sets(scanner, config.ngram, batch["text"].take(pa.array(wanted[first:last] - start)))
    np.save(folder / SETS, np.concatenate(found))
    np.save(folder / ENDS, np.cumsum([len(shingles) for shingles in found]))
    return {"documents": len(found)}


def shingle_sets(scanner: Scanner, ngram: int, texts: pa.Array) -> list[UInt64]:
    """The distinct 64-bit shingle hashes of each text, ascending."""
    found: list[UInt64] = [np.empty(0, np.uint64)] * len(texts)
    for scanned in scanner.scan(texts):
        sets = np.empty(scanned.word_ends[-1], np.uint64)
        ends = np.empty(len(scanned.rows), np.int64)
        kernels.shingle_sets(scanned.words, scanned.word_ends, ngram, sets, ends)
        for row, shingles in zip(scanned.rows.tolist(), np.split(sets[: ends[-1]], ends[:-1]), strict=True):
            found[row] = shingles
    return found
