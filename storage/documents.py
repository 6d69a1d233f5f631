"""Document shards: Parquet with zstd, one row a document.

A document's id is the hash of its text as it first came in, so it depends neither on order nor on file, and it stays
the same through every later change of the text (a redaction is recorded in the ledger under the same id). Verdicts on
documents stand apart from them, in a ledger: one row for each removal, quarantine or change.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from storage.errors import DamagedArtifact

ROWS_PER_GROUP = 1024
ID_LENGTH = 32

DOCUMENT_SCHEMA = pa.schema(
    [("id", pa.string()), ("text", pa.string()), ("source", pa.string()), ("metadata", pa.string())]
)
LEDGER_SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        ("source", pa.string()),
        ("verdict", pa.string()),
        ("reason", pa.string()),
        ("value", pa.float64()),
        ("threshold", pa.float64()),
        ("detail", pa.string()),
    ]
)


class Document(NamedTuple):
    """One text. `metadata` is a JSON object as text: carried along, never interpreted."""

    id: str
    text: str
    source: str
    metadata: str = "{}"

    @classmethod
    def new(cls, text: str, source: str, **metadata: Any) -> Document:
        """A document just read from outside: its id is made here, once."""
        return cls(document_id(text), text, source, json.dumps(metadata, sort_keys=True, ensure_ascii=False))


class Verdict(NamedTuple):
    """What a stage decided on a document, and by which measure."""

    id: str
    source: str
    verdict: Literal["removed", "quarantined", "changed"]
    reason: str
    value: float | None = None
    threshold: float | None = None
    detail: str = ""


def document_id(text: str) -> str:
    """The first 128 bits of the text's SHA-256, in hex. Lone surrogates are hashed as they are."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:ID_LENGTH]


def write_documents(path: Path, documents: Iterable[Document]) -> int:
    """Write one shard, streaming; the number of documents written."""
    return _write(path, DOCUMENT_SCHEMA, documents)


def write_ledger(path: Path, verdicts: Iterable[Verdict]) -> int:
    """Write one ledger shard; the number of verdicts written."""
    return _write(path, LEDGER_SCHEMA, verdicts)


def read_documents(path: Path) -> Iterator[Document]:
    """The documents of one shard, in order, one row group in memory at a time."""
    return (Document(*row) for row in _read(path, DOCUMENT_SCHEMA))


def read_ledger(path: Path) -> Iterator[Verdict]:
    """The verdicts of one ledger shard, in order."""
    return (Verdict(*row) for row in _read(path, LEDGER_SCHEMA))


def count_rows(path: Path) -> int:
    """Rows of a Parquet shard, from its footer. Raises DamagedArtifact."""
    try:
        return int(pq.read_metadata(path).num_rows)
    except (OSError, pa.ArrowInvalid) as error:
        raise _damaged(path, error) from error


def shard_name(number: int) -> str:
    """The name of a shard's file: the same number in documents/, ledger/ and every side file."""
    return f"{number:05d}.parquet"


def _write(path: Path, schema: pa.Schema, rows: Iterable[tuple[Any, ...]]) -> int:
    path.parent.mkdir(parents=True, exist_ok=True)
    written = 0
    with pq.ParquetWriter(path, schema, compression="zstd", compression_level=1) as writer:
        batch: list[tuple[Any, ...]] = []
        for row in rows:
            batch.append(row)
            if len(batch) == ROWS_PER_GROUP:
                writer.write_batch(_to_batch(batch, schema))
                written += len(batch)
                batch = []
        if batch:
            writer.write_batch(_to_batch(batch, schema))
            written += len(batch)
    return written


def _to_batch(rows: list[tuple[Any, ...]], schema: pa.Schema) -> pa.RecordBatch:
    columns = zip(*rows, strict=True)
    return pa.record_batch(
        [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)], schema
    )


def _read(path: Path, schema: pa.Schema) -> Iterator[tuple[Any, ...]]:
    try:
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=ROWS_PER_GROUP, columns=schema.names):
                yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)
    except (OSError, pa.ArrowInvalid, KeyError) as error:
        raise _damaged(path, error) from error


def _damaged(path: Path, error: Exception) -> DamagedArtifact:
    return DamagedArtifact(
        f"{path} can't be read as a Parquet shard: {error}.", "Run `gristmill store verify`, then --refresh its stage."
    )
