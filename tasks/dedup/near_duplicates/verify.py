"""Verification: the exact Jaccard similarity of pairs, from the shingles of their texts.

A signature is only an estimate, so the decision to remove is made here. The shingles of the candidate rows are computed
from the texts once, kept in files, and read for some pairs at a time. Memory holds their places, 32 bytes for each row.
"""

from __future__ import annotations

import functools
import itertools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import xxhash

from storage.errors import DamagedArtifact
from storage.shards.arrays import Float64, Int64, UInt64, as_arrow, distinct, find
from storage.shards.documents import read_batches
from tasks.dedup import kernels
from tasks.dedup.config import SketchConfig
from tasks.dedup.corpus import Corpus, Shard
from tasks.dedup.near_duplicates import compare_kernels
from tasks.dedup.sketch import scanner_of
from tasks.shards import LazyShards, map_shards
from tasks.stage.output import Output
from tasks.text.scan import Scanner

SETS, ENDS, VALUES = "sets.bin", "ends.npy", "values.npy"
EDGES_AT_ONCE = 1 << 13
SHINGLES_AT_ONCE = 1 << 20  # 8 MB


class Portion(NamedTuple):
    """Pairs to compare, and the places of their rows' shingles: the file's number, the first and the end in it."""

    edges: Int64
    rows: Int64
    places: Int64
    files: dict[int, Path]


class Shingles:
    """The shingle sets of the rows requested so far."""

    def __init__(self, config: SketchConfig, corpus: Corpus, out: Output) -> None:
        self.config, self.corpus, self.out = config, corpus, out
        self.files: list[Path] = []
        self.rows: Int64 = np.empty(0, np.int64)
        self.places: Int64 = np.empty((0, 3), np.int64)  # file, start, end

    def similarities(self, edges: Int64) -> Float64:
        """The exact Jaccard similarity of each pair of rows."""
        self.take(distinct(edges))
        if len(edges) <= EDGES_AT_ONCE:  # a map would take longer
            return _similarities(self._portion(edges))
        parts = np.split(edges, range(EDGES_AT_ONCE, len(edges), EDGES_AT_ONCE))
        portions = LazyShards(lambda number: self._portion(parts[number]), len(parts))
        name = f"similarities-{xxhash.xxh3_64_hexdigest(edges.tobytes())}"
        found = map_shards(_compare, portions, self.out, name, "portions", releases_gil=True)
        return np.concatenate([np.load(portion.folder / VALUES) for portion in found])

    def _portion(self, edges: Int64) -> Portion:
        """All that a worker needs to compare some pairs."""
        rows = distinct(edges)
        places = self.places[np.searchsorted(self.rows, rows)]
        return Portion(edges, rows, places, {file: self.files[file] for file in distinct(places[:, 0]).tolist()})

    def take(self, rows: Int64) -> None:
        """Compute the shingles of ascending rows from their texts, unless that was done before."""
        missing = rows[~find(rows, self.rows)[1]]
        if not len(missing):
            return
        jobs = list(self.corpus.split(missing))
        work = functools.partial(_take_shingles, self.config)
        # Named after its rows, so that a resumed run cannot mistake other rows' shingles for these
        name = f"shingles-{xxhash.xxh3_64_hexdigest(missing.tobytes())}"
        results = map_shards(work, jobs, self.out, name, releases_gil=True)
        places = []
        for result in results:
            ends = np.load(result.folder / ENDS)
            places.append(np.stack((np.full(len(ends), len(self.files)), np.append(0, ends[:-1]), ends), axis=1))
            self.files.append(result.folder / SETS)
        where = np.searchsorted(self.rows, missing)
        self.rows = np.insert(self.rows, where, missing)
        self.places = np.insert(self.places, where, np.concatenate(places), axis=0)


def _compare(portion: Portion, folder: Path) -> dict[str, int]:
    np.save(folder / VALUES, _similarities(portion))
    return {"pairs": len(portion.edges)}


def _similarities(portion: Portion) -> Float64:
    """The similarity of each pair, with the shingles of some at a time in memory."""
    edges, rows, places, files = portion
    if not len(edges):
        return np.empty(0)
    sizes = places[:, 2] - places[:, 1]
    if sizes.sum() > SHINGLES_AT_ONCE and len(edges) > 1:
        return np.concatenate([_similarities(half) for half in _halves(portion)])
    order = np.argsort(places[:, 0], kind="stable")
    sets, ends = _read(places[order], files), np.cumsum(sizes[order])
    first, second = np.argsort(order)[np.searchsorted(rows, edges)].astype(np.int32).T
    values = np.empty(len(edges))
    compare_kernels.jaccards(sets, ends, np.ascontiguousarray(first), np.ascontiguousarray(second), values)
    return values


def _halves(portion: Portion) -> Iterator[Portion]:
    for edges in np.array_split(portion.edges, 2):
        rows = distinct(edges)
        yield Portion(edges, rows, portion.places[np.searchsorted(portion.rows, rows)], portion.files)


def _read(places: Int64, files: dict[int, Path]) -> UInt64:
    """The sets at these places, concatenated. The places are ordered by file."""
    sets = np.empty((places[:, 2] - places[:, 1]).sum(), np.uint64)
    room = memoryview(sets.data).cast("B")
    at = 0
    first = np.append(True, (places[1:, 0] != places[:-1, 0]) | (places[1:, 1] != places[:-1, 2]))
    adjacent = np.column_stack((places[first, :2], places[np.roll(first, -1), 2]))
    for number, group in itertools.groupby(adjacent.tolist(), lambda place: place[0]):
        with files[number].open("rb", buffering=0) as file:  # a mapping's pages would count as this process's
            for _, start, end in group:
                after = at + sets.itemsize * (end - start)
                if os.preadv(file.fileno(), [room[at:after]], sets.itemsize * start) != after - at:
                    raise DamagedArtifact(
                        f"{files[number]} ends too early.",
                        f"Delete {files[number].parent} and run again: its shard is read again.",
                    )
                at = after
    return sets


def _take_shingles(config: SketchConfig, job: tuple[Shard, Int64], folder: Path) -> dict[str, int]:
    shard, wanted = job
    scanner = scanner_of(config)
    found: list[UInt64] = []
    for start, batch in read_batches(shard.documents, ["text"], holding=wanted.tolist()):
        first, last = np.searchsorted(wanted, (start, start + len(batch)))
        found += shingle_sets(scanner, config.ngram, batch["text"].take(as_arrow(wanted[first:last] - start)))
    with (folder / SETS).open("wb") as file:
        file.writelines(shingles.data for shingles in found)
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
