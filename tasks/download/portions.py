"""Files of documents, read in portions by all workers.

A portion is some whole files, or what begins in a range of the bytes of one: lines of JSON, records of a web archive,
streams of a dump. Portions depend only on the files, so shards are the same for any number of workers (law 4). Nothing
else is divided: a row of a table may span lines, and most compressed files can't be read from their middle.
"""

from __future__ import annotations

import functools
import hashlib
import socket
from collections import Counter
from collections.abc import Iterator, Sequence, Set
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple
from urllib.parse import urlsplit

from storage.digest_cache import path_text
from storage.errors import BadDocument, SourceError
from storage.shards.documents import Document, Verdict, read_ledger
from storage.shards.lines import as_line, open_lines, read_json_lines, write_json_lines
from tasks.download import exclude
from tasks.download.config import DocumentSource, DownloadConfig, DumpSource, HubSource, LocalSource, WebSource
from tasks.download.documents import read as documents
from tasks.download.dumps import read as dumps
from tasks.download.dumps.packed import is_multistream
from tasks.download.earlier import DOCUMENTS, LEDGER, Record, Taken, keys_of, take, taken_before
from tasks.download.exclude import Exclusion
from tasks.download.sources import files, hub
from tasks.download.sources.files import ENDINGS_OF
from tasks.download.sources.metadata import NotKept, to_json
from tasks.download.sources.remote import Address, Politeness, look, open_address
from tasks.download.sources.rows import Refused, Row, first
from tasks.download.sources.streams import check_begun, unreadable
from tasks.download.web import pages
from tasks.download.web.archives import UNSEEN, addresses
from tasks.download.web.sections import Reach
from tasks.download.writers import ShardWriter
from tasks.shards import ShardResult, map_shards
from tasks.shards.shard import while_going_on
from tasks.stage.output import Output
from tasks.text.process import close_processes

SHARDS = 4  # about the most full shards from a portion
READ_BYTES = 1 << 20
# Fields of the config that decide what a portion has. Artifacts that differ in others take each other's portions
SAME = {"max_document_bytes", "max_metadata_bytes", "shard_documents", "shard_bytes"}
OTHER = frozenset(DownloadConfig.model_fields) - SAME
WHICH = {"paths", "crawl", "revision"}  # fields of a source that say which files it has, not how they are read
REFUSED, REMOVED = "refused.jsonl", "removed.jsonl"


class Span(NamedTuple):
    """What begins in these bytes of a file, lines or records, or the whole file if `end` is None. `name` is the path as
    found, or the URL of an `address`. `size` and `modified` are those of the file at that time."""

    path: Path
    name: str
    size: int
    modified: int
    start: int = 0
    end: int | None = None
    address: Address | None = None

    @property
    def divisible(self) -> bool:
        """Whether it can be read from its middle: also Parquet of the hub."""
        sent_in_parts = self.address is None or (self.address.parts and self.address.size != UNSEEN)
        web = self.path.name.endswith(ENDINGS_OF["web"])
        if web or self.address is None:
            lines = self.path.suffix == ".jsonl" or is_multistream(self.path)
            return sent_in_parts and (lines or (web and self.path.suffix != ".zst"))
        return True


Portion = tuple[Span, ...]
InPortions = LocalSource | HubSource  # of the hub if it is Parquet


class Read(NamedTuple):
    """What came of a source, besides its documents: refused rows, removed ones by reason, fields that metadata can't
    hold, parts of documents without text (such as templates) by name, and the record of its portions."""

    refused: list[Refused]
    removed: Counter[str]
    dropped: Counter[NotKept]
    lost: Counter[str]
    records: list[Record]


def spans(source: LocalSource, polite: Politeness) -> list[Span]:
    """The files of a source, those at addresses last. Raises SourceError."""
    found = []
    for path in files.find_files(source):
        state = path.stat()
        found.append(Span(path.absolute(), path_text(path), state.st_size, state.st_mtime_ns))
    if isinstance(source, WebSource):
        for each in addresses(source, polite):
            path = Path(urlsplit(each.url).path or each.url)
            if not path.name.endswith(ENDINGS_OF["web"]):
                raise SourceError(
                    f"Source {source.name}: {each.url} has an unknown extension.",
                    f"Supported are {', '.join(ENDINGS_OF['web'])}.",
                )
            found.append(Span(path, each.url, max(0, each.size), 0, address=each))
    return found


def spans_of_hub(source: HubSource, polite: Politeness) -> list[Span] | None:
    """The files of a source of the hub, or None if they aren't Parquet. Raises SourceError."""
    found = hub.find_parquet(source, polite)
    if found is None:
        return None
    names = [hub.name_of(source, each) for each in found]
    return [Span(Path(name), name, each.size, 0, address=each) for name, each in zip(names, found, strict=True)]


def portions(source: InPortions, found: list[Span], size: int, undivided: Set[str] = frozenset()) -> list[Portion]:
    """The files of a source in portions. A single portion if the source has a limit.

    Large files are divided by bytes, and small ones collected, up to about `SHARDS` shards of `size` bytes. A
    collection of one shard or more may end with any file, by the hash of its name, so that a file that is added or gone
    changes only the portion that it is in, and perhaps the next."""
    if source.limit is not None:
        return [tuple(found)] if found else []
    made: list[Portion] = []
    small: list[Span] = []
    total = 0
    for span in found:
        if span.divisible and span.size > SHARDS * size and span.name not in undivided:
            made += [tuple(small)] if small else []
            steps = range(0, span.size, SHARDS * size)
            made += [(span._replace(start=at, end=at + SHARDS * size),) for at in steps]
            small, total = [], 0
            continue
        small.append(span)
        total += span.size
        unseen = span.address is not None and span.address.size == UNSEEN
        if unseen or total >= SHARDS * size or (total >= size and _ends_portion(span, size)):
            made.append(tuple(small))
            small, total = [], 0
    return [*made, *([tuple(small)] if small else [])]


def _ends_portion(span: Span, size: int) -> bool:
    """Whether a file ends a portion, about one of those that are `size` bytes together."""
    drawn = int.from_bytes(hashlib.sha256(span.name.encode()).digest()[:8])
    return drawn * size < span.size * 2**64


def portion_keys(source: InPortions, jobs: list[Portion]) -> list[str]:
    """The key of each portion of a source. Raises SourceError."""
    reading = source.model_dump(mode="json", exclude=WHICH)
    if isinstance(source, WebSource):
        reading |= pages.read_by(source)
    elif isinstance(source, DumpSource):
        reading |= dumps.fingerprint(source)
    elif isinstance(source, DocumentSource):
        reading |= documents.versions(source)
        return keys_of(source.name, reading, jobs, functools.partial(documents.said_beside, source))
    return keys_of(source.name, reading, jobs)


def any_input(_: str) -> bool:
    """Whether an input may differ between artifacts that take each other's portions, whose keys have what matters."""
    return True


def read_portions(
    source: InPortions, found: list[Span], config: DownloadConfig, out: Output, writer: ShardWriter
) -> Read:
    """Read all documents of a source into shards, which `writer` takes with those of the ledger. Portions that an
    earlier artifact has are taken from there. Raises SourceError."""
    jobs, keys, results = _map(source, found, config, out, writer.exclusion)
    read = Read([], Counter(), Counter(), Counter(), [])
    before: Counter[str] = Counter()  # lines, by divided file
    for portion, key, result in zip(jobs, keys, results, strict=True):
        counts = dict(result.counts)
        taken, damaged = counts.pop("taken", ""), counts.pop("damaged", "")
        if damaged:
            out.warn(f"{damaged} can't be taken, missing or with changed bytes: read again")
        for field, why, times in counts["dropped"]:
            read.dropped[NotKept(source.name, field, why)] += times
        read.removed.update(counts["removed"])
        read.removed.update({exclude.REASON: len(counts["excluded"])} if counts["excluded"] else {})
        read.lost.update(counts.get("lost", {}))
        refused = list(_refused(result.folder, before[portion[0].name]))
        read.refused.extend(refused)
        before[portion[0].name] += counts.get("lines", 0)
        documents, ledger = writer.take(source.name, result), None
        if refused or counts["removed"] or counts["excluded"]:
            ledger = writer.ledger_shards
            writer.judge(_verdicts(source.name, refused, counts["excluded"], result.folder))
        read.records.append(Record(key, documents, ledger, counts, taken))
    return read


def _map(
    source: InPortions, found: list[Span], config: DownloadConfig, out: Output, exclusion: Exclusion
) -> tuple[list[Portion], list[str], list[ShardResult]]:
    """The portions of a source, their keys, and what was read of each. Raises SourceError."""
    name = f"{DOCUMENTS}-{hashlib.sha256(source.name.encode()).hexdigest()[:16]}"  # any text may be a source's name
    polite = Politeness(out.runtime.data.connections, out.runtime.data.patience_minutes)
    work = functools.partial(_take_or_read, source, config, exclusion, polite)
    undivided: set[str] = set()
    try:
        while True:
            jobs = portions(source, found, config.shard_bytes, undivided)
            keys = portion_keys(source, jobs)
            taken = taken_before(keys, out.earlier(any_input, OTHER), exclusion, out.warn)
            results = map_shards(work, list(zip(jobs, taken, strict=True)), out, name, "portions")
            if not (misread := _misread(jobs, results)):
                return jobs, keys, results
            undivided, name = undivided | misread, f"{name}-undivided"
    finally:
        close_processes()


def _refused(folder: Path, before: int) -> Iterator[Refused]:
    """The refused rows of a portion. `before` is the number of lines in the file before it, if a range was read."""
    if (folder / LEDGER).exists():  # it was taken
        quarantined = (row for row in read_ledger(folder / LEDGER) if row.verdict == "quarantined")
        yield from (Refused(row.reason, row.detail) for row in quarantined)
        return
    for row in read_json_lines(folder / REFUSED) if (folder / REFUSED).exists() else ():
        yield _in_file(Refused(**row), before) if before else Refused(**row)


def _verdicts(source: str, refused: list[Refused], excluded: list[str], folder: Path) -> Iterator[Verdict]:
    """The shard of the ledger of a portion."""
    if (folder / LEDGER).exists():
        yield from read_ledger(folder / LEDGER)
        return
    yield from (row.verdict(source) for row in refused)
    yield from (Refused(**row).verdict(source) for row in read_json_lines(folder / REMOVED))
    yield from (exclude.verdict(one, source) for one in excluded)


def _misread(jobs: Sequence[Portion], read: Sequence[ShardResult]) -> set[str]:
    """The divided archives of which some range didn't begin with the record after the range before: it began within
    that, with a record that lies in another one."""
    found: set[str] = set()
    following: int | None = None
    for (span, *_), result in zip(jobs, read, strict=True):
        if span.end is None or "first" not in result.counts:
            continue
        first, after = result.counts["first"], result.counts["after"]
        if span.start and following is not None:
            if (first is None and following < min(span.end, span.size)) or (first is not None and first != following):
                found.add(span.name)
            if first is None:
                continue  # the record before goes on
        following = after
    return found


def _in_file(row: Refused, before: int) -> Refused:
    """The row with its line in the file. In a divided file a worker counts from the first line that it reads."""
    name, _, line = row.place.rpartition(":")
    return row._replace(place=f"{name}:{before + int(line)}")


def read_document(
    source: InPortions, row: Row, config: DownloadConfig, dropped: Counter[NotKept]
) -> Document | Refused:
    """The document of a row. `dropped` counts the fields that metadata can't hold."""
    try:
        text, rest = files.text_of(row.values, source.text_column, config.max_document_bytes)
        document = Document.new(text, source.name, **to_json(rest, config.max_metadata_bytes, source.name, dropped))
        document.metadata.encode()
    except UnicodeEncodeError:
        return Refused("lone_surrogate", row.place)
    except BadDocument as error:
        return Refused.by(error, row.place)
    return document


def _take_or_read(
    source: InPortions,
    config: DownloadConfig,
    exclusion: Exclusion,
    polite: Politeness,
    job: tuple[Portion, Taken | None],
    folder: Path,
) -> dict[str, Any]:
    portion, taken = job
    found = take(taken, source.name, exclusion, folder) if taken else ""
    if taken and isinstance(found, dict):
        return {**found, "taken": taken.location}
    read = _read(source, config, exclusion, polite, portion, folder)
    return {**read, "damaged": found} if found else read


def _read(
    source: InPortions, config: DownloadConfig, exclusion: Exclusion, polite: Politeness, portion: Portion, folder: Path
) -> dict[str, Any]:
    """Write a portion's shards and refused rows. Returns the counts."""
    writer = ShardWriter(config, folder / DOCUMENTS, exclusion)
    excluded: list[str] = []
    dropped: Counter[NotKept] = Counter()
    refused: list[Refused] = []
    removed: Counter[str] = Counter()
    scanned = 0
    lost: Counter[str] = Counter()
    reach = Reach(portion[0].start, portion[0].end)
    rows = chain.from_iterable(_rows(span, source, config, folder, polite, reach, lost) for span in portion)
    with open_lines(folder / REMOVED) as file:
        for row in while_going_on(first(rows, source.limit), folder):
            made = row if isinstance(row, Refused) else read_document(source, row, config, dropped)
            if not isinstance(made, Refused):
                if not writer.add(made):
                    excluded.append(made.id)
                elif isinstance(source, DocumentSource) and isinstance(row, Row):
                    scanned += row.values.get("scanned_pages", 0)
            elif made.removed:
                removed[made.reason] += 1
                file.write(as_line(made._asdict()))
            else:
                refused.append(made)
    writer.close()
    write_json_lines(folder / REFUSED, (row._asdict() for row in refused))
    counts = {
        "documents": writer.seen,
        "characters": writer.characters[source.name],
        "said": writer.said[source.name],
        "removed": removed,
        "excluded": sorted(excluded),
        "lost": lost,
        "dropped": [[what.field, what.why, times] for what, times in dropped.items()],
    }
    if scanned:
        counts["scanned_pages"] = scanned
    if reach.end is None or isinstance(source, DumpSource | HubSource):
        return counts
    if isinstance(source, WebSource):
        return counts | {"first": reach.first, "after": reach.after}
    return counts | {"lines": _lines(portion[0])}


def _rows(
    span: Span,
    source: InPortions,
    config: DownloadConfig,
    folder: Path,
    polite: Politeness,
    reach: Reach,
    lost: Counter[str],
) -> Iterator[Row | Refused]:
    if isinstance(source, HubSource):
        assert span.address is not None
        yield from hub.read_file(span.address, source, polite, folder, span.start, span.end)
        return
    _check_unchanged(span)
    if isinstance(source, DocumentSource):
        yield from documents.read_documents(span.path, span.name, source, config.max_document_bytes)
        return
    if isinstance(source, DumpSource):
        limit = config.max_document_bytes
        yield from dumps.read_dump(span.path, span.name, source, limit, folder, lost, span.start, span.end)
        return
    if not isinstance(source, WebSource):
        yield from files.read_file(span.path, span.name, source, config.max_document_bytes, span.start, span.end)
        return
    with _opened(span, folder, polite) as file:
        yield from pages.read_pages(file, span.name, source, config.max_document_bytes, reach)


def _opened(span: Span, folder: Path, polite: Politeness) -> BinaryIO:
    """The archive of a span. Raises SourceError."""
    if span.address is None:
        try:
            check_begun(span.path)
            return span.path.open("rb")
        except OSError as error:
            raise unreadable(span.path, error) from error
    address = look(span.name, polite) if span.address.size == UNSEEN else span.address
    if not address.size:
        raise unreadable(address.url, EOFError("it is empty"))
    return open_address(address, folder, polite)


def _check_unchanged(span: Span) -> None:
    if span.address is not None:
        return
    state = span.path.stat() if span.path.exists() else None
    if state is None or (state.st_size, state.st_mtime_ns) != (span.size, span.modified):
        raise SourceError(
            f"{span.name} on {socket.gethostname()} is not the file that the run began with.",
            "Run again once nothing writes to it. Workers on other hosts must see the same files at the same paths.",
        )


def _lines(span: Span) -> int:
    """The number of lines that begin in a span's bytes: one after each line feed, and one at the start of the file."""
    assert span.end is not None
    _check_unchanged(span)
    lines, at = int(span.start == 0), max(0, span.start - 1)
    with span.path.open("rb") as file:
        file.seek(at)
        while at < span.end - 1 and (read := file.read(min(READ_BYTES, span.end - 1 - at))):
            lines, at = lines + read.count(b"\n"), at + len(read)
    return lines
