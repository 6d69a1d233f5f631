"""The table of duplicates: which documents, of which one, how similar, by which method. Nothing is written yet."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from storage.shards.arrays import Int64, UInt64
from tasks.dedup.buckets import grouped, ranges_needed, spill
from tasks.dedup.clusters import Components, choose_keepers, unique_edges
from tasks.dedup.config import DedupConfig, SimHashConfig
from tasks.dedup.corpus import Corpus, Shard
from tasks.dedup.near_duplicates.candidates import Candidates
from tasks.dedup.near_duplicates.large_buckets import join_large_buckets
from tasks.dedup.near_duplicates.simhash import distances, simhash_edges, simhashes
from tasks.dedup.near_duplicates.verify import Shingles
from tasks.shards import map_shards
from tasks.stage.output import Output

EXACT, NEAR, SIMHASH = REASONS = ("exact_duplicate", "near_duplicate", "simhash_duplicate")
CHAINED = ", through documents between them"
SCHEMA = pa.schema(
    [("row", pa.int64()), ("keeper", pa.int64()), ("id", pa.string()), ("source", pa.string()), ("reason", pa.string()),
     ("value", pa.float64()), ("threshold", pa.float64()), ("detail", pa.string()), ("kept", pa.string()),
     ("kept_source", pa.string())]
)  # fmt: skip


def find_duplicates(config: DedupConfig, corpus: Corpus, out: Output) -> pa.Table:
    """The rows to remove, ascending, with their ledger columns, and the id and source of the document kept for each."""
    memory = out.runtime.data.working_memory
    copies = exact_copies(corpus, memory, out)
    shingles = Shingles(config.sketch, corpus, out)
    near = near_edges(config, corpus, copies, shingles, memory, out)
    joined = unique_edges([copies, near])
    if config.simhash is None:
        return _judge(config, corpus, Components(joined), copies, shingles)
    hashes = simhashes(config.sketch, corpus, out)
    close = simhash_edges(config.simhash, hashes, np.unique(copies[:, 1]))
    out.count(close_by_simhash=len(close))
    table = _judge(config, corpus, Components(unique_edges([joined, close])), copies, shingles)
    return _by_simhash(config.simhash, table, Components(joined), hashes)


def exact_copies(corpus: Corpus, memory: int, out: Output) -> Int64:
    """(first row, other row) for each document that equals a document of a lower row after normalisation, by the
    128-bit xxh3 hash of the text."""
    ranges = ranges_needed(corpus.size, memory)
    work = functools.partial(_spill_exact, ranges)
    spilled = map_shards(work, corpus.shards, out, f"exact-keys-{ranges}", releases_gil=True)
    starts = [shard.start for shard in corpus.shards]
    found = []
    for partition in range(ranges):
        members = np.sort(grouped(spilled, starts, partition).members)
        if len(members):
            found.append(_equal(members, _hashes(corpus.columns(members, ["exact"]))))
    return unique_edges(found)


def near_edges(
    config: DedupConfig, corpus: Corpus, copies: Int64, shingles: Shingles, memory: int, out: Output
) -> Int64:
    """Verified edges between documents that are not copies of one another."""
    candidates = Candidates(config, corpus, np.unique(copies[:, 1]), memory, out)
    pairs, large_buckets = candidates.pairs()
    verified = pairs[shingles.similarities(pairs) >= config.threshold]
    large = join_large_buckets(candidates, large_buckets, Components(verified), shingles)
    edges = unique_edges([verified, large.edges])
    out.count(candidates=len(pairs) + large.candidates, verified=len(edges), buckets_cut_short=large.cut_short)
    if large.cut_short:
        out.note(f"{large.cut_short:,} buckets were too large to compare completely")
    return edges


def _judge(config: DedupConfig, corpus: Corpus, components: Components, copies: Int64, shingles: Shingles) -> pa.Table:
    """The rows of each component except its keeper, with reasons. Rows of earlier artifacts are never removed."""
    chosen = choose_keepers(config, corpus, components)
    rows, keepers = chosen["row"].to_numpy(), chosen["keeper"].to_numpy()
    doomed = np.flatnonzero((rows != keepers) & ~corpus.is_earlier(rows))
    rows, keepers = rows[doomed], keepers[doomed]
    # An exact copy has the shingles of the row that represented it in the comparison, and so its similarity
    pairs = np.stack((_standing_for(copies, rows), _standing_for(copies, keepers)), axis=1)
    exact = pairs[:, 0] == pairs[:, 1]
    values = np.ones(len(rows))
    values[~exact] = shingles.similarities(np.sort(pairs[~exact], axis=1))
    chained = values < config.threshold
    kept = chosen.take(pa.array(np.searchsorted(chosen["row"].to_numpy(), keepers)))
    suffix = pa.array(np.where(chained, CHAINED, ""))
    columns = [
        pa.array(rows),
        pa.array(keepers),
        chosen["id"].take(pa.array(doomed)),
        chosen["source"].take(pa.array(doomed)),
        pa.array(np.where(exact, EXACT, NEAR)),
        pa.array(values),
        pa.array(np.where(exact, 1.0, config.threshold)),
        pc.binary_join_element_wise("duplicate_of ", kept["id"], suffix, ""),
        kept["id"],
        kept["source"],
    ]
    return pa.table(columns, schema=SCHEMA).combine_chunks()


def _by_simhash(config: SimHashConfig, table: pa.Table, components: Components, hashes: UInt64) -> pa.Table:
    """The table with distance instead of similarity for documents that only SimHash connects to their keeper."""
    rows, keepers = table["row"].to_numpy(), table["keeper"].to_numpy()
    only = components.labels(rows) != components.labels(keepers)
    distance = distances(hashes, np.stack((rows, keepers), axis=1))
    plain = pc.replace_substring(table["detail"], CHAINED, "").to_numpy()
    changed = {
        "detail": np.where(only & (distance <= config.max_distance), plain, table["detail"].to_numpy()),
        "reason": np.where(only, SIMHASH, table["reason"].to_numpy()),
        "value": np.where(only, distance, table["value"].to_numpy()),
        "threshold": np.where(only, config.max_distance, table["threshold"].to_numpy()),
    }
    for name, values in changed.items():
        table = table.set_column(table.schema.get_field_index(name), SCHEMA.field(name), pa.array(values))
    return table.combine_chunks()


def _standing_for(copies: Int64, rows: Int64) -> Int64:
    """For each row, the first row of its exact copies, or the row itself."""
    if not len(copies):
        return rows
    order = np.argsort(copies[:, 1])
    place = np.minimum(np.searchsorted(copies[order, 1], rows), len(order) - 1)
    found = copies[order[place], 1] == rows
    return np.where(found, copies[order[place], 0], rows)


def _spill_exact(ranges: int, shard: Shard, folder: Path) -> dict[str, Any]:
    hashes = _hashes(shard.columns(["exact"]))
    return spill(folder, [np.ascontiguousarray(hashes[:, 0])], np.arange(shard.size, dtype=np.uint32), ranges)


def _hashes(table: pa.Table) -> UInt64:
    """The exact hashes as two columns of uint64."""
    packed = [_packed(column) for column in table["exact"].chunks if len(column)]
    return np.concatenate([np.empty((0, 2), np.uint64), *packed])


def _packed(column: pa.FixedSizeBinaryArray) -> UInt64:
    stored = np.frombuffer(column.buffers()[1], np.uint64).reshape(-1, 2)
    return stored[column.offset : column.offset + len(column)]


def _equal(members: Int64, hashes: UInt64) -> Int64:
    order = np.lexsort((members, hashes[:, 1], hashes[:, 0]))
    ordered, rows = hashes[order], members[order]
    same = (ordered[1:] == ordered[:-1]).all(axis=1)
    head = np.concatenate(([0], np.where(same, 0, np.arange(1, len(rows)))))
    first = rows[np.maximum.accumulate(head)]
    return np.stack((first[1:][same], rows[1:][same]), axis=1)
