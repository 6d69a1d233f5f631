"""Dedup after the sketches: find the duplicates, check each source's loss, write the kept documents, shard by shard."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from storage.artifact import Artifact
from storage.errors import AccountingError
from storage.shards.arrays import Bool, as_arrow, as_numpy
from storage.shards.documents import LEDGER_SCHEMA, Verdict, ledger_batches, read_batches, write_batches
from storage.shards.parquet import read_columns
from tasks.dedup.against import find_earlier
from tasks.dedup.config import DedupConfig
from tasks.dedup.corpus import Corpus, Shard
from tasks.dedup.duplicates import REASONS, find_duplicates
from tasks.dedup.near_duplicates.candidates import bands, expected_recall
from tasks.dedup.spans.find import cut_spans, find_spans
from tasks.dedup.spans.kinds import Kind, kinds_of
from tasks.shards import LazyShards, collect, map_shards
from tasks.stage.display.pages import markdown_table
from tasks.stage.output import Output

Removed = Counter[tuple[str, str]]  # documents by (source, reason)
Job = tuple[Shard, pa.Table, list[Path]]  # its rows to remove, its spans to cut by kind

CUTS = ("repeated_sentences", "repeated_line", "repeated_span")
COPIES_SCHEMA = pa.schema(
    [
        ("kept", pa.string()),
        ("kept_source", pa.string()),
        ("id", pa.string()),
        ("source", pa.string()),
        ("metadata", pa.string()),
        ("reason", pa.string()),
        ("value", pa.float64()),
    ]
)
SOURCES_SHOWN = 40
CHAINED = ", through documents between them"
CURVE = (0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95)


def remove_duplicates(config: DedupConfig, documents: Artifact, sketched: Artifact, out: Output) -> None:
    """The stage after the sketches. Raises AccountingError if a source would lose more than the config allows. Copies
    of documents that earlier runs kept don't count. If all documents are such copies, nothing is new, which isn't an
    error."""
    corpus = Corpus()
    corpus.add(documents, sketched)
    for name, (deduplicated, their_sketches) in find_earlier(config).items():
        corpus.add_earlier(deduplicated, their_sketches)
        out.uses[f"against {name}"] = deduplicated.origin
    duplicates = find_duplicates(config, corpus, out)
    total = corpus.sources()
    removed = _counted(duplicates, ["source", "reason"])
    ours = duplicates.filter(as_arrow(as_numpy(duplicates["keeper"]) < sum(shard.size for shard in corpus.own)))
    _check_sources(config, total, removed, _counted(ours, ["source", "reason"]))
    gone, memory = as_numpy(duplicates["row"]), out.runtime.data.working_memory
    kinds = kinds_of(config)
    found = [find_spans(config, kind, corpus, gone, memory, out) for kind in kinds]

    def job(number: int) -> Job:
        shard = corpus.own[number]
        first, last = np.searchsorted(gone, (shard.start, shard.start + shard.size))
        # `take` and not a slice, with which the whole table is sent to a worker
        return shard, duplicates.take(as_arrow(np.arange(first, last))), [paths[number] for paths in found]

    jobs = LazyShards(job, len(corpus.own))
    written = map_shards(functools.partial(_write_shard, kinds), jobs, out, "write", releases_gil=True)
    collect(written, "documents.parquet", out.path / "documents")
    collect(written, "ledger.parquet", out.path / "ledger")
    collect(written, "copies.parquet", out.path / "copies")
    for shard in written:
        removed.update({(source, reason): count for source, reason, count in shard.counts["emptied"]})
    reasons: Counter[str] = Counter()
    for (_, reason), count in removed.items():
        reasons[reason] += count
    kept = sum(shard.counts["kept"] for shard in written)
    out.account(documents_in=total.total(), kept=kept, removed=reasons, may_be_none=bool(config.against))
    if not kept:
        out.note(f"nothing new: {', '.join(config.against)} have all of {total.total():,} documents")
    _tabulate(config, total, removed, duplicates, out)


def _write_shard(kinds: Sequence[Kind], job: Job, folder: Path) -> dict[str, Any]:
    shard, duplicates, paths = job
    mine = _as_ledger(shard, duplicates)
    keep = np.ones(shard.size, np.bool_)
    keep[as_numpy(mine["row"]) - shard.start] = False
    verdicts: list[Verdict] = []
    spans = [(kind, read_columns(path)) for kind, path in zip(kinds, paths, strict=True)]
    kept = write_batches(folder / "documents.parquet", _kept(shard.documents, keep, spans, verdicts))
    ledger = mine.select(LEDGER_SCHEMA.names)
    write_batches(folder / "ledger.parquet", [*ledger.to_batches(), *ledger_batches(verdicts)], LEDGER_SCHEMA)
    write_batches(folder / "copies.parquet", _copies(shard, mine), COPIES_SCHEMA)
    emptied = Counter((verdict.source, verdict.reason) for verdict in verdicts if verdict.verdict == "removed")
    return {"kept": kept, "emptied": [[*names, count] for names, count in sorted(emptied.items())]}


def _as_ledger(shard: Shard, duplicates: pa.Table) -> pa.Table:
    """A shard's rows to remove with the other columns of the ledger, and names in place of their codes."""
    ids = shard.columns(["id"])["id"].take(as_arrow(as_numpy(duplicates["row"]) - shard.start))
    kept, chained = (duplicates[name].to_pylist() for name in ("kept", "chained"))
    details = [f"duplicate_of {one}{CHAINED if far else ''}" for one, far in zip(kept, chained, strict=True)]
    added = {"id": ids, "verdict": as_arrow(["removed"] * len(ids)), "detail": as_arrow(details)}
    names = [field.name for field in duplicates.schema if pa.types.is_dictionary(field.type)]
    columns = {
        name: duplicates[name].cast(pa.string()) if name in names else duplicates[name]
        for name in duplicates.column_names
    }
    return pa.table({**columns, **added})


def _kept(
    path: Path, keep: Bool, spans: list[tuple[Kind, pa.Table]], verdicts: list[Verdict]
) -> Iterator[pa.RecordBatch]:
    """The documents to keep, without their repeated spans; verdicts on those that change are added to `verdicts`."""
    for start, batch in read_batches(path):
        mine = keep[start : start + len(batch)]
        if spans:
            batch, said = cut_spans(batch, start, spans, mine)
            verdicts += said
            yield batch
        else:
            yield batch.filter(as_arrow(mine))


def _copies(shard: Shard, removed: pa.Table) -> Iterator[pa.RecordBatch]:
    """The removed documents without their texts, with the document that stands for each."""
    rows = as_numpy(removed["row"]) - shard.start
    for start, batch in read_batches(shard.documents, ["metadata"], holding=rows.tolist()):
        first, last = np.searchsorted(rows, (start, start + len(batch)))
        metadata = batch["metadata"].take(as_arrow(rows[first:last] - start))
        table = removed.slice(first, last - first).append_column("metadata", metadata)
        yield from table.select(COPIES_SCHEMA.names).combine_chunks().to_batches()


def _counted(duplicates: pa.Table, names: list[str]) -> Counter[Any]:
    """The number of rows for each combination of these columns, which are dictionaries."""
    columns = [duplicates[name].combine_chunks() for name in names]
    sizes = [max(1, len(column.dictionary)) for column in columns]
    codes = [as_numpy(pa.chunked_array([column.indices])) for column in columns]
    found, times = np.unique(np.ravel_multi_index(codes, sizes), return_counts=True)
    chosen = zip(columns, np.unravel_index(found, sizes), strict=True)
    keys = zip(*(column.dictionary.take(as_arrow(places)).to_pylist() for column, places in chosen), strict=True)
    return Counter(dict(zip(keys, times.tolist(), strict=True)))


def _check_sources(config: DedupConfig, total: Counter[str], removed: Removed, ours: Removed) -> None:
    """Compare with the limit what sources lose to documents of this run: `ours`, a part of `removed`."""
    lost: Counter[str] = Counter()
    for (source, _), count in ours.items():
        lost[source] += count
    too_much = [name for name in total if lost[name] > config.max_removed_share_per_source * total[name]]
    if too_much:
        listed = ", ".join(f"{name} lost {lost[name]:,} of {total[name]:,}" for name in sorted(too_much))
        raise AccountingError(
            f"Dedup would remove too much of a source: {listed}.\n{markdown_table(by_source(total, removed))}",
            "Check the source for repeated boilerplate, or raise dedup.max_removed_share_per_source.",
        )


def by_source(total: Counter[str], removed: Removed) -> list[dict[str, Any]]:
    """A row per source: documents in, removed by each method, and kept."""
    reasons = [reason for reason in (*REASONS, *CUTS) if any(removed[name, reason] for name in total)]
    rows = []
    for name in sorted(total):
        gone = {reason: removed[name, reason] for reason in reasons}
        kept = total[name] - sum(gone.values())
        rows.append(
            {"source": name, "in": total[name], **gone, "kept": kept, "kept %": f"{100 * kept / total[name]:.1f}"}
        )
    return rows


def _tabulate(config: DedupConfig, total: Counter[str], removed: Removed, duplicates: pa.Table, out: Output) -> None:
    out.table("Removed by source", by_source(total, removed))
    pairs = _counted(duplicates, ["kept_source", "source", "reason"])
    ordered = sorted(pairs.items(), key=lambda item: (-item[1], item[0]))[:SOURCES_SHOWN]
    if ordered:
        rows = [
            {"kept of": kept, "copy of": copy, "reason": why, "documents": count}
            for (kept, copy, why), count in ordered
        ]
        out.table("Copies by source", rows)
    count, height = bands(config.threshold, config.sketch.permutations)
    out.count(bands=count, rows_per_band=height)
    curve = [{"similarity": s, "expected recall": f"{expected_recall(s, count, height):.4f}"} for s in CURVE]
    out.table(f"{count} bands of {height} rows", curve)
