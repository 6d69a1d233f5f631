"""What came of the rows of all sources, and how the stage's page tells it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from storage.shards.documents import Document, Verdict
from tasks.download import exclude
from tasks.download.config import DownloadConfig, DumpSource, EmbeddedSource, ExtractedSource, FileSource
from tasks.download.earlier import Record
from tasks.download.portions import Read
from tasks.download.sources.metadata import NotKept
from tasks.download.sources.rows import NOT_READ, Refused
from tasks.download.writers import PairWriter, ShardWriter
from tasks.stage.output import Output
from tasks.text import tally

SHOWN = 50  # rows of a table
LOST = {  # of dumps, what may have no text, or no marks
    "wikipedia": "Templates without text",
    "stackexchange": "Posts without text",
    "gutenberg": "Books without marks",
    "arxiv": "Commands without text",
}


@dataclass
class Account:
    """Rows that became no document or pair, by source: `refused` ones, and the number of `removed` ones by reason.
    `verdicts` are those of rows that weren't read in portions, `lost` names what documents of dumps have no text for,
    `dropped` the fields that metadata can't hold, and `records` the portions."""

    verdicts: list[Verdict] = field(default_factory=list)
    refused: dict[str, list[Refused]] = field(default_factory=dict)
    removed: dict[str, Counter[str]] = field(default_factory=dict)
    lost: dict[str, Counter[str]] = field(default_factory=dict)
    dropped: Counter[NotKept] = field(default_factory=Counter)
    records: list[Record] = field(default_factory=list)

    def take(self, source: str, read: Read) -> None:
        """Add what came of a source that was read in portions."""
        if read.refused:
            self.refused[source] = read.refused
        if read.removed:
            self.removed[source] = read.removed
        if read.lost:
            self.lost[source] = read.lost
        self.dropped += read.dropped
        self.records += read.records

    def exclude(self, document: Document) -> None:
        """Add a document that is left out."""
        self.removed.setdefault(document.source, Counter())[exclude.REASON] += 1
        self.verdicts.append(exclude.verdict(document.id, document.source))

    def tell(self, config: DownloadConfig, out: Output, writer: ShardWriter, written: PairWriter) -> None:
        """Count everything, and write the tables."""
        self._count(config, out, writer, written)
        self._tell_sources(out, writer, written)
        self._tell_fates(config, out, writer)
        self._tell_losses(config, out)
        self._tell_portions(out)

    def _count(self, config: DownloadConfig, out: Output, writer: ShardWriter, written: PairWriter) -> None:
        reasons = sum(self.removed.values(), Counter[str]())
        roles = {source.name: source.role for source in config.sources if not isinstance(source, EmbeddedSource)}
        lost = Counter(roles[name] for name, rows in self.refused.items() for _ in rows)
        documents = lost.pop("documents", 0)
        if writer.seen or documents:  # with a base model, sources may have only pairs
            out.account(
                documents_in=writer.seen + reasons.total() + documents,
                kept=writer.seen,
                removed=reasons,
                quarantined=documents,
            )
        else:
            told = f", {lost.total():,} quarantined" if lost else ""
            out.count(summary=f"{written.by_role.total():,} pairs{told}")
        out.count(**{role: written.by_role[role] for role in written.files})
        out.count(**{f"{role}_quarantined": number for role, number in sorted(lost.items())})
        not_read = Counter(roles[verdict.source] for verdict in self.verdicts if verdict.reason == NOT_READ)
        out.count(**{f"{role}_not_read": number for role, number in sorted(not_read.items())})
        changed = Counter(verdict.source for verdict in self.verdicts if verdict.verdict == "changed")
        if changed:
            out.count(instructions_changed=changed.total())

    def _tell_sources(self, out: Output, writer: ShardWriter, written: PairWriter) -> None:
        changed = Counter(verdict.source for verdict in self.verdicts if verdict.verdict == "changed")
        names = sorted({*writer.documents, *written.by_source, *self.refused})
        rows = [
            {
                "source": name,
                "documents": writer.documents[name],
                "characters": writer.characters[name],
                "bytes": writer.said[name][tally.BYTES],
                "pairs": written.by_source[name],
                "changed": changed[name],
                "removed": self.removed.get(name, Counter[str]()).total(),
                "quarantined": len(self.refused.get(name, [])),
            }
            for name in names
        ]
        out.table("Sources", rows)
        for key, title in ((tally.LANGUAGE, "language"), (tally.LICENCE, "licence")):
            stated = [
                {"source": name, title: value, "documents": number}
                for name in names
                for value, number in tally.by_value(writer.said[name], key, writer.documents[name])
            ]
            if any(row[title] != tally.NOT_STATED for row in stated):
                out.table(f"Documents by {title}", stated)

    def _tell_fates(self, config: DownloadConfig, out: Output, writer: ShardWriter) -> None:
        shown = [
            source
            for source in config.sources
            if isinstance(source, ExtractedSource) or (isinstance(source, FileSource) and source.name in self.removed)
        ]
        for unit in dict.fromkeys(source.unit for source in shown):
            fates = [
                {"source": source.name, "fate": fate, unit: number}
                for source in shown
                if source.unit == unit
                for fate, number in self._fates(source.name, writer)
            ]
            out.table(f"{unit.capitalize()} by fate", fates)

    def _fates(self, source: str, writer: ShardWriter) -> Iterator[tuple[str, int]]:
        """(what came of pages or documents, their number): text, then the reasons without it by their number."""
        yield "text", writer.documents[source]
        without = Counter(row.reason for row in self.refused.get(source, []))
        without += self.removed.get(source, Counter())
        yield from sorted(without.items(), key=lambda item: (-item[1], item[0]))

    def _tell_losses(self, config: DownloadConfig, out: Output) -> None:
        """Fields of rows that no document has, and what documents of dumps have no text for."""
        if self.dropped:
            out.count(metadata_dropped=self.dropped.total())
            rows = [{**what._asdict(), "rows": times} for what, times in sorted(self.dropped.items())]
            out.table("Metadata left out", sorted(rows, key=lambda row: -int(row["rows"]))[:SHOWN])
        tables: dict[str, list[dict[str, Any]]] = {}
        for source in config.sources:
            if isinstance(source, DumpSource):
                found = sorted(self.lost.get(source.name, {}).items(), key=lambda item: (-item[1], item[0]))[:SHOWN]
                named = [{"source": source.name, "name": name, "times": times} for name, times in found]
                tables.setdefault(LOST[source.format], []).extend(named)
        for title, named in tables.items():
            if named:
                out.table(title, named)

    def _tell_portions(self, out: Output) -> None:
        """Which portions are those of an earlier artifact, and pages without a text layer."""
        if not self.records:
            return
        taken = Counter(record.taken for record in self.records if record.taken)
        for location, number in taken.items():
            out.note(f"{number} of {len(self.records)} portions of files taken from {location}")
        out.fact(shards_reused=taken.total(), share_reused=taken.total() / len(self.records))
        if scanned := sum(record.counts.get("scanned_pages", 0) for record in self.records):
            out.count(scanned_pages=scanned)
            out.note(f"{scanned:,} pages of documents that were kept have no text layer")
