"""The filter after measuring: decides shard by shard, changes the kept texts, and accounts for every document.

Documents and signals are read side by side, a row group at a time, so memory doesn't grow with the corpus.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pyarrow as pa

from storage.artifact import Artifact
from storage.errors import ConfigError
from storage.shards.documents import LEDGER_SCHEMA, BatchWriter, ledger_batches, read_batches
from tasks.filter.config import FilterConfig
from tasks.filter.decide import decide, ledger
from tasks.filter.families import fingerprints, menders, rules
from tasks.filter.report import Tally
from tasks.filter.rewrite import mend
from tasks.filter.side_files import IdDigest, Measured, measured_shards
from tasks.shards import ShardResult, collect, map_shards
from tasks.stage.output import Output

KEPT, REMOVED, LEDGER = "documents", "removed", "ledger"
TALLY = "tally.json"

Job = tuple[Measured, Path | None]  # a shard, and the ledger of its repair


def filter_shards(
    config: FilterConfig, documents: Artifact, repairs: Artifact | None, measured: Mapping[str, Artifact], out: Output
) -> Tally:
    """Decide on every document, write documents/, ledger/ and, with `keep_removed`, removed/, and return the counts."""
    shards = measured_shards(documents, measured)
    repaired = repairs.files("*.parquet") if repairs else [None] * len(shards)
    jobs: list[Job] = list(zip(shards, repaired, strict=True))
    work = functools.partial(filter_shard, config, fingerprints(config))
    decided = map_shards(work, jobs, out, "decide", releases_gil=True)
    for folder in (KEPT, LEDGER, *([REMOVED] if config.keep_removed else [])):
        collect(decided, f"{folder}.parquet", out.path / folder)
    if config.keep_removed:
        _keep_private(out.path / REMOVED)
    return _sum(decided)


def filter_shard(config: FilterConfig, outside: Mapping[str, str], job: Job, folder: Path) -> dict[str, Any]:
    """Decide on the documents of a shard. Writes a Parquet file for each folder, and the `Tally` as a file too, because
    the examples of all shards would be too large to hold in memory.

    `outside` are the fingerprints in the key. Raises ConfigError if this process reads other values, such as another
    salt on another host, and DamagedArtifact for signals of other documents.
    """
    changed = outside.items() ^ fingerprints(config).items()
    if changed:
        names = ", ".join(sorted({name for name, _ in changed}))
        raise ConfigError(
            f"A worker reads another {names} than the one in the artifact's key.",
            "Give every worker the same environment and files, and run again.",
        )
    shard, repairs = job
    tests, changers = rules(config), menders(config)
    tally = Tally()
    with ExitStack() as stack:
        kept = stack.enter_context(BatchWriter(folder / f"{KEPT}.parquet"))
        verdicts = stack.enter_context(BatchWriter(folder / f"{LEDGER}.parquet", LEDGER_SCHEMA))
        removed = stack.enter_context(BatchWriter(folder / f"{REMOVED}.parquet")) if config.keep_removed else None
        for _, batch in read_batches(repairs, LEDGER_SCHEMA.names) if repairs else ():
            verdicts.add(batch)
            tally.add_repairs(batch)
        for _, batch, signals in shard.batches(digest=IdDigest()):
            decisions = decide(signals, tests)
            mask = pa.array(decisions.kept)
            mended, changes = mend(batch.filter(mask), signals.filter(mask), changers)
            kept.add(mended)
            if removed is not None:
                removed.add(batch.filter(pa.array(~decisions.kept)))
            for rows in (*ledger(batch, signals, decisions, tests), *ledger_batches(changes)):
                verdicts.add(rows)
            tally.add(batch, decisions, tests, changes)
    (folder / TALLY).write_text(json.dumps(tally.to_json()), encoding="utf-8")
    return {"seen": tally.seen}


def _keep_private(folder: Path) -> None:
    """Restrict a folder to its owner: texts removed for their personal data are in it unredacted."""
    folder.chmod(0o700)
    for path in folder.iterdir():
        path.chmod(0o600)


def _sum(decided: list[ShardResult]) -> Tally:
    total = Tally()
    for shard in decided:
        total.merge(Tally.from_json(json.loads((shard.folder / TALLY).read_text(encoding="utf-8"))))
    return total
