"""Chooses the document to keep of each cluster, piece by piece.

A piece brings the rows of some clusters together from all shards, as many as fit the memory limit. Pieces are small
whatever the corpus, as long as there are few.
"""

from __future__ import annotations

import functools
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import xxhash

from storage.shards.arrays import Int64, as_arrow, as_numpy
from storage.shards.parquet import parquet_writer, read_columns
from tasks.dedup.buckets import ranges_for
from tasks.dedup.clusters import Components
from tasks.dedup.config import DedupConfig
from tasks.dedup.corpus import Corpus, Shard
from tasks.dedup.keeping.preference import PREFERENCE, described, for_choice
from tasks.shards import map_shards
from tasks.stage.output import Output

BYTES_A_ROW = 800  # id, source, content and what is measured, with their sorted copies
ROWS, REMOVED = "rows.arrow", "removed.parquet"
CODES = pa.dictionary(pa.int32(), pa.string())  # sources are few
REMOVED_SCHEMA = pa.schema(
    [("row", pa.int64()), ("keeper", pa.int64()), ("source", CODES), ("kept", pa.string()), ("kept_source", CODES)]
)


def choose_keepers(config: DedupConfig, corpus: Corpus, components: Components, memory: int, out: Output) -> pa.Table:
    """The rows to remove, ascending: all rows of all components except the kept one and those that an earlier dedup
    kept. Each comes with its source, the row kept in its place, and the id and source of that row.

    A document that an earlier dedup kept comes first. Otherwise the order of preference.py decides.
    """
    rows, labels = components.rows, components.labels(components.rows)
    if not len(rows):
        return REMOVED_SCHEMA.empty_table()
    pieces = ranges_for(len(rows), memory, BYTES_A_ROW)
    # Clusters in order, divided so that all pieces have about the same number of rows
    piece_of = (np.cumsum(np.bincount(labels)) - 1) * pieces // len(rows)
    split = list(corpus.split(rows))
    cuts = np.cumsum([len(local) for _, local in split[:-1]], dtype=np.int64)
    jobs = [(*job, mine, piece_of[mine]) for job, mine in zip(split, np.split(labels, cuts), strict=True)]
    # Named after the clusters, which the edges of SimHash change
    name = f"{xxhash.xxh3_64_hexdigest(rows.tobytes() + labels.tobytes())}-{pieces}"
    describe = functools.partial(_describe, config, corpus, pieces)
    found = map_shards(describe, jobs, out, f"clusters-{name}", releases_gil=True)
    choose = functools.partial(_choose, [str(shard.folder / ROWS) for shard in found])
    chosen = map_shards(choose, range(pieces), out, f"chosen-{name}", "pieces", releases_gil=True)
    tables = [read_columns(piece.folder / REMOVED) for piece in chosen]
    return pa.concat_tables(tables).unify_dictionaries().combine_chunks().sort_by("row")


def _describe(
    config: DedupConfig, corpus: Corpus, pieces: int, job: tuple[Shard, Int64, Int64, Int64], folder: Path
) -> dict[str, Any]:
    """Write what the choice needs to know about some documents of a shard: a batch for each piece, of its rows."""
    shard, local, labels, piece_of = job
    order = np.argsort(piece_of, kind="stable")
    table = described(config, corpus, local + shard.start).append_column("cluster", as_arrow(labels))
    (batch,) = table.take(as_arrow(order)).combine_chunks().to_batches()
    ends = np.searchsorted(piece_of[order], np.arange(pieces), "right").tolist()
    with pa.OSFile(str(folder / ROWS), "wb") as file, pa.ipc.new_file(file, batch.schema) as writer:
        for start, end in itertools.pairwise([0, *ends]):
            writer.write_batch(batch.slice(start, end - start))
    return {"documents": len(local)}


def _choose(described: list[str], piece: int, folder: Path) -> dict[str, Any]:
    """Write the rows to remove of one piece."""
    rows = pa.Table.from_batches([_read(path, piece) for path in described]).combine_chunks()
    table = for_choice(rows).sort_by([("cluster", "ascending"), *PREFERENCE])
    _, first, member_of = np.unique(as_numpy(table["cluster"]), return_index=True, return_inverse=True)
    keeper = first[member_of]  # as an index of the table
    removed = as_arrow((keeper != np.arange(len(table))) & (as_numpy(table["earlier"]) == 0))
    kept = table.take(as_arrow(keeper).filter(removed))
    table = table.filter(removed)
    columns = [table["row"], kept["row"], table["source"].cast(CODES), kept["id"], kept["source"].cast(CODES)]
    with parquet_writer(folder / REMOVED, REMOVED_SCHEMA) as writer:
        writer.write_table(pa.table(columns, schema=REMOVED_SCHEMA))
    return {"removed": len(table)}


def _read(path: str, piece: int) -> pa.RecordBatch:
    with pa.OSFile(path) as file:
        return pa.ipc.open_file(file).get_batch(piece)
