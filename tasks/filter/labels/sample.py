"""The texts to label: documents chosen by the hash of their ID, from every source and every range of a score.

In a random sample, one text of a hundred would be toxic, and nine sources would drown the tenth. Documents are
therefore divided into strata by source and, if signals are given, by the rank of their score. Each stratum contributes
an equal share. Only one excerpt of whole sentences, chosen by hash, is shown of a document: nobody reads a book for a
label.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import chain, zip_longest
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from storage.artifact import Artifact
from storage.errors import ConfigError
from storage.shards.arrays import Float64
from storage.shards.documents import document_id, read_batches
from tasks.filter.fasttext_model.sample import draw
from tasks.filter.side_files import IdDigest, check_aligned, read_signals
from tasks.filter.toxicity.measure import pieces

RANKS = (0.01, 0.1, 0.9, 0.99)  # borders of the strata by score, as shares of all documents
Shard = tuple[Path, Path | None]  # documents, and the side file of their scores


class Entry(NamedTuple):
    """A document in a stratum's heap, whose head is the first to be replaced."""

    drawn: float  # negative, so that the smallest draws stay
    id: str
    shard: int
    row: int


class Item(NamedTuple):
    """An excerpt to label: its own ID, the ID and the source of its document, and its text."""

    id: str
    document: str
    source: str
    text: str


def sample_items(
    documents: Artifact, size: int, excerpt_bytes: int, signals: Artifact | None = None, score: str = ""
) -> list[Item]:
    """At most `size` excerpts of up to about `excerpt_bytes`, in an order that mixes the strata. `signals` are side
    files of exactly these documents, and `score` is one of their columns.

    Raises ConfigError for an unknown column, DamagedArtifact for signals of other documents.
    """
    files = documents.files("*.parquet")
    scores = signals.files("*.parquet") if signals is not None else [None] * len(files)
    shards: list[Shard] = list(zip_longest(files, scores))[: len(files)]
    borders = _borders(signals, score) if signals is not None else np.empty(0)
    strata: dict[tuple[str, int], list[Entry]] = defaultdict(list)
    for entry, source, value in chain.from_iterable(_entries(n, one, score) for n, one in enumerate(shards)):
        stratum = strata[source, int(np.searchsorted(borders, value))]
        if len(stratum) < size:
            heapq.heappush(stratum, entry)
        elif entry > stratum[0]:
            heapq.heapreplace(stratum, entry)
    chosen = {entry.id: (entry, source) for entry, source in _in_turns(strata, size)}
    items: dict[str, Item] = {}
    for number, (path, _) in enumerate(shards):
        rows = sorted(entry.row for entry, _ in chosen.values() if entry.shard == number)
        for start, batch in read_batches(path, ["id", "text"], rows) if rows else ():
            taken = pa.array([row - start for row in rows if start <= row < start + batch.num_rows], pa.int64())
            for identity, text in zip(*(batch[name].take(taken).to_pylist() for name in ("id", "text")), strict=True):
                excerpt = excerpt_of(identity, text, excerpt_bytes)
                item = Item(document_id(excerpt), identity, chosen[identity][1], excerpt)
                items.setdefault(item.id, item)
    return sorted(items.values(), key=lambda item: draw(item.document, "order of labels"))


def excerpt_of(identity: str, text: str, most: int) -> str:
    """Consecutive sentences of a text, chosen by its ID. A short piece only if all pieces are short."""
    parts = pieces(pa.array([text], pa.string()), most)[0].to_pylist()
    candidates = [part for part in parts if len(part) >= most / 3] or parts
    return str(candidates[int(draw(identity, "excerpt") * len(candidates))]).strip()


def _entries(number: int, shard: Shard, score: str) -> Iterator[tuple[Entry, str, float]]:
    """Yield every document of a shard with its source and its score, 0 if that is null or missing."""
    path, side_file = shard
    digest = IdDigest()
    values = iter(_scores(side_file, score)) if side_file else iter(())
    for start, batch in read_batches(path, ["id", "source"]):
        digest.update(batch["id"])
        names = zip(batch["id"].to_pylist(), batch["source"].to_pylist(), strict=True)
        for row, (identity, source) in enumerate(names, start):
            yield Entry(-draw(identity, "label"), identity, number, row), source, next(values, 0.0)
    if side_file:
        check_aligned(side_file, digest)


def _scores(side_file: Path, score: str) -> list[float]:
    scores: list[float] = []
    for batch in read_signals(side_file):
        if score not in batch.schema.names:
            raise ConfigError(f"The signals lack {score}.", f"Choose one of {', '.join(batch.schema.names)}.")
        scores += pc.fill_null(batch[score].cast(pa.float64()), 0.0).to_pylist()
    return scores


def _borders(signals: Artifact, score: str) -> Float64:
    """The scores at the borders of the strata, without repetitions."""
    values = [value for path in signals.files("*.parquet") for value in _scores(path, score)]
    return np.unique(np.quantile(np.array(values or [0.0]), RANKS))


def _in_turns(strata: dict[tuple[str, int], list[Entry]], size: int) -> list[tuple[Entry, str]]:
    """Take one document of each stratum in turn, until there are enough."""
    ordered: Sequence[list[tuple[Entry, str]]] = [
        [(entry, source) for entry in sorted(entries, reverse=True)] for (source, _), entries in sorted(strata.items())
    ]
    turns = chain.from_iterable(zip_longest(*ordered))
    return [entry for entry in turns if entry is not None][:size]
