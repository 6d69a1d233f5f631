"""Side files of signals that are measured for marked documents only; the others are null, which means not asked.

When a threshold moves, other documents are marked. Those that an earlier artifact of the same config has measured in a
shard of the same bytes are taken from there, a row at a time, and only the new ones are measured. What is taken is what
would have been measured, so the bytes are the same with it and without (law 4). A side file that is not as it was made
is no error: its shard is measured anew, and a note says so.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from storage.artifact import Artifact
from storage.shards.arrays import Bool
from storage.shards.documents import read_batches
from storage.shards.parquet import parquet_writer
from tasks.filter.family import PASSED
from tasks.filter.side_files import (
    FILE,
    IDS,
    MEASURE,
    IdDigest,
    Measure,
    Measured,
    check_aligned,
    measured_shards,
    nothing_of,
)
from tasks.shards import ShardResult, collect, map_shards
from tasks.shards.incremental import DOCUMENTS, Made, link_same, made_before, record_shards, tell_damaged
from tasks.stage.output import Output

EARLIER = "earlier"


class Group(NamedTuple):
    """A row group: which of its documents are asked for, which of these are new, and what is known of the others."""

    asked: Bool
    new: Bool
    known: pa.RecordBatch | None


def write_passed(
    measure: Measure,
    documents: Artifact,
    passed: Artifact | None,
    out: Output,
    *,
    columns: Sequence[str] = ("text",),
    releases_gil: bool = False,
) -> None:
    """As `write_signals`, for the documents that `passed` marks; None for all.

    For signals whose rows hang each on its own document, the config and the source code, and on nothing else.
    """
    shards = measured_shards(documents, {} if passed is None else {PASSED: passed})
    earlier = made_before(documents, out, MEASURE, {FILE: ""}, [DOCUMENTS, PASSED])
    work = functools.partial(_measure_shard, measure, tuple(columns))
    measured = map_shards(work, list(zip(shards, earlier, strict=True)), out, MEASURE, releases_gil=releases_gil)
    collect(measured, FILE, out.path)
    record_shards(documents, [ShardResult(shard.folder, {}) for shard in measured], out, MEASURE)
    out.count(measured=sum(shard.counts["measured"] for shard in measured))
    _tell(measured, out)


def _measure_shard(
    measure: Measure, columns: Sequence[str], job: tuple[Measured, Made | None], folder: Path
) -> dict[str, Any]:
    shard, earlier = job
    link = folder / f"{EARLIER}.parquet"
    damaged = earlier is not None and not link_same(earlier.files[FILE], link)
    nothing = nothing_of(measure, columns)
    known = {} if earlier is None or damaged else {EARLIER: link}
    digest, groups = _groups(shard._replace(side_files={**shard.side_files, **known}), nothing.schema.names)
    new = np.flatnonzero(np.concatenate([group.new for group in groups] or [np.zeros(0, np.bool_)])).tolist()
    batches = (batch for _, batch in read_batches(shard.documents, columns, holding=new))
    with parquet_writer(folder / FILE, nothing.schema, compression="zstd") as writer:
        for group in groups:
            measured = nothing
            if group.new.any():
                wanted = next(batches).filter(pa.array(group.new))
                measured = measure(*(wanted[column] for column in columns))
            writer.write_batch(_rows(group, measured))
        writer.add_key_value_metadata({IDS: digest.hex()})
    link.unlink(missing_ok=True)
    asked = sum(int(group.asked.sum()) for group in groups)
    counts = {"measured": asked, "taken": asked - len(new)}
    if earlier is None:
        return counts
    return {**counts, "damaged": earlier.files[FILE].name} if damaged else {**counts, "from": earlier.location}


def _groups(shard: Measured, names: Sequence[str]) -> tuple[IdDigest, list[Group]]:
    """The row groups of a shard, whose earlier signals have these names, and the digest of its IDs. Raises
    DamagedArtifact for side files of other documents."""
    digest = IdDigest()
    groups = []
    for _, batch, found in shard.batches(["id"]):
        digest.update(batch["id"])
        asked = np.ones(batch.num_rows, np.bool_)
        if PASSED in shard.side_files:
            asked = found[PASSED].to_numpy(zero_copy_only=False)
        known = found.select(names) if EARLIER in shard.side_files else None
        groups.append(Group(asked, asked if known is None else asked & ~_measured(known), known))
    for side_file in shard.side_files.values():
        check_aligned(side_file, digest)
    return digest, groups


def _measured(signals: pa.RecordBatch) -> Bool:
    """Which rows have a value. One without was not asked for, or could not be measured and can't be again."""
    valid = (pc.is_valid(column).to_numpy(zero_copy_only=False) for column in signals.columns)
    found: Bool = functools.reduce(np.logical_or, valid)
    return found


def _rows(group: Group, measured: pa.RecordBatch) -> pa.RecordBatch:
    """A row for each document of a group: what is measured now, what is known, or null."""
    places = np.zeros(len(group.asked), np.int64)
    places[group.new] = np.arange(measured.num_rows)
    if group.known is not None:
        known = group.asked & ~group.new
        places[known] = measured.num_rows + np.flatnonzero(known)
        measured = pa.concat_batches([measured, group.known])
    return measured.take(pa.array(places, mask=~group.asked))


def _tell(measured: Sequence[ShardResult], out: Output) -> None:
    taken = Counter[str]()
    for shard in measured:
        taken[shard.counts.get("from", "")] += shard.counts["taken"]
    for location, count in taken.items():
        if count:
            out.note(f"{count:,} of {out.counts['measured']:,} documents taken from {location}")
    tell_damaged(measured, out)
    out.fact(documents_reused=taken.total(), share_reused=taken.total() / max(1, out.counts["measured"]))
