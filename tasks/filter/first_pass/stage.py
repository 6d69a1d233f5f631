"""The stage that marks the documents that pass the rules of the families measured first."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa

from storage.artifact import Artifact
from storage.shards.parquet import parquet_writer
from tasks.filter.config import FilterConfig
from tasks.filter.decide import decide
from tasks.filter.families import first_rules
from tasks.filter.family import PASSED
from tasks.filter.side_files import FILE, IDS, IdDigest, Measured, measured_shards
from tasks.shards import collect, map_shards
from tasks.stage import stage
from tasks.stage.output import Output

SCHEMA = pa.schema([(PASSED, pa.bool_())])


@stage(version=1, part_of="filter", runtime=("data", "compute"))
def passed(config: FilterConfig, documents: Artifact, signals: Mapping[str, Artifact], out: Output) -> None:
    """Mark the documents that pass the rules of all families except those in `measured_last`.

    Column: `passed`. If thresholds change but the same documents pass, the bytes stay the same, and so do the signals
    that are measured last.
    """
    # In threads: signals are small, and read before worker processes would have started
    marked = map_shards(
        functools.partial(_mark_shard, config), measured_shards(documents, signals), out, "mark", releases_gil=True
    )
    collect(marked, FILE, out.path)
    out.count(documents=sum(shard.counts["documents"] for shard in marked))
    out.count(passed=sum(shard.counts["passed"] for shard in marked))


def _mark_shard(config: FilterConfig, shard: Measured, folder: Path) -> dict[str, int]:
    tests = first_rules(config)
    digest = IdDigest()
    passed = 0
    with parquet_writer(folder / FILE, SCHEMA, compression="zstd") as writer:
        rows = 0
        for _, batch, signals in shard.batches(["id"], digest):
            kept = decide(signals, tests).kept
            writer.write_batch(pa.record_batch([pa.array(kept)], SCHEMA))
            rows += batch.num_rows
            passed += int(kept.sum())
        writer.add_key_value_metadata({IDS: digest.hex()})
    return {"documents": rows, "passed": passed}
