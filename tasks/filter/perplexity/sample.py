"""Samples of documents for training and for percentiles, by the hash of their ID.

A sample thus depends neither on the order nor on the number of shards, and a larger sample includes a smaller one.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from storage.artifact import Artifact
from storage.errors import SourceError
from storage.shards.arrays import Int64, UInt64
from storage.shards.documents import read_batches
from tasks.filter.perplexity.config import PerplexityModelConfig
from tasks.shards import map_shards
from tasks.stage.output import Output

RANKS = "ranks.npy"
TRAINING, USUAL = 1, 2  # hash seeds: the two samples are independent


class Sample(NamedTuple):
    """Texts to train on, and the rows of each shard whose perplexity gives the percentiles."""

    training: pa.StringArray
    usual: list[Int64]


def choose(config: PerplexityModelConfig, documents: Artifact, out: Output) -> Sample:
    """Draw the samples of the config. Takes memory for the texts to train on, and 24 bytes per document of the corpus.

    Raises SourceError for a source without documents.
    """
    shards = documents.files("*.parquet")
    ranked = map_shards(functools.partial(_rank_shard, config.sources), shards, out, "rank", releases_gil=True)
    missing = set(config.sources).difference(*(shard.counts["sources"] for shard in ranked))
    if missing:
        raise SourceError(
            f"No document is from {', '.join(sorted(missing))}.",
            "List sources of the profile's download in `sources` of the perplexity model.",
        )
    sizes = [shard.counts["documents"] for shard in ranked]
    ranks = np.concatenate([np.load(shard.folder / RANKS) for shard in ranked])
    chosen = _by_bytes(ranks["training"], ranks["bytes"], config.sample_bytes)
    usual = np.argsort(ranks["usual"], kind="stable")[: config.percentile_documents]
    return Sample(_read(shards, sizes, chosen), _by_shard(sizes, np.sort(usual)))


def _rank_shard(sources: Sequence[str], shard: Path, folder: Path) -> dict[str, object]:
    """Write each document's rank in both samples, and its size if it may be trained on."""
    parts = [np.empty(0, [("training", np.uint64), ("usual", np.uint64), ("bytes", np.int64)])]
    seen: set[str] = set()
    for _, batch in read_batches(shard, ["id", "source", "text"]):
        ids = batch["id"].to_pylist()
        part = np.empty(len(ids), parts[0].dtype)
        part["training"] = [xxhash.xxh3_64_intdigest(identity.encode(), TRAINING) for identity in ids]
        part["usual"] = [xxhash.xxh3_64_intdigest(identity.encode(), USUAL) for identity in ids]
        part["bytes"] = pc.binary_length(batch["text"]).to_numpy()
        if sources:
            part["bytes"][~pc.is_in(batch["source"], pa.array(sources)).to_numpy(zero_copy_only=False)] = 0
        seen.update(batch["source"].unique().to_pylist())
        parts.append(part)
    ranks = np.concatenate(parts)
    np.save(folder / RANKS, ranks)
    return {"documents": len(ranks), "sources": sorted(seen)}


def _by_bytes(ranks: UInt64, sizes: Int64, limit: int) -> Int64:
    """Positions of documents by rank, as many as fit into `limit` bytes."""
    places = np.flatnonzero(sizes)
    places = places[np.argsort(ranks[places], kind="stable")]
    return places[: np.searchsorted(np.cumsum(sizes[places]), limit, "right")]


def _by_shard(sizes: Sequence[int], places: Int64) -> list[Int64]:
    """Ascending positions in the corpus as rows of each shard."""
    starts = np.cumsum([0, *sizes])
    cuts = np.searchsorted(places, starts)
    return [places[cuts[n] : cuts[n + 1]] - starts[n] for n in range(len(sizes))]


def _read(shards: Sequence[Path], sizes: Sequence[int], places: Int64) -> pa.StringArray:
    """The texts at these positions of the corpus, in this order."""
    parts = [pa.array([], pa.string())]
    for shard, rows in zip(shards, _by_shard(sizes, np.sort(places)), strict=True):
        parts += read_rows(shard, rows)
    texts = pa.concat_arrays(parts)
    return texts.take(pa.array(np.argsort(np.argsort(places))))


def read_rows(shard: Path, rows: Int64) -> list[pa.StringArray]:
    """The texts of a shard's rows, given in ascending order: an array per row group that has any."""
    texts = []
    for start, batch in read_batches(shard, ["text"], holding=rows.tolist()):
        local = rows[np.searchsorted(rows, start) : np.searchsorted(rows, start + batch.num_rows)] - start
        texts.append(batch["text"].take(pa.array(local)))
    return texts
