"""The writers of the download stage: shards of documents, and pairs as JSON Lines."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, TextIO

from storage.shards.documents import Document, Verdict, shard_name, write_documents, write_ledger
from storage.shards.lines import as_line, open_lines
from tasks.download.config import DownloadConfig
from tasks.download.exclude import Exclusion
from tasks.shards import ShardResult
from tasks.stage.output import Output
from tasks.text import tally


class ShardWriter:
    """Writes documents to shards of limited size, in order, and the ledger beside them. Repeated ids are kept: removing
    them is dedup's task."""

    def __init__(self, config: DownloadConfig, folder: Path, exclusion: Exclusion) -> None:
        self.exclusion = exclusion
        self.config, self.folder, self.ledger = config, folder, folder.parent / "ledger"
        self.seen = 0
        self.shards = self.ledger_shards = 0
        self.documents: Counter[str] = Counter()
        self.characters: Counter[str] = Counter()
        self.said: dict[str, Counter[str]] = defaultdict(Counter)
        self.batch: list[Document] = []
        self.bytes = self.places = 0  # of the current shard, excluded documents with them

    def add(self, document: Document) -> bool:
        """Add a document, and close the shard when it is full. An excluded one takes room in its shard, but isn't
        written. Returns whether it is."""
        kept = not self.exclusion.names(document)
        self.places += 1
        text = document.text
        size = len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
        self.bytes += size
        if kept:
            self.batch.append(document)
            self.seen += 1
            self.documents[document.source] += 1
            self.characters[document.source] += len(document.text)
            tally.add(self.said[document.source], document, size)
        if self.places >= self.config.shard_documents or self.bytes >= self.config.shard_bytes:
            self.close()
        return kept

    def judge(self, verdicts: Iterable[Verdict]) -> None:
        """Write the next shard of the ledger, even if it is empty."""
        write_ledger(self.ledger / shard_name(self.ledger_shards), verdicts)
        self.ledger_shards += 1

    def close(self) -> None:
        """Write the current shard, if it has documents."""
        if self.batch:
            write_documents(self.folder / shard_name(self.shards), self.batch)
            self.shards += 1
        self.batch, self.bytes, self.places = [], 0, 0

    def take(self, source: str, read: ShardResult) -> list[int]:
        """Add the shards that a worker wrote of a source, linked under the next numbers, which are returned."""
        self.close()
        self.folder.mkdir(parents=True, exist_ok=True)
        first = self.shards
        for shard in sorted((read.folder / self.folder.name).glob("*.parquet")):
            (self.folder / shard_name(self.shards)).hardlink_to(shard)
            self.shards += 1
        self.seen += read.counts["documents"]
        self.documents[source] += read.counts["documents"]
        self.characters[source] += read.counts["characters"]
        self.said[source].update(read.counts["said"])
        return list(range(first, self.shards))


class PairWriter:
    """Writes each pair to the file of its role as it comes; none is kept in memory."""

    def __init__(self, files: dict[str, TextIO]) -> None:
        self.files = files
        self.by_role: Counter[str] = Counter()
        self.by_source: Counter[str] = Counter()

    def add(self, role: str, pair: dict[str, Any]) -> None:
        """Write a pair."""
        self.files[role].write(as_line(pair))
        self.by_role[role] += 1
        self.by_source[pair["source"]] += 1


@contextmanager
def pair_writer(roles: Iterable[str], out: Output) -> Iterator[PairWriter]:
    """A writer with a file for each role, even for a role without a pair."""
    with ExitStack() as files:
        yield PairWriter({role: files.enter_context(open_lines(out.path / role / "pairs.jsonl")) for role in roles})
