"""The table of duplicates: which documents, of which one, how similar, by which method. Nothing is written yet."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from storage.shards.arrays import Int64, UInt64, as_arrow, as_numpy, distinct, find
from tasks.dedup.buckets import group, ranges_for
from tasks.dedup.clusters import Components, unique_edges
from tasks.dedup.config import DedupConfig, SimHashConfig
from tasks.dedup.corpus import Corpus, Shard
from tasks.dedup.keeping.choose import CODES, REMOVED_SCHEMA, choose_keepers
from tasks.dedup.near_duplicates.candidates import Candidates
from tasks.dedup.near_duplicates.large_buckets import join_large_buckets
from tasks.dedup.near_duplicates.simhash import distances, simhash_edges, simhashes
from tasks.dedup.near_duplicates.verify import Shingles
from tasks.dedup.partitions import Parts, PartWriter, range_of
from tasks.shards import map_shards
from tasks.stage.output import Output

REASONS = ("exact_duplicate", "near_duplicate", "simhash_duplicate")
HASHES = (np.uint64, np.uint64, np.uint32)  # the two halves, place
EDGES = "edges.npy"
SCHEMA = pa.schema(
    [*REMOVED_SCHEMA, ("reason", CODES), ("value", pa.float64()), ("threshold", pa.float64()), ("chained", pa.bool_())]
)  # chained: the documents between them are similar, they themselves are not


def find_duplicates(config: DedupConfig, corpus: Corpus, out: Output) -> pa.Table:
    """The rows to remove, ascending, each with the reason and the document kept in its place: 100 bytes each."""
    memory = out.runtime.data.working_memory // out.runtime.data.workers
    copies = exact_copies(corpus, memory, out)
    shingles = Shingles(config.sketch, corpus, out)
    near = near_edges(config, corpus, copies, shingles, memory, out)
    joined = unique_edges([copies, near])
    if config.simhash is None:
        return _judge(config, corpus, Components(joined), copies, shingles, memory)
    hashes = simhashes(config.sketch, corpus, out)
    close = simhash_edges(config.simhash, hashes, distinct(copies[:, 1]))
    out.count(close_by_simhash=len(close))
    table = _judge(config, corpus, Components(unique_edges([joined, close])), copies, shingles, memory)
    return _by_simhash(config.simhash, table, Components(joined), hashes)


def exact_copies(corpus: Corpus, memory: int, out: Output) -> Int64:
    """(first row, other row) for each document that equals a document of a lower row after normalisation, by the
    128-bit xxh3 hash of the text."""
    ranges = ranges_for(corpus.size, memory)
    spill = functools.partial(_spill_exact, ranges)
    spilled = Parts(map_shards(spill, corpus.shards, out, f"exact-keys-{ranges}", releases_gil=True), HASHES)
    work = functools.partial(_group_exact, spilled, [shard.start for shard in corpus.shards])
    found = map_shards(work, range(ranges), out, f"exact-copies-{ranges}", "partitions", releases_gil=True)
    return unique_edges(np.load(part.folder / EDGES) for part in found)


def near_edges(
    config: DedupConfig, corpus: Corpus, copies: Int64, shingles: Shingles, memory: int, out: Output
) -> Int64:
    """Verified edges between documents that are not copies of one another."""
    candidates = Candidates(config, corpus, distinct(copies[:, 1]), memory, out)
    pairs, large_buckets = candidates.pairs()
    verified = pairs[shingles.similarities(pairs) >= config.threshold]
    large = join_large_buckets(candidates, large_buckets, Components(verified), shingles)
    edges = unique_edges([verified, large.edges])
    out.count(candidates=len(pairs) + large.candidates, verified=len(edges), buckets_cut_short=large.cut_short)
    if large.cut_short:
        out.warn(f"{large.cut_short:,} buckets were too large to compare completely")
    return edges


def _judge(
    config: DedupConfig, corpus: Corpus, components: Components, copies: Int64, shingles: Shingles, memory: int
) -> pa.Table:
    """The rows to remove of each component, with reasons."""
    table = choose_keepers(config, corpus, components, memory, shingles.out)
    # An exact copy has the shingles of the row that represented it in the comparison, and so its similarity
    pairs = np.stack([_standing_for(copies, as_numpy(table[name])) for name in ("row", "keeper")], axis=1)
    exact = pairs[:, 0] == pairs[:, 1]
    values = np.ones(len(table))
    values[~exact] = shingles.similarities(np.sort(pairs[~exact], axis=1))
    said = {
        "reason": _reasons(np.where(exact, 0, 1)),
        "value": as_arrow(values),
        "threshold": as_arrow(np.where(exact, 1.0, config.threshold)),
        "chained": as_arrow(values < config.threshold),
    }
    for name, column in said.items():
        table = table.append_column(name, column)
    return table.select(SCHEMA.names)


def _by_simhash(config: SimHashConfig, table: pa.Table, components: Components, hashes: UInt64) -> pa.Table:
    """The table with distance instead of similarity for documents that only SimHash connects to their keeper."""
    rows, keepers = as_numpy(table["row"]), as_numpy(table["keeper"])
    only = components.labels(rows) != components.labels(keepers)
    distance = distances(hashes, np.stack((rows, keepers), axis=1))
    reasons = table["reason"].combine_chunks().indices.to_numpy()
    changed = {
        "chained": as_arrow(as_numpy(table["chained"]) & ~(only & (distance <= config.max_distance))),
        "reason": _reasons(np.where(only, 2, reasons)),
        "value": as_arrow(np.where(only, distance, as_numpy(table["value"]))),
        "threshold": as_arrow(np.where(only, config.max_distance, as_numpy(table["threshold"]))),
    }
    for name, column in changed.items():
        table = table.set_column(table.schema.get_field_index(name), SCHEMA.field(name), column)
    return table.combine_chunks()


def _reasons(codes: Int64) -> pa.DictionaryArray:
    return pa.DictionaryArray.from_arrays(as_arrow(codes.astype(np.int32)), as_arrow([*REASONS]))


def _standing_for(copies: Int64, rows: Int64) -> Int64:
    """For each row, the first row of its exact copies, or the row itself."""
    order = np.argsort(copies[:, 1])
    place, copied = find(rows, copies[order, 1])
    standing = rows.copy()
    standing[copied] = copies[order[place[copied]], 0]
    return standing


def _spill_exact(ranges: int, shard: Shard, folder: Path) -> dict[str, Any]:
    """Write the hashes of a shard's documents, partitioned by range of their first half."""
    first, second = _hashes(shard.columns(["exact"])).T
    with PartWriter(folder, HASHES) as file:
        file.write(range_of(first, ranges), ranges, [first, second, np.arange(shard.size)])
    return file.counts


def _group_exact(spilled: Parts, starts: list[int], partition: int, folder: Path) -> dict[str, Any]:
    """Write (first row, other row) for the equal hashes of a partition."""
    columns = [(np.empty(0, np.uint64), np.empty(0, np.uint64), np.empty(0, np.int64))]
    for shard, (one, two, place) in spilled.read(partition):
        columns.append((one, two, place.astype(np.int64) + starts[shard]))
    first, second, rows = (np.concatenate(column) for column in zip(*columns, strict=True))
    members = group(first, np.arange(len(first))).members
    edges = _equal(rows[members], np.stack((first[members], second[members]), axis=1))
    np.save(folder / EDGES, edges)
    return {"copies": len(edges)}


def _hashes(table: pa.Table) -> UInt64:
    """The exact hashes as two columns of uint64."""
    packed = [_packed(column) for column in table["exact"].chunks if len(column)]
    return np.concatenate([np.empty((0, 2), np.uint64), *packed])


def _packed(column: pa.FixedSizeBinaryArray) -> UInt64:
    stored = np.frombuffer(column.buffers()[1], np.uint64).reshape(-1, 2)
    return stored[column.offset : column.offset + len(column)]


def _equal(members: Int64, hashes: UInt64) -> Int64:
    """(first row, other row) for rows with equal hashes."""
    if not len(members):
        return np.empty((0, 2), np.int64)
    order = np.lexsort((members, hashes[:, 1], hashes[:, 0]))
    ordered, rows = hashes[order], members[order]
    same = (ordered[1:] == ordered[:-1]).all(axis=1)
    head = np.concatenate(([0], np.where(same, 0, np.arange(1, len(rows)))))
    first = rows[np.maximum.accumulate(head)]
    return np.stack((first[1:][same], rows[1:][same]), axis=1)
