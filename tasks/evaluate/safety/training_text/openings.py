"""Chooses beginnings of documents by hash, equally many per source, from training or held-out tokens.

A document is chosen by the hash of its first tokens and the seed, so that neither the order nor the number of shards
matters, and only one of the documents that begin alike is chosen. All beginnings are hashed, a shard at a time, and
only the chosen ones are kept.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from storage.shards.arrays import Int64, UInt64
from storage.shards.token_sources import SUFFIX, source_runs
from storage.shards.tokens import TokenShard, open_tokens

UNNAMED = "all"  # the source of shards that don't name any
BLOCK = 1 << 16  # documents hashed at a time
_ODD = np.uint64(0x9E3779B97F4A7C15)  # 2⁶⁴ divided by the golden ratio (Knuth, TAOCP 6.4)


@dataclass(frozen=True)
class Opening:
    """The first tokens of a document. `id` is their hash, as 16 hexadecimal digits."""

    id: str
    source: str
    ids: list[int]


@dataclass(frozen=True)
class Openings:
    """The chosen beginnings, by source and id, and the number of documents of each source and of long enough ones."""

    chosen: list[Opening]
    long_enough: dict[str, int]
    documents: dict[str, int]


def choose(paths: Sequence[Path], *, tokens: int, hashed: int, number: int, seed: int, digest: str) -> Openings:
    """The first `tokens` tokens of `number` documents of each source that are that long. The hash of their first
    `hashed` tokens decides which.

    Raises TokenizerMismatch for shards of another tokenizer, DamagedArtifact for damaged ones.
    """
    best: dict[str, list[tuple[int, int, int]]] = {}  # by source, a heap: (−hash, shard, document)
    taken: dict[str, set[int]] = {}
    long_enough: dict[str, int] = {}
    documents: dict[str, int] = {}
    shards = [open_tokens(path, tokenizer_digest=digest) for path in paths]
    for place, (path, shard) in enumerate(zip(paths, shards, strict=True)):
        names, source = _sources(path, shard)
        lengths = np.diff(shard.starts.astype(np.int64)) - 1  # without the token that ends it
        for number_of, name in enumerate(names):
            mine = np.flatnonzero(source == number_of)
            documents[name] = documents.get(name, 0) + len(mine)
            mine = mine[lengths[mine] >= tokens]
            long_enough[name] = long_enough.get(name, 0) + len(mine)
            heap, known = best.setdefault(name, []), taken.setdefault(name, set())
            for start in range(0, len(mine), BLOCK):
                block = mine[start : start + BLOCK]
                hashes = _hashes(shard, block, min(hashed, tokens), seed)
                order = np.argsort(hashes, kind="stable")[: 4 * number]
                for row in [*order.tolist(), *_others(hashes, order, number)]:
                    _offer(heap, known, int(hashes[row]), place, int(block[row]), number)
    chosen = []
    for name in sorted(best):
        for negative, place, document in sorted(best[name], reverse=True):
            begin = int(shards[place].starts[document])
            ids = shards[place].ids[begin : begin + tokens].tolist()
            chosen.append(Opening(f"{-negative:016x}", name, ids))
    return Openings(chosen, dict(sorted(long_enough.items())), dict(sorted(documents.items())))


def _others(hashes: UInt64, order: Int64, number: int) -> list[int]:
    """The rest of a block in order, if too many of the first ones are alike to fill the choice."""
    if len(order) == len(hashes) or len(np.unique(hashes[order])) >= number:
        return []
    return np.argsort(hashes, kind="stable")[len(order) :].tolist()


def _offer(
    heap: list[tuple[int, int, int]], known: set[int], hashed: int, shard: int, document: int, number: int
) -> None:
    if hashed in known or (len(heap) == number and -heap[0][0] <= hashed):
        return
    known.add(hashed)
    heapq.heappush(heap, (-hashed, shard, document))
    if len(heap) > number:
        known.discard(-heapq.heappop(heap)[0])


def _hashes(shard: TokenShard, documents: Int64, tokens: int, seed: int) -> UInt64:
    """A 64-bit hash of the first tokens of each document."""
    begins = shard.starts[documents].astype(np.int64)
    hashes = np.full(len(documents), np.uint64(seed) + _ODD, np.uint64)
    for place in range(tokens):
        hashes = _mixed((hashes ^ shard.ids[begins + place].astype(np.uint64)) * _ODD)
    return hashes


def _mixed(hashes: UInt64) -> UInt64:
    """The finaliser of SplitMix64 (Steele et al. 2014): every bit depends on every other one."""
    hashes = (hashes ^ (hashes >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    hashes = (hashes ^ (hashes >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return hashes ^ (hashes >> np.uint64(31))


def _sources(path: Path, shard: TokenShard) -> tuple[list[str], Int64]:
    """The names of a shard's sources, and that of each document as an index into them."""
    documents = shard.header.documents
    if not path.with_suffix(SUFFIX).is_file():
        return [UNNAMED], np.zeros(documents, np.int64)
    names, runs, borders = source_runs(path, shard)
    starts = shard.starts[:-1].astype(np.int64)
    return names, runs[np.searchsorted(borders, starts, side="right") - 1] if documents else np.empty(0, np.int64)
