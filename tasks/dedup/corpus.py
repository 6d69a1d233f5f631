"""All documents under comparison as rows, without their texts: the stage's own shards, then those of earlier runs.

Nothing is held in memory per row: data on rows is read from the side files of their shards on demand, so memory grows
with the number of duplicates, not with the corpus.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from storage.artifact import Artifact
from storage.errors import ConfigError, DamagedArtifact, make_again
from storage.shards.arrays import Bool, Int64, UInt32, as_arrow
from storage.shards.documents import read_batches
from storage.shards.parquet import open_parquet, read_columns
from tasks.dedup.sketch import CONTENT, SCHEMA, shard_files


@dataclass(frozen=True)
class Shard:
    """One document shard and its sketch. Its documents are rows `start` to `start + size` of the corpus.

    `content` is a hash of the documents' ids. `header` (size in bytes) and `shape` describe the file of signatures.
    `places` are the rows of the sketch that an earlier dedup kept, or None for a shard that is deduplicated now.
    """

    documents: Path
    rows: Path
    signatures: Path
    start: int
    size: int
    content: str
    header: int
    shape: tuple[int, int]
    places: Int64 | None = None

    @property
    def earlier(self) -> bool:
        """Whether an earlier dedup kept these documents."""
        return self.places is not None

    def without(self, rows: Int64) -> Int64:
        """The indices of its documents, except those of these ascending rows of the corpus."""
        first, last = np.searchsorted(rows, (self.start, self.start + self.size))
        return np.delete(np.arange(self.size), rows[first:last] - self.start)

    def columns(self, names: list[str]) -> pa.Table:
        """Columns of the side file, a row per document."""
        table = read_columns(self.rows, names)
        return table if self.places is None else table.take(as_arrow(self.places))


class Corpus:
    """See the module's docstring."""

    def __init__(self) -> None:
        self.shards: list[Shard] = []
        self.size = 0

    def add(self, documents: Artifact, sketched: Artifact) -> None:
        """Append the documents to deduplicate."""
        for number, path in enumerate(documents.files("*.parquet")):
            self._add(path, *shard_files(sketched, number), earlier=False)

    def add_earlier(self, deduplicated: Artifact, sketched: Artifact) -> None:
        """Append the documents that an earlier dedup kept. Raises DamagedArtifact if documents and sketches don't
        match, ConfigError for sketches of another version."""
        for number, path in enumerate(deduplicated.files("documents/*.parquet")):
            self._add(path, *shard_files(sketched, number), earlier=True)

    def _add(self, documents: Path, rows: Path, signatures: Path, *, earlier: bool) -> None:
        with open_parquet(rows) as file:
            metadata, names = file.metadata, file.schema_arrow.names
        if names != SCHEMA.names:
            raise ConfigError(
                f"{rows} was measured by another version, which dedup.against can't compare with this one.",
                "Deduplicate it again.",
            )
        places = _kept_places(documents, rows) if earlier else None
        size = metadata.num_rows if places is None else len(places)
        content = metadata.metadata[CONTENT].decode()
        stored = np.load(signatures, mmap_mode="r")
        shard = Shard(documents, rows, signatures, self.size, size, content, stored.offset, stored.shape, places)
        self.shards.append(shard)
        self.size += size

    @property
    def own(self) -> list[Shard]:
        """The shards to deduplicate, without those of earlier runs."""
        return [shard for shard in self.shards if not shard.earlier]

    def sources(self) -> Counter[str]:
        """The number of documents to deduplicate, by source."""
        total: Counter[str] = Counter()
        for shard in self.own:
            for row in shard.columns(["source"])["source"].value_counts().to_pylist():
                total[row["values"]] += row["counts"]
        return total

    def split(self, rows: Int64) -> Iterator[tuple[Shard, Int64]]:
        """Split ascending rows by shard, as indices of the shard's documents."""
        starts = np.array([shard.start for shard in self.shards])
        cuts = np.searchsorted(rows, starts)
        for shard, begin, end in zip(self.shards, cuts, [*cuts[1:], len(rows)], strict=True):
            if end > begin:
                yield shard, rows[begin:end] - shard.start

    def columns(self, rows: Int64, names: list[str]) -> pa.Table:
        """Columns of the side files for ascending rows."""
        tables = [pa.Table.from_batches([], pa.schema([SCHEMA.field(name) for name in names]))]
        tables += [shard.columns(names).take(as_arrow(local)) for shard, local in self.split(rows)]
        return pa.concat_tables(tables).combine_chunks()

    def signatures(self, rows: Int64) -> UInt32:
        """Signatures of ascending rows: rows × permutations."""
        return np.concatenate([self.signatures_of(shard, local) for shard, local in self.split(rows)])

    def signatures_of(self, shard: Shard, local: Int64) -> UInt32:
        """Signatures of some of a shard's documents, given by index."""
        rows = local if shard.places is None else shard.places[local]
        # Mapped only for this call: a mapping holds the file open, and its pages count as memory of this process
        stored = np.memmap(str(shard.signatures), np.uint32, "r", shard.header, shard.shape)
        return np.asarray(stored)[rows]

    def contents(self, rows: Int64) -> list[str]:
        """For ascending rows, the content hash of their shard, which does not depend on the order of shards."""
        return [shard.content for shard, local in self.split(rows) for _ in local]

    def is_earlier(self, rows: Int64) -> Bool:
        """Whether each row was kept by an earlier dedup."""
        return rows >= sum(shard.size for shard in self.own)


def _kept_places(documents: Path, rows: Path) -> Int64:
    """The rows of the sketch that an earlier dedup kept, in the order of its documents. Of equal ids the first is
    taken: equal ids mean equal texts and sketches."""
    sketched = read_columns(rows, ["id"])["id"].to_pylist()
    places: list[int] = []
    at = 0
    for _, batch in read_batches(documents, ["id"]):
        for identity in batch["id"].to_pylist():
            try:
                at = sketched.index(identity, at) + 1
            except ValueError:
                raise DamagedArtifact(
                    f"{rows} is not the sketch of {documents}.", make_again("sketches", "dedup")
                ) from None
            places.append(at - 1)
    return np.array(places, np.int64)
