"""Compares the documents of a cluster with one another, in order of preference.

As in the code of Abbas et al. 2023 (`semdedup.py`), the documents of a cluster are ordered by their distance from its
centre, the farthest first. The signal of each is its highest cosine to one before it, whether or not that one is kept,
so the signal doesn't depend on a threshold.

Takes 80 bytes of memory for each document, and one cluster for each worker.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from storage.artifact import Artifact
from storage.shards.arrays import Float32, Float64, Int64, UInt64
from storage.shards.documents import read_batches
from storage.shards.parquet import parquet_writer
from tasks.filter.classifier.scorer import one_thread
from tasks.filter.semantic.clusters import cosines, find_centres, nearest
from tasks.filter.semantic.config import SemanticConfig
from tasks.filter.semantic.embed import TOKENS
from tasks.filter.side_files import FILE, IDS, IdDigest, check_aligned, read_signals
from tasks.shards import ShardResult, collect, map_shards
from tasks.stage.output import Output

IN_CLUSTER = 5000  # documents, by default
DECIMALS = 5  # of a cosine: the precision of float16 allows no more
ROWS = 1024  # documents compared with all before them at a time
RESULT, CENTRES = "found.npz", "centres.npy"
SCHEMA = pa.schema(
    [("semantic_duplicate", pa.float64()), ("semantic_cluster", pa.int64()), ("semantic_of", pa.string())]
)
SHOWN = (0.99, 0.98, 0.97, 0.96, 0.95, 0.93, 0.9, 0.85, 0.8)


class Vectors(NamedTuple):
    """The embeddings of all documents, one row each: the file of each shard, and its first row."""

    files: list[Path]
    starts: Int64

    def read(self, rows: Int64) -> Float32:
        """The embeddings of some rows, scaled to length 1."""
        width = np.load(self.files[0], mmap_mode="r").shape[1] if self.files else 0
        vectors = np.empty((len(rows), width), np.float32)
        shard = np.searchsorted(self.starts, rows, "right") - 1
        for number in np.unique(shard).tolist():
            mine = shard == number
            vectors[mine] = np.load(self.files[number], mmap_mode="r")[rows[mine] - self.starts[number]]
        return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)


class Similarities(NamedTuple):
    """For each row the beginning of the document's id, its cluster, its highest cosine to one before it, and the row of
    that one (-1 for none)."""

    ids: UInt64
    clusters: Int64
    values: Float64
    others: Int64


def find_semantic_duplicates(config: SemanticConfig, documents: Artifact, embeddings: Artifact, out: Output) -> None:
    """See the stage `semantic`."""
    shards = documents.files("*.parquet")
    read = map_shards(_read_ids, list(zip(shards, embeddings.files("*.parquet"), strict=True)), out, "ids")
    starts = np.cumsum([0, *(shard.counts["documents"] for shard in read)])
    ids, rows = _joined(read, "ids", np.uint64), np.flatnonzero(_joined(read, "known", np.bool_))
    vectors = Vectors(embeddings.files("*.npy"), starts[:-1])
    _cluster(config, vectors, rows[np.lexsort((rows, ids[rows]))][: config.sample], len(rows), out)
    jobs = np.split(rows, np.searchsorted(rows, starts[1:-1])) if len(shards) else []
    assigned = map_shards(functools.partial(_assign, vectors, out.path / CENTRES), jobs, out, "assign")
    clusters, cosine = _joined(assigned, "clusters", np.int64), _joined(assigned, "cosines", np.float64)
    order = np.lexsort((rows, ids[rows], cosine if config.keep == "farthest" else -cosine, clusters))
    parts = np.split(order, np.flatnonzero(np.diff(clusters[order])) + 1) if len(order) else []
    compared = map_shards(
        functools.partial(_compare, vectors), [rows[part] for part in parts], out, "compare", "clusters"
    )
    similar = Similarities(ids, np.full(len(ids), -1), np.zeros(len(ids)), np.full(len(ids), -1))
    similar.clusters[rows] = clusters
    for part, result in zip(parts, compared, strict=True):
        with np.load(result.folder / RESULT) as stored:
            similar.values[rows[part]], similar.others[rows[part]] = stored["values"], stored["others"]
    written = [(shard, int(start)) for shard, start in zip(shards, starts, strict=False)]
    collect(map_shards(functools.partial(_write, similar), written, out, "write", releases_gil=True), FILE, out.path)
    out.count(measured=len(ids))
    _report(similar.values[rows], clusters, out)


def _cluster(config: SemanticConfig, vectors: Vectors, sample: Int64, documents: int, out: Output) -> None:
    """Write the centres of the clusters."""
    count = config.clusters or -(-documents // IN_CLUSTER)
    np.save(out.path / CENTRES, find_centres(vectors.read(sample), count, config.iterations, config.seed))


def _joined(results: Sequence[ShardResult], name: str, kind: Any) -> Any:
    return np.concatenate([np.empty(0, kind), *(np.load(result.folder / RESULT)[name] for result in results)])


def _read_ids(job: tuple[Path, Path], folder: Path) -> dict[str, Any]:
    shard, side_file = job
    digest = IdDigest()
    ids: list[int] = []
    for _, batch in read_batches(shard, ["id"]):
        digest.update(batch["id"])
        ids += [int(identity[:16], 16) for identity in batch["id"].to_pylist()]
    check_aligned(side_file, digest)
    parts = [batch[TOKENS].is_valid().to_numpy(zero_copy_only=False) for batch in read_signals(side_file, [TOKENS])]
    known = np.concatenate([np.empty(0, np.bool_), *parts])
    np.savez(folder / RESULT, ids=np.array(ids, np.uint64), known=known)
    return {"documents": len(ids)}


def _assign(vectors: Vectors, centres: Path, rows: Int64, folder: Path) -> dict[str, Any]:
    """Write the nearest centre, and its cosine, of each document of a shard that has an embedding."""
    clusters, values = nearest(vectors.read(rows), np.load(centres))
    np.savez(folder / RESULT, clusters=clusters, cosines=values.astype(np.float64).round(DECIMALS))
    return {}


def _compare(vectors: Vectors, rows: Int64, folder: Path) -> dict[str, Any]:
    """Write each document's highest cosine to one before it in the cluster, and the row of that one (the first, if
    several)."""
    read = vectors.read(rows)
    values, others = np.zeros(len(rows)), np.full(len(rows), -1)
    with one_thread("cpu"):
        for start in range(0, len(rows), ROWS):
            stop = min(start + ROWS, len(rows))
            block = cosines(read[start:stop], read[:stop]).double().numpy().round(DECIMALS)
            block[np.arange(start, stop)[:, None] <= np.arange(stop)] = -2.0
            best = block.argmax(axis=1)
            cosine = block[np.arange(len(best)), best]
            values[start:stop] = np.clip(cosine, 0, 1)
            others[start:stop] = np.where(cosine > 0, rows[best], -1)
    np.savez(folder / RESULT, values=values, others=others)
    return {}


def _write(similar: Similarities, job: tuple[Path, int], folder: Path) -> dict[str, Any]:
    shard, start = job
    digest = IdDigest()
    with parquet_writer(folder / FILE, SCHEMA, compression="zstd") as writer:
        for first, batch in read_batches(shard, ["id"]):
            rows = slice(start + first, start + first + len(batch))
            missing = similar.clusters[rows] < 0
            others = [f"{similar.ids[other]:016x}" if other >= 0 else "" for other in similar.others[rows].tolist()]
            columns = [
                pa.array(similar.values[rows], mask=missing),
                pa.array(similar.clusters[rows], mask=missing),
                pa.array(others, pa.string(), mask=missing),
            ]
            writer.write_batch(pa.record_batch(columns, SCHEMA))
            digest.update(batch["id"])
        writer.add_key_value_metadata({IDS: digest.hex()})
    return {}


def _report(values: Float64, clusters: Int64, out: Output) -> None:
    """Report how many documents each threshold would remove, and the sizes of clusters."""
    sizes = np.bincount(clusters) if len(clusters) else np.zeros(0, np.int64)
    out.count(clusters=int((sizes > 0).sum()), largest_cluster=int(sizes.max(initial=0)))
    out.table(
        "Documents by similarity",
        [
            {
                "max_similarity": threshold,
                "documents above": int((values > threshold).sum()),
                "share": round(float((values > threshold).mean()), 4) if len(values) else 0.0,
            }
            for threshold in SHOWN
        ],
    )
