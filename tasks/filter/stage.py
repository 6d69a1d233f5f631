"""The filter stage: signals from the store, verdicts from the thresholds, three files a shard."""

from __future__ import annotations

import functools
from collections import Counter
from pathlib import Path
from typing import Any

from storage.artifact import Artifact
from storage.documents import read_documents, write_documents, write_ledger
from tasks.filter.config import FilterConfig
from tasks.filter.decide import clean, decide, rules
from tasks.filter.signals import read_signals, signals
from tasks.output import Output
from tasks.shards import ShardResult, collect, map_shards
from tasks.stage import stage

SAMPLES = 3  # ids shown of each reason
FOLDERS = ("documents", "removed", "ledger")


@stage(version=1, name="filter")
def filter_documents(config: FilterConfig, documents: Artifact, out: Output) -> None:
    """Keep the documents that pass every rule; redact personal data in what is kept.

    Reads the signals artifact (measured once) and decides. Writes documents/, removed/ (readable, apart) and ledger/
    with the first failing rule, the value and the threshold of each removed document.
    """
    shards = documents.files("*.parquet")
    measured = out.obtain(signals, config.signals, documents)
    jobs = list(zip(shards, measured.files("*.parquet"), strict=True))
    decided = map_shards(functools.partial(_decide_shard, config), jobs, out, "decide")
    for folder in FOLDERS:
        collect(decided, f"{folder}.parquet", out.path / folder)
    _account(decided, out)


def _decide_shard(config: FilterConfig, job: tuple[Path, Path], folder: Path) -> dict[str, Any]:
    shard, side_file = job
    documents = list(read_documents(shard))
    kept, removed, ledger = [], [], []
    samples: dict[str, list[str]] = {}
    by_source: Counter[str] = Counter()
    tests = rules(config)
    for document, row in zip(documents, read_signals(side_file, documents), strict=True):
        verdict = decide(document, row, config, tests)
        if verdict is None:
            cleaned, verdict = clean(document, row, config)
            kept.append(cleaned)
            by_source[f"{document.source}\tkept"] += 1
        else:
            removed.append(document)
            by_source[f"{document.source}\tremoved"] += 1
            if len(samples.setdefault(verdict.reason, [])) < SAMPLES:
                samples[verdict.reason].append(document.id)
        if verdict is not None:
            ledger.append(verdict)
    write_documents(folder / "documents.parquet", kept)
    write_documents(folder / "removed.parquet", removed)
    write_ledger(folder / "ledger.parquet", ledger)
    return {
        "in": len(documents),
        "kept": len(kept),
        "removed": Counter(verdict.reason for verdict in ledger if verdict.verdict == "removed"),
        "redacted": sum(verdict.verdict == "changed" for verdict in ledger),
        "samples": samples,
        "by_source": by_source,
    }


def _account(decided: list[ShardResult], out: Output) -> None:
    removed: Counter[str] = Counter()
    by_source: Counter[str] = Counter()
    samples: dict[str, list[str]] = {}
    for shard in decided:
        removed.update(shard.counts["removed"])
        by_source.update(shard.counts["by_source"])
        for reason, ids in shard.counts["samples"].items():
            samples[reason] = (samples.get(reason, []) + ids)[:SAMPLES]
    out.account(
        documents_in=sum(shard.counts["in"] for shard in decided),
        kept=sum(shard.counts["kept"] for shard in decided),
        removed=removed,
    )
    out.count(redacted=sum(shard.counts["redacted"] for shard in decided))
    sources = sorted({name.split("\t")[0] for name in by_source})
    rows = [{"source": s, "kept": by_source[f"{s}\tkept"], "removed": by_source[f"{s}\tremoved"]} for s in sources]
    out.table("By source", rows)
    reasons = [
        {"rule": reason, "removed": count, "such as": " ".join(identity[:12] for identity in samples[reason])}
        for reason, count in sorted(removed.items(), key=lambda pair: (-pair[1], pair[0]))
    ]
    out.table("Removed by rule", reasons)
