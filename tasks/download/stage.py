"""The `download` stage: reads sources and writes document shards, post-training pairs and benchmarks."""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from storage.artifact import Artifact
from storage.errors import BadDocument, EmptyOutput, SourceError
from storage.shards.documents import Document, Verdict, shard_name, write_documents, write_ledger
from storage.shards.lines import write_json_lines
from tasks.download import benchmarks, pairs
from tasks.download.config import DownloadConfig, EmbeddedSource, FileSource, HubSource, Source
from tasks.download.sources import embedded, files, hub
from tasks.download.sources.rows import Refused, Row, describe_columns
from tasks.shards.adopted import check_documents, check_rows
from tasks.stage import stage
from tasks.stage.output import Output

Values = dict[str, Any]
PROGRESS_EVERY = 500
PARTS = {  # beside documents/, with what each row has
    "instructions": ("messages",),
    "preferences": ("prompt", "chosen", "rejected"),
    "benchmarks": ("id", "query", "choices", "gold"),
}


def fingerprints(config: DownloadConfig) -> dict[str, str]:
    """What identifies the external data: package versions, file digests, revisions."""
    found: dict[str, str] = {}
    for source in config.sources:
        if isinstance(source, EmbeddedSource):
            found |= embedded.fingerprint(source)
        elif isinstance(source, FileSource):
            found |= files.fingerprint(source)
        else:
            found[source.name] = source.revision
    return found


def check_adopted(config: DownloadConfig, folder: Artifact, inputs: Mapping[str, Artifact]) -> None:
    """Check that a folder made elsewhere has documents, pairs and benchmarks as this stage writes them. Raises
    DamagedArtifact, EmptyOutput."""
    check_documents(folder)
    for part, keys in PARTS.items():
        check_rows(folder, part, keys)


@stage(version=3, sources=fingerprints, adopted=check_adopted)
def download(config: DownloadConfig, out: Output) -> None:
    """Read every source: documents to Parquet shards, pairs and benchmarks to JSON lines.

    A row that cannot be used is quarantined with its reason and location. Raises SourceError for a source that loses
    more than `max_quarantined_share` or is empty.
    """
    writer = ShardWriter(config, out)
    sets: dict[str, list[Values]] = {"instructions": [], "preferences": []}
    refused: dict[str, list[Refused]] = {}
    for source in config.sources:
        for role, source_name, item in _items(source, config, refused):
            if isinstance(item, Document):
                writer.add(item)
            else:
                sets[role].append(item)
            if writer.seen % PROGRESS_EVERY == 0:
                out.progress(writer.seen, 0, "documents", source_name)
        _check_source(source, config, refused, writer, sets)
    writer.close()
    bad = [
        Verdict(hashlib.sha256(row.place.encode()).hexdigest()[:32], name, "quarantined", row.reason, detail=row.place)
        for name, rows in refused.items()
        for row in rows
    ]
    write_ledger(out.path / "ledger" / shard_name(0), bad)
    for role, rows in sets.items():
        write_json_lines(out.path / role / "pairs.jsonl", rows)
    _write_benchmarks(config, out)
    roles = {source.name: source.role for source in config.sources if not isinstance(source, EmbeddedSource)}
    lost = Counter(roles[name] for name, rows in refused.items() for _ in rows)
    documents = lost.pop("documents", 0)
    out.account(documents_in=writer.seen + documents, kept=writer.seen, removed={}, quarantined=documents)
    out.count(**{role: len(rows) for role, rows in sets.items()})
    out.count(**{f"{role}_quarantined": number for role, number in sorted(lost.items())})
    names = sorted(writer.documents | Counter({name: len(rows) for name, rows in refused.items()}))
    rows = [
        {
            "source": name,
            "documents": writer.documents[name],
            "characters": writer.characters[name],
            "quarantined": len(refused.get(name, [])),
        }
        for name in names
    ]
    out.table("Sources", rows)


class ShardWriter:
    """Writes documents to shards of limited size, in order. Repeated ids are kept: removing them is dedup's task."""

    def __init__(self, config: DownloadConfig, out: Output) -> None:
        self.config, self.out = config, out
        self.seen = 0
        self.shards = 0
        self.documents: Counter[str] = Counter()
        self.characters: Counter[str] = Counter()
        self.batch: list[Document] = []
        self.bytes = 0

    def add(self, document: Document) -> None:
        """Add a document; close the shard when it is full."""
        self.batch.append(document)
        self.bytes += len(document.text.encode("utf-8", "surrogatepass"))
        self.seen += 1
        self.documents[document.source] += 1
        self.characters[document.source] += len(document.text)
        if len(self.batch) >= self.config.shard_documents or self.bytes >= self.config.shard_bytes:
            self.close()

    def close(self) -> None:
        """Write the current shard, if it has documents."""
        if self.batch:
            write_documents(self.out.path / "documents" / shard_name(self.shards), self.batch)
            self.shards += 1
            self.batch, self.bytes = [], 0


def _items(
    source: Source, config: DownloadConfig, refused: dict[str, list[Refused]]
) -> Iterator[tuple[str, str, Document | Values]]:
    """(role, source name, document or pair) of every usable row of a source; rejected rows are added to `refused`."""
    if isinstance(source, EmbeddedSource):
        for document in embedded.documents(source):
            yield "documents", document.source, document
        for row in embedded.instructions(source):
            yield "instructions", "embedded", row
        for row in embedded.preferences(source):
            yield "preferences", "embedded", row
        return
    if isinstance(source, FileSource):
        rows: Iterator[Row | Refused] = files.read_rows(source, config.max_document_bytes)
    else:
        rows = hub.read_rows(source)
    for found in rows:
        if isinstance(found, Refused):
            refused.setdefault(source.name, []).append(found)
            continue
        try:
            yield source.role, source.name, _item(source, found.values, config.max_document_bytes)
        except BadDocument as error:
            bad = Refused(error.message, found.place, error.facts.get("columns"))
            refused.setdefault(source.name, []).append(bad)


def _item(source: FileSource | HubSource, row: Values, limit: int) -> Document | Values:
    if source.role == "instructions":
        return pairs.instruction(row, source.name)
    if source.role == "preferences":
        return pairs.preference(row, source.name)
    text = files.text_of(row, source.text_column, limit)
    kept = {name: _plain(value) for name, value in row.items() if name != source.text_column and _is_plain(value)}
    document = Document.new(text, source.name, **kept)
    try:
        document.metadata.encode()
    except UnicodeEncodeError as error:
        raise BadDocument("lone_surrogate") from error
    return document


def _plain(value: Any) -> Any:
    """A number that is none, or is beyond all numbers, is no JSON."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _is_plain(value: Any) -> bool:
    return value is None or isinstance(value, str | int | float | bool)


def _check_source(
    source: Source,
    config: DownloadConfig,
    refused: dict[str, list[Refused]],
    writer: ShardWriter,
    sets: dict[str, list[Values]],
) -> None:
    """Check that a source is not empty (law 3) and that no more rows than allowed were rejected (law 8). Raises
    SourceError."""
    if isinstance(source, EmbeddedSource):
        return
    bad = refused.get(source.name, [])
    if source.role == "documents":
        good = writer.documents[source.name]
    else:
        good = sum(row["source"] == source.name for row in sets[source.role])
    if bad and len(bad) > config.max_quarantined_share * (good + len(bad)):
        lacking = [row for row in bad if row.columns is not None]
        if 2 * len(lacking) > len(bad):
            raise _without_columns(source, lacking, good + len(bad))
        first = "; ".join(f"{row.place}: {row.reason}" for row in bad[:3])
        raise SourceError(
            f"Source {source.name}: {len(bad):,} of {good + len(bad):,} rows can't be used ({first}).",
            "Correct them, or raise download.max_quarantined_share.",
        )
    if not good:
        raise SourceError(f"Source {source.name} is empty.", "Check its paths, or remove it from download.sources.")


def _without_columns(source: FileSource | HubSource, lacking: list[Refused], rows: int) -> SourceError:
    if source.role == "documents":
        lacks = f"no column {source.text_column}"
        remedy = "Set text_column of the source to the column that holds the text."
    else:
        lacks = f"not the keys of {source.role}"
        remedy = f"Rename them: {source.role} need {pairs.KEYS[source.role]}."
    return SourceError(
        f"Source {source.name}: {len(lacking):,} of {rows:,} rows have {lacks} (first {lacking[0].place}). "
        f"The columns of the first ones are: {describe_columns(lacking)}.",
        remedy,
    )


def _write_benchmarks(config: DownloadConfig, out: Output) -> None:
    for name in config.benchmarks:
        write_json_lines(out.path / "benchmarks" / f"{name}.jsonl", benchmarks.questions(name, config.benchmark_items))
    for source in config.sources:
        if isinstance(source, EmbeddedSource) and source.held_out_share:
            rows = sorted(embedded.held_out_questions(source), key=lambda row: str(row["id"]))[: config.benchmark_items]
            write_json_lines(out.path / "benchmarks" / "descriptions.jsonl", rows)
    if not (out.path / "benchmarks").is_dir():
        raise EmptyOutput("There are no benchmarks.", "List some in download.benchmarks.")
