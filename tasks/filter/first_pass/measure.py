"""Side files of signals that are measured only for marked documents. The signals of others are null.

When a threshold moves, other documents are marked. Rows that an earlier artifact of the same config measured, in a
shard with the same bytes, are copied from there, and only the rest is measured. Copies equal new measurements, so the
bytes don't depend on them. A damaged side file is not an error: its shard is measured again, and a note says so.
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
from tasks.filter.side_files import FILE, IDS, MEASURE, IdDigest, Measure, Measured, measured_shards, nothing_of
from tasks.shards import ShardResult, collect, map_shards
from tasks.shards.incremental import DOCUMENTS, Made, link_same, made_before, record_shards, tell_damaged
from tasks.stage.output import Output

EARLIER = "earlier"


class Group(NamedTuple):
    """A row group: which of its documents are requested, which of these are new, and the known signals of the rest."""

    requested: Bool
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
    """Like `write_signals`, but only for the documents that `passed` marks, or for all if it is None.

    For signals whose rows depend only on their own document, the config and the source code.
    """
    shards = measured_shards(documents, {} if passed is None else {PASSED: passed})
    earlier = made_before(documents, out, MEASURE, {FILE: ""}, [DOCUMENTS, PASSED])
    work = functools.partial(_measure_shard, measure, tuple(columns))
    measured = map_shards(work, list(zip(shards, earlier, strict=True)), out, MEASURE, releases_gil=releases_gil)
    collect(measured, FILE, out.path)
    record_shards(documents, [ShardResult(shard.folder, {}) for shard in measured], out, MEASURE)
    out.count(measured=sum(shard.counts["measured"] for shard in measured))
    _report_reuse(measured, out)


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
    requested = sum(int(group.requested.sum()) for group in groups)
    counts = {"measured": requested, "taken": requested - len(new)}
    if earlier is None:
        return counts
    return {**counts, "damaged": earlier.files[FILE].name} if damaged else {**counts, "from": earlier.location}


def _groups(shard: Measured, names: Sequence[str]) -> tuple[IdDigest, list[Group]]:
    """The digest of a shard's IDs, and its row groups, whose earlier signals have these names. Raises DamagedArtifact
    for side files of other documents."""
    digest = IdDigest()
    groups = []
    for _, batch, signals in shard.batches(["id"], digest):
        requested = np.ones(batch.num_rows, np.bool_)
        if PASSED in shard.side_files:
            requested = signals[PASSED].to_numpy(zero_copy_only=False)
        known = signals.select(names) if EARLIER in shard.side_files else None
        groups.append(Group(requested, requested if known is None else requested & ~_measured(known), known))
    return digest, groups


def _measured(signals: pa.RecordBatch) -> Bool:
    """Mark the rows with a value. Others were not requested, or can't be measured."""
    valid = (pc.is_valid(column).to_numpy(zero_copy_only=False) for column in signals.columns)
    measured: Bool = functools.reduce(np.logical_or, valid)
    return measured


def _rows(group: Group, measured: pa.RecordBatch) -> pa.RecordBatch:
    """A row for each document of a group: newly measured, known, or null."""
    places = np.zeros(len(group.requested), np.int64)
    places[group.new] = np.arange(measured.num_rows)
    if group.known is not None:
        known = group.requested & ~group.new
        places[known] = measured.num_rows + np.flatnonzero(known)
        measured = pa.concat_batches([measured, group.known])
    return measured.take(pa.array(places, mask=~group.requested))


def _report_reuse(measured: Sequence[ShardResult], out: Output) -> None:
    taken = Counter[str]()
    for shard in measured:
        taken[shard.counts.get("from", "")] += shard.counts["taken"]
    for location, count in taken.items():
        if count:
            out.note(f"{count:,} of {out.counts['measured']:,} documents taken from {location}")
    tell_damaged(measured, out)
    out.fact(documents_reused=taken.total(), share_reused=taken.total() / max(1, out.counts["measured"]))
