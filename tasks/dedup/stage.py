"""The dedup stage: sketch in parallel, compare in one place, write shard by shard."""

from __future__ import annotations

import functools
from collections import Counter, defaultdict
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq

from storage.artifact import Artifact
from storage.documents import Verdict, read_documents, shard_name, write_documents, write_ledger
from storage.errors import AccountingError
from tasks.dedup.candidates import bands, candidate_pairs, expected_recall
from tasks.dedup.clusters import Entry, keepers
from tasks.dedup.config import DedupConfig
from tasks.dedup.sketch import SIGNATURES, SKETCHES, jaccard, normalise, shingles, sketch_shard
from tasks.output import Output
from tasks.shards import ShardResult, map_shards
from tasks.stage import stage

CURVE = (0.5, 0.6, 0.7, 0.8, 0.9)


@dataclass(frozen=True)
class Corpus:
    """All sketches, row by row; `places` are (shard, row in the shard)."""

    entries: list[Entry]
    sources: list[str]
    exact: list[bytes]
    places: list[tuple[int, int]]
    signatures: npt.NDArray[np.uint32]


@stage(version=1)
def dedup(config: DedupConfig, documents: Artifact, out: Output) -> None:
    """Remove exact and near-duplicates, keeping one of each cluster.

    Exact: equal after normalisation. Near: MinHash LSH candidates (datasketch), verified by the exact Jaccard
    similarity of their shingles; clusters are connected components over verified edges only. Kept is the longest,
    then the most trusted source, then the smallest id. The ledger names for each removed document the one kept.
    """
    shards = documents.files("*.parquet")
    sketched = map_shards(functools.partial(sketch_shard, config), shards, out, "sketch")
    corpus = _gather(config, sketched)
    removed = _find_duplicates(config, corpus, shards, out)
    _check_sources(config, corpus, removed)
    by_shard: dict[int, dict[int, Verdict]] = defaultdict(dict)
    for row, verdict in removed.items():
        shard, place = corpus.places[row]
        by_shard[shard][place] = verdict
    for number, path in enumerate(shards):
        by_place = by_shard[number]
        kept = [document for place, document in enumerate(read_documents(path)) if place not in by_place]
        write_documents(out.path / "documents" / shard_name(number), kept)
        write_ledger(out.path / "ledger" / shard_name(number), (by_place[place] for place in sorted(by_place)))
        out.progress(number + 1, len(shards), "shards", "write")
    reasons = Counter(verdict.reason for verdict in removed.values())
    out.account(documents_in=len(corpus.entries), kept=len(corpus.entries) - len(removed), removed=reasons)
    _tabulate(config, corpus, removed, out)


def _gather(config: DedupConfig, sketched: list[ShardResult]) -> Corpus:
    rank = {name: number for number, name in enumerate(config.source_order)}
    corpus = Corpus([], [], [], [], np.concatenate([np.load(shard.folder / SIGNATURES) for shard in sketched]))
    for number, shard in enumerate(sketched):
        for place, row in enumerate(pq.read_table(shard.folder / SKETCHES).to_pylist()):
            source_rank = (rank.get(row["source"], len(rank)), row["source"])
            corpus.entries.append(Entry(len(corpus.entries), row["length"], source_rank, row["id"]))
            corpus.sources.append(row["source"])
            corpus.exact.append(row["exact"])
            corpus.places.append((number, place))
    return corpus


def _find_duplicates(config: DedupConfig, corpus: Corpus, shards: list[Path], out: Output) -> dict[int, Verdict]:
    removed: dict[int, Verdict] = {}
    groups: dict[bytes, list[int]] = defaultdict(list)
    for entry, exact in zip(corpus.entries, corpus.exact, strict=True):
        groups[exact].append(entry.row)
    edges = [pair for group in groups.values() for pair in pairwise(group)]
    for row, kept in keepers(corpus.entries, edges).items():
        removed[row] = _verdict(corpus, row, kept, "exact_duplicate", 1.0, 1.0)
    remaining = [entry for entry in corpus.entries if entry.row not in removed]
    rows = [entry.row for entry in remaining]
    count, height = bands(config)
    local = candidate_pairs(corpus.signatures[rows], [entry.id for entry in remaining], count, height, config)
    candidates = {(rows[first], rows[second]) for first, second in local}
    similar = _verify(config, corpus, candidates, shards, out)
    best: dict[int, float] = {}
    for (first, second), value in similar.items():
        best[first], best[second] = max(best.get(first, 0), value), max(best.get(second, 0), value)
    for row, kept in keepers(remaining, similar).items():
        removed[row] = _verdict(corpus, row, kept, "near_duplicate", best[row], config.threshold)
    out.count(candidates=len(candidates), verified=len(similar), bands=count, rows_per_band=height)
    return removed


def _verify(
    config: DedupConfig, corpus: Corpus, candidates: set[tuple[int, int]], shards: list[Path], out: Output
) -> dict[tuple[int, int], float]:
    """The exact Jaccard similarity of every candidate pair that reaches the threshold."""
    wanted: dict[int, dict[int, int]] = defaultdict(dict)
    for row in {row for pair in candidates for row in pair}:
        shard, place = corpus.places[row]
        wanted[shard][place] = row
    sets: dict[int, frozenset[int]] = {}
    for number, shard in enumerate(sorted(wanted)):
        for place, document in enumerate(read_documents(shards[shard])):
            if place in wanted[shard]:
                sets[wanted[shard][place]] = frozenset(shingles(normalise(document.text), config.ngram))
        out.progress(number + 1, len(wanted), "shards", "verify")
    values = {pair: jaccard(sets[pair[0]], sets[pair[1]]) for pair in sorted(candidates)}
    return {pair: value for pair, value in values.items() if value >= config.threshold}


def _verdict(corpus: Corpus, row: int, kept: int, reason: str, value: float, threshold: float) -> Verdict:
    detail = f"duplicate_of {corpus.entries[kept].id}"
    return Verdict(corpus.entries[row].id, corpus.sources[row], "removed", reason, value, threshold, detail)


def _check_sources(config: DedupConfig, corpus: Corpus, removed: dict[int, Verdict]) -> None:
    total = Counter(corpus.sources)
    lost = Counter(verdict.source for verdict in removed.values())
    too_much = [name for name in total if lost[name] > config.max_removed_share_per_source * total[name]]
    if too_much:
        listed = ", ".join(f"{name} lost {lost[name]:,} of {total[name]:,}" for name in sorted(too_much))
        raise AccountingError(
            f"Dedup would remove too much of a source: {listed}.",
            "Look at the source for repeated boilerplate, or raise dedup.max_removed_share_per_source.",
        )


def _tabulate(config: DedupConfig, corpus: Corpus, removed: dict[int, Verdict], out: Output) -> None:
    total = Counter(corpus.sources)
    by_reason = Counter((verdict.source, verdict.reason) for verdict in removed.values())
    rows: list[dict[str, Any]] = [
        {
            "source": name,
            "in": total[name],
            "exact": by_reason[name, "exact_duplicate"],
            "near": by_reason[name, "near_duplicate"],
            "kept": total[name] - by_reason[name, "exact_duplicate"] - by_reason[name, "near_duplicate"],
        }
        for name in sorted(total)
    ]
    out.table("Removed by source", rows)
    count, height = bands(config)
    curve = [{"similarity": s, "expected recall": f"{expected_recall(s, count, height):.3f}"} for s in CURVE]
    out.table(f"{count} bands of {height} rows", curve)
