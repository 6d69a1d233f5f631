"""The stage `repair`: repairs a corpus, shard by shard, and accounts for every change."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from storage.artifact import Artifact
from storage.shards.documents import LEDGER_SCHEMA, Verdict, ledger_batches, read_batches, write_batches
from tasks.filter.repair.text import Repair, RepairConfig, repair_texts, repairs_of
from tasks.shards import ShardResult, collect_all
from tasks.shards.incremental import map_new_shards
from tasks.stage import stage
from tasks.stage.output import Output

REASON, EMPTIED = "repair", "repair.empty"
FOLDERS = {"documents.parquet": "documents", "ledger.parquet": "ledger"}
WHAT = ("documents", "characters")  # counted per source and repair


@stage(version=3, part_of="filter", runtime=("data",))
def repair(config: RepairConfig, documents: Artifact, out: Output) -> None:
    """Repair texts: mojibake and HTML entities (ftfy, Speer 2019), control characters, white space, wrapped lines.

    Writes documents/ with unchanged IDs, and ledger/: a row per changed document with the number of characters changed
    (value), in total and by repair (detail). A document with only white space left is removed.
    """
    done = map_new_shards(functools.partial(_repair_shard, config), documents, out, "repair", files=FOLDERS)
    collect_all(done, FOLDERS, out.path)
    _account(done, config, out)


def repair_batch(
    repairs: Sequence[Repair], batch: pa.RecordBatch, counts: Counter[str]
) -> tuple[pa.RecordBatch, list[Verdict]]:
    """Repair the documents of a batch. Returns them with a verdict on each that changed, and adds to `counts`."""
    changed, kept = np.zeros(len(batch), np.bool_), np.ones(len(batch), np.bool_)
    texts: list[str] = []
    verdicts: list[Verdict] = []
    for row, (after, by_repair) in repair_texts(batch["text"], repairs).items():
        id_, before, source, _ = (column[row].as_py() for column in batch.columns)
        texts.append(after)
        changed[row], kept[row] = True, bool(after.strip())
        verdicts.append(_verdict(id_, source, before, after, by_repair))
        _count(counts, verdicts[-1], len(before), len(after), by_repair)
    for counted in pc.value_counts(batch["source"]).to_pylist():
        counts[f"{counted['values']}\tin"] += counted["counts"]
    if texts:
        column = pc.replace_with_mask(batch["text"], pa.array(changed), pa.array(texts, pa.string()))
        batch = batch.set_column(batch.schema.get_field_index("text"), "text", column)
    return (batch if kept.all() else batch.filter(pa.array(kept))), verdicts


def _verdict(id_: str, source: str, before: str, after: str, by_repair: Counter[str]) -> Verdict:
    listed = ", ".join(f"{name} {number:,}" for name, number in by_repair.items())
    detail = f"{listed}; {len(before):,} → {len(after):,} characters"
    if after.strip():
        return Verdict(id_, source, "changed", REASON, float(by_repair.total()), None, detail)
    return Verdict(id_, source, "removed", EMPTIED, float(by_repair.total()), None, detail)


def _count(counts: Counter[str], verdict: Verdict, before: int, after: int, by_repair: Counter[str]) -> None:
    source = verdict.source
    counts.update({f"{source}\t{verdict.verdict}": 1, f"{source}\tbefore": before, f"{source}\tafter": after})
    for name, number in by_repair.items():
        for what, added in zip(WHAT, (1, number), strict=True):
            counts[f"{source}\t{name}\t{what}"] += added


def _repair_shard(config: RepairConfig, shard: Path, folder: Path) -> dict[str, Any]:
    repairs = repairs_of(config)
    counts: Counter[str] = Counter()
    verdicts: list[Verdict] = []

    def repaired() -> Iterator[pa.RecordBatch]:
        for _, batch in read_batches(shard):
            batch, changes = repair_batch(repairs, batch, counts)
            verdicts.extend(changes)
            yield batch

    kept = write_batches(folder / "documents.parquet", repaired())
    write_batches(folder / "ledger.parquet", ledger_batches(verdicts), LEDGER_SCHEMA)
    return {"kept": kept, "counts": counts}


def _account(done: list[ShardResult], config: RepairConfig, out: Output) -> None:
    counts: Counter[str] = Counter()
    for shard in done:
        counts.update(shard.counts["counts"])
    sources = sorted({name.partition("\t")[0] for name in counts})
    names = [repair.name for repair in repairs_of(config)]
    changed, emptied = (sum(counts[f"{source}\t{verdict}"] for source in sources) for verdict in ("changed", "removed"))
    out.account(
        documents_in=sum(counts[f"{source}\tin"] for source in sources),
        kept=sum(shard.counts["kept"] for shard in done),
        removed={EMPTIED: emptied} if emptied else {},
    )
    characters = {name: sum(counts[f"{source}\t{name}\tcharacters"] for source in sources) for name in names}
    out.count(repaired=changed, characters_repaired=characters)
    columns = {"in": "in", "changed": "changed", "emptied": "removed", "characters before": "before", "after": "after"}
    by_source = [
        {"source": source, **{title: counts[f"{source}\t{name}"] for title, name in columns.items()}}
        for source in sources
    ]
    out.table("Repaired documents by source", by_source)
    by_repair = [
        {"repair": name, "source": source, **{what: counts[f"{source}\t{name}\t{what}"] for what in WHAT}}
        for name in names
        for source in sources
        if counts[f"{source}\t{name}\tdocuments"]
    ]
    out.table("Characters changed by repair", by_repair)
