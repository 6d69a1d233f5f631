"""Signals in side files: one Parquet file per shard of documents, with a row per document in the shard's order.

A side file contains neither text nor verdicts, so a changed threshold never measures again. It carries a digest of the
measured IDs, which readers check against the documents' IDs. A signal that can't be measured is null, never a default
that looks like a measurement.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import xxhash
from pyarrow.parquet import ParquetFile

from storage.artifact import Artifact
from storage.errors import DamagedArtifact
from storage.shards.documents import DOCUMENT_SCHEMA, read_batches
from storage.shards.parquet import open_parquet, parquet_writer
from tasks.filter.family import column_of
from tasks.shards import collect
from tasks.shards.incremental import map_new_shards
from tasks.stage.output import Output

Measure = Callable[..., pa.RecordBatch]  # texts, or the requested columns, of a row group → a row of signals for each

FILE = "signals.parquet"
MEASURE = "measure"  # the default name of the work
IDS = b"ids"  # metadata key: the digest of the measured ids


class Measured(NamedTuple):
    """A shard of documents and its side files by family."""

    documents: Path
    side_files: Mapping[str, Path]

    def batches(
        self, columns: Sequence[str] = DOCUMENT_SCHEMA.names, digest: IdDigest | None = None
    ) -> Iterator[tuple[int, pa.RecordBatch, pa.RecordBatch]]:
        """Yield (first row, these columns of the documents, all their signals) a row group at a time. With a `digest`,
        which takes up their ids, the end checks that the signals are theirs. Raises DamagedArtifact if they aren't."""
        with ExitStack() as stack:
            files = {family: stack.enter_context(open_parquet(path)) for family, path in self.side_files.items()}
            readers = {family: _row_groups(file) for family, file in files.items()}
            for start, batch in read_batches(self.documents, columns):
                if digest is not None:
                    digest.update(batch["id"])
                by_column: dict[str, pa.Array] = {}
                for family, reader in readers.items():
                    signals = next(reader, None)
                    if signals is None or signals.num_rows != batch.num_rows:
                        raise self._strange(family)
                    names = (column_of(family, name) for name in signals.schema.names)
                    by_column |= dict(zip(names, signals.columns, strict=True))
                yield start, batch, pa.record_batch(by_column)
            for family, file in files.items():
                if digest is not None and not _is_of(file, digest):
                    raise self._strange(family)

    def _strange(self, family: str) -> DamagedArtifact:
        return DamagedArtifact(
            f"The signals {family}/{self.documents.name} don't belong to these documents.",
            f"Measure again: --refresh {family.partition('.')[0]} --refresh filter.",
        )


def measured_shards(documents: Artifact, signals: Mapping[str, Artifact]) -> list[Measured]:
    """Pair the shards of documents with their side files, given the signals by family. Raises DamagedArtifact if the
    numbers of files differ."""
    shards = documents.files("*.parquet")
    side_files = {family: artifact.files("*.parquet") for family, artifact in signals.items()}
    for family, paths in side_files.items():
        if len(paths) != len(shards):
            raise DamagedArtifact(
                f"{family} has {len(paths)} side files for {len(shards)} shards.",
                f"Measure again: --refresh {family.partition('.')[0]} --refresh filter.",
            )
    return [
        Measured(shard, {family: paths[number] for family, paths in side_files.items()})
        for number, shard in enumerate(shards)
    ]


class IdDigest:
    """xxh3 over IDs in order."""

    def __init__(self) -> None:
        self._hash = xxhash.xxh3_128()

    def update(self, ids: pa.Array) -> None:
        """Add the IDs of a row group."""
        self._hash.update("\n".join([*ids.to_pylist(), ""]).encode())

    def hex(self) -> str:
        """The digest of all IDs so far."""
        return self._hash.hexdigest()


def write_signals(
    measure: Measure,
    documents: Artifact,
    out: Output,
    name: str = MEASURE,
    *,
    columns: Sequence[str] = ("text",),
    releases_gil: bool = False,
    accelerators: int = 0,
    isolated: bool = False,
) -> None:
    """Measure the text (or other `columns`) of every document of an artifact into side files, numbered as the shards.
    Side files of shards that were measured before are reused if work of the same `name` made them.

    `measure` must be importable in a worker (a module-level function or a `partial` of one) and return the same columns
    for every batch. `releases_gil`, `accelerators` and `isolated` are as for `map_shards`.
    """
    work = functools.partial(_measure_shard, measure, tuple(columns))
    measured = map_new_shards(
        work,
        documents,
        out,
        name,
        files={FILE: ""},
        releases_gil=releases_gil,
        accelerators=accelerators,
        isolated=isolated,
    )
    collect(measured, FILE, out.path)
    out.count(measured=sum(shard.counts["documents"] for shard in measured))


def read_signals(path: Path, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
    """Yield the signals of a side file, a batch per row group of the document shard."""
    with open_parquet(path) as file:
        yield from _row_groups(file, columns)


def check_aligned(path: Path, digest: IdDigest) -> None:
    """Raise DamagedArtifact unless a side file measures exactly these documents, in this order."""
    with open_parquet(path) as file:
        aligned = _is_of(file, digest)
    if not aligned:
        raise DamagedArtifact(
            f"The signals {path.parent.name}/{path.name} don't belong to these documents.",
            "Measure again: --refresh with the signals' name, and --refresh filter.",
        )


def _row_groups(file: ParquetFile, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
    for number in range(file.num_row_groups):
        yield from file.read_row_group(number, columns, use_threads=False).to_batches()


def _is_of(file: ParquetFile, digest: IdDigest) -> bool:
    """Whether a side file measures the documents of a digest."""
    return (file.metadata.metadata or {}).get(IDS) == digest.hex().encode()


@functools.lru_cache(16)
def nothing_of(measure: Measure, columns: tuple[str, ...]) -> pa.RecordBatch:
    """An empty batch of signals, for their columns. Asked for once a process, not for each shard."""
    return measure(*(pa.array([], pa.string()) for _ in columns))


def _measure_shard(measure: Measure, columns: Sequence[str], shard: Path, folder: Path) -> dict[str, int]:
    digest = IdDigest()
    empty = nothing_of(measure, tuple(columns))
    rows = 0
    with parquet_writer(folder / FILE, empty.schema, compression="zstd") as writer:
        for _, batch in read_batches(shard, list(dict.fromkeys(["id", *columns]))):
            writer.write_batch(measure(*(batch[column] for column in columns)))
            digest.update(batch["id"])
            rows += batch.num_rows
        writer.add_key_value_metadata({IDS: digest.hex()})
    return {"documents": rows}
