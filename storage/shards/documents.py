"""Document shards: Parquet with zstd, one row per document.

A document's id is the hash of its text as first read, so it does not depend on order or file names, and it survives
later changes of the text (a redaction is recorded in the ledger under the same id). Verdicts are kept apart from the
documents, in a ledger: one row per removal, quarantine or change.
"""

from __future__ import annotations

import hashlib
import json
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import pyarrow as pa

from storage.shards.parquet import open_parquet, parquet_writer

ROWS_PER_GROUP = 1024
CHARACTERS_PER_GROUP = 1 << 21
ID_LENGTH = 32
_SORTED_JSON = json.JSONEncoder(sort_keys=True, ensure_ascii=False).encode  # `dumps` makes an encoder each time
SYNTHETIC = "synthetic/"  # begins the sources of documents that a model wrote

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
    """One text. `metadata` is a JSON object as a string: passed on, never interpreted."""

    id: str
    text: str
    source: str
    metadata: str = "{}"

    @classmethod
    def new(cls, text: str, source: str, /, **metadata: Any) -> Document:
        """A document just read from a source. Computes its id, once."""
        return cls(document_id(text), text, source, _SORTED_JSON(metadata) if metadata else "{}")


class Verdict(NamedTuple):
    """A stage's decision on a document, and the measured value and threshold behind it."""

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
    """Write one shard as a stream. Returns the number of documents."""
    return _write(path, DOCUMENT_SCHEMA, documents)


def write_ledger(path: Path, verdicts: Iterable[Verdict]) -> int:
    """Write one ledger shard as a stream. Returns the number of verdicts."""
    return _write(path, LEDGER_SCHEMA, verdicts)


def read_documents(path: Path) -> Iterator[Document]:
    """The documents of one shard, in order, with one row group in memory at a time."""
    return (Document(*row) for row in _read(path, DOCUMENT_SCHEMA))


def read_batches(
    path: Path, columns: Sequence[str] = DOCUMENT_SCHEMA.names, holding: Sequence[int] | None = None
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """The shard as (first row, Arrow batch), a batch per row group, for work that needs no Python strings.

    With `holding`, only the row groups that contain one of these rows (ascending). Columns have the types of this
    module's schemas, even in another program's shard (polars writes large strings). Raises DamagedArtifact, also for a
    page with a wrong checksum, a missing column, a row without id, text or source, and bytes that are not UTF-8.
    """
    with open_parquet(path) as file:
        lacking = sorted(set(columns) - set(file.schema_arrow.names))
        if lacking:
            raise KeyError(f"no column {', '.join(lacking)}")
        start = 0
        for number in range(file.num_row_groups):
            end = start + file.metadata.row_group(number).num_rows
            if holding is None or bisect_left(holding, start) < bisect_left(holding, end):
                for batch in file.read_row_group(number, list(columns), use_threads=False).to_batches():
                    yield start, _as_written_here(batch)
                    start += batch.num_rows
            start = end


def _as_written_here(batch: pa.RecordBatch) -> pa.RecordBatch:
    batch.validate(full=True)  # compiled code assumes UTF-8 text and ascending offsets
    types = {field.name: field.type for schema in (LEDGER_SCHEMA, DOCUMENT_SCHEMA) for field in schema}
    target = pa.schema([(field.name, types.get(field.name, field.type)) for field in batch.schema])
    for name in {"id", "text", "source"} & set(target.names):
        if batch.column(name).null_count:
            raise pa.ArrowInvalid(f"rows without {name}")
    return batch if batch.schema.equals(target) else batch.cast(target)


def write_batches(path: Path, batches: Iterable[pa.RecordBatch], schema: pa.Schema = DOCUMENT_SCHEMA) -> int:
    """Write one shard from Arrow batches as a stream. Returns the number of rows."""
    with BatchWriter(path, schema) as writer:
        for batch in batches:
            writer.add(batch)
    return writer.rows


class BatchWriter:
    """Writes one shard batch by batch. Combines small batches to fill row groups."""

    def __init__(self, path: Path, schema: pa.Schema = DOCUMENT_SCHEMA) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        repeating = [name for name in schema.names if name not in ("id", "text")]  # a dictionary does not help these
        self._file = parquet_writer(path, schema, compression="zstd", compression_level=1, use_dictionary=repeating)
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_rows = self._waiting_bytes = 0
        self.rows = 0

    def add(self, batch: pa.RecordBatch) -> None:
        """Append a batch of at most one row group."""
        rows, size = batch.num_rows, batch.nbytes
        if self._waiting_rows + rows > ROWS_PER_GROUP or self._waiting_bytes + size > CHARACTERS_PER_GROUP:
            self._write_group()
        self._waiting.append(batch)
        self._waiting_rows += rows
        self._waiting_bytes += size
        self.rows += rows

    def __enter__(self) -> BatchWriter:
        return self

    def __exit__(self, *error: object) -> None:
        self._write_group()
        self._file.close()

    def _write_group(self) -> None:
        if self._waiting_rows:
            alone = len(self._waiting) == 1
            self._file.write_batch(self._waiting[0] if alone else pa.concat_batches(self._waiting))
        self._waiting, self._waiting_rows, self._waiting_bytes = [], 0, 0


def read_ledger(path: Path) -> Iterator[Verdict]:
    """The verdicts of one ledger shard, in order."""
    return (Verdict(*row) for row in _read(path, LEDGER_SCHEMA))


def count_rows(path: Path) -> int:
    """The number of rows of a Parquet shard, from its footer. Raises DamagedArtifact."""
    with open_parquet(path) as file:
        return int(file.metadata.num_rows)


def text_bytes(path: Path) -> int:
    """Bytes of UTF-8 text in a document shard, within 2 %, from its footer: its unpacked pages, without the length of
    each row. Raises DamagedArtifact."""
    with open_parquet(path) as file:
        metadata = file.metadata
        place = next((n for n in range(metadata.num_columns) if metadata.schema.column(n).path == "text"), None)
        if place is None:
            return 0
        pages = (metadata.row_group(n).column(place).total_uncompressed_size for n in range(metadata.num_row_groups))
        return max(0, int(sum(pages)) - 4 * int(metadata.num_rows))


def shard_name(number: int) -> str:
    """The file name of a shard, the same in documents/, ledger/ and every side-file folder."""
    return f"{number:05d}.parquet"


def ledger_batches(verdicts: Iterable[Verdict]) -> Iterator[pa.RecordBatch]:
    """Verdicts as Arrow batches of the ledger's schema."""
    return (_to_batch(group, LEDGER_SCHEMA) for group in _row_groups(verdicts))


def _write(path: Path, schema: pa.Schema, rows: Iterable[tuple[Any, ...]]) -> int:
    return write_batches(path, (_to_batch(group, schema) for group in _row_groups(rows)), schema)


def _row_groups(rows: Iterable[tuple[Any, ...]]) -> Iterator[list[tuple[Any, ...]]]:
    """Groups of `ROWS_PER_GROUP` rows, or fewer if they are long, since a reader holds a whole group in memory."""
    group: list[tuple[Any, ...]] = []
    characters = 0
    for row in rows:
        group.append(row)
        characters += sum(len(value) for value in row if isinstance(value, str))
        if len(group) == ROWS_PER_GROUP or characters >= CHARACTERS_PER_GROUP:
            yield group
            group, characters = [], 0
    if group:
        yield group


def _to_batch(rows: list[tuple[Any, ...]], schema: pa.Schema) -> pa.RecordBatch:
    columns = zip(*rows, strict=True)
    return pa.record_batch(
        [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)], schema
    )


def _read(path: Path, schema: pa.Schema) -> Iterator[tuple[Any, ...]]:
    for _, batch in read_batches(path, schema.names):
        yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)
