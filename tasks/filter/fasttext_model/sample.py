"""Documents of the pipeline as examples, chosen by the hash of their ID, so that order doesn't matter.

The first pass reads IDs and sources, the second only the row groups with a chosen document.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from storage.artifact import Artifact
from storage.errors import ConfigError
from storage.shards.documents import read_batches


class Sample(NamedTuple):
    """A chosen document: its ID, and the beginning of its text."""

    id: str
    text: str


def draw(identity: str, purpose: str) -> float:
    """A number in [0, 1) that depends only on the ID and the purpose."""
    return xxhash.xxh3_64_intdigest(f"{purpose}\n{identity}".encode()) / 2.0**64


def sample_documents(
    documents: Artifact, sources: Collection[str], size: int, characters: int, *, others: bool = False
) -> list[Sample]:
    """At most `size` documents of these sources (with `others`, of all other sources), the first `characters` of each.

    Raises ConfigError for a source without documents.
    """
    shards = documents.files("*.parquet")
    # A heap of (−draw, ID, shard, row), whose head is the first to be replaced
    chosen: list[tuple[float, str, int, int]] = []
    seen: set[str] = set()
    met: set[str] = set()
    for number, shard in enumerate(shards):
        for start, batch in read_batches(shard, ["id", "source"]):
            met.update(pc.unique(batch["source"]).to_pylist())
            mask = pc.is_in(batch["source"], value_set=pa.array(sorted(sources), pa.string()))
            rows = pc.indices_nonzero(pc.invert(mask) if others else mask)
            for row, identity in zip(rows.to_pylist(), batch["id"].take(rows).to_pylist(), strict=True):
                entry = (-draw(identity, "sample"), identity, number, start + row)
                if identity in seen or (len(chosen) == size and entry <= chosen[0]):
                    continue
                seen.add(identity)
                if len(chosen) < size:
                    heapq.heappush(chosen, entry)
                else:
                    seen.discard(heapq.heappushpop(chosen, entry)[1])
    missing = sorted(set(sources) - met)
    if missing:
        raise ConfigError(
            f"No document is from {', '.join(missing)}. The sources are {', '.join(sorted(met))}.",
            "List sources of the filter's input.",
        )
    samples: list[Sample] = []
    for number, shard in enumerate(shards):
        held = sorted(row for _, _, place, row in chosen if place == number)
        for start, batch in read_batches(shard, ["id", "text"], held) if held else ():
            rows = pa.array([row - start for row in held if start <= row < start + batch.num_rows], pa.int64())
            texts = pc.utf8_slice_codeunits(batch["text"].take(rows), 0, characters)
            samples += map(Sample, batch["id"].take(rows).to_pylist(), texts.to_pylist())
    return sorted(samples)
