"""The amount of data in a profile's sources, before they are read: rows, and bytes of their text.

Files are estimated from their sizes and first rows, the embedded corpora are known, and a hub data set has its limit,
with rows as long as those of well-known data sets. Without a limit its size is unknown.
"""

from __future__ import annotations

import json
import math
from itertools import islice
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from storage.errors import SourceError
from tasks.download.config import (
    DocumentSource,
    DownloadConfig,
    DumpSource,
    EmbeddedSource,
    FileSource,
    HubSource,
    Source,
    WebSource,
)
from tasks.download.formats import MAILBOX, form_of
from tasks.download.sources.files import find_files, read_file
from tasks.download.sources.rows import Row
from tasks.download.sources.streams import kind_of
from tasks.download.web.archives import looked_at

# Documents and bytes of text of each embedded corpus. Most distinct pairs that they give, and the bytes of one and of
# the longest
EMBEDDED = {"speeches": (249, 12.3e6), "encyclopedia": (23_268, 9.8e6), "packages": (568, 3.9e6)}
EMBEDDED_PAIRS = {"instructions": (1_930, 280.0, 1_314.0), "preferences": (483, 900.0, 1_426.0)}
CORPORA = {"speeches": 1, "encyclopedia": 3, "packages": 1}  # sources of a corpus, each with its own limit
# Bytes of a row of FineWeb-Edu, UltraChat and UltraFeedback
USUAL_BYTES = {"documents": 4_800.0, "instructions": 6_000.0, "preferences": 5_000.0, "labelled": 3_000.0}
WHOLE = (".txt", ".md")  # a file is a row
UNPACKED = {
    ".gz": 3.0,
    ".zst": 3.5,
    ".tgz": 3.0,
    ".zip": 3.0,
    ".zstd": 3.5,
}  # bytes of text per byte of the file, about
GZIP_END = 4  # bytes, which hold the size
# Bytes of a compressed archive for each page, and bytes of its text: half the pages of WARC have none
WARC_PAGE, WET_PAGE, PAGE_TEXT = 20_000.0, 2_500.0, 2_500.0
OF_A_CRAWL = {"warc": 1_000_000_000, "wet": 75_000_000}  # bytes of an archive of Common Crawl, about
# Bytes of text for each byte of a document, and the time for a page of it, as a share of trafilatura's for one of HTML
DOCUMENT_TEXT = {"pdf": 0.2, "docx": 0.25, "odt": 0.25, "pptx": 0.02, "epub": 0.7, "html": 0.2, "mail": 0.5}
DOCUMENT_TIME = {"pdf": 0.6, "docx": 0.1, "odt": 0.1, "pptx": 0.2, "epub": 0.1}
DOCUMENT_PAGE, MESSAGE = 3_000.0, 6_000.0  # bytes of text, and of a message in a mailbox
SECONDS = {"trafilatura": 1.0, "resiliparse": 0.1}  # for a page, as a share of trafilatura's
# Of dumps: bytes of a file for each byte of the packed one, and unpacked bytes for each document and for its text. And
# the time for a document, as a share of trafilatura's for a page
DUMPS = {
    "wikipedia": ({".bz2": 4.5, ".gz": 3.5, ".zst": 4.0}, 14_000.0, 3_000.0, 0.35),
    "stackexchange": ({".7z": 4.5}, 3_500.0, 1_600.0, 0.02),
    "arxiv": ({}, 700_000.0, 50_000.0, 0.5),
}
FILES, ROWS = 8, 50  # sampled from each source
LONGEST = 1_000_000  # bytes of a sampled row


class Rows(NamedTuple):
    """The rows of one role. None means unknown."""

    number: float | None = 0.0
    text: float | None = 0.0  # bytes
    fetched: float = 0.0  # bytes over the network
    files: float = 0.0
    longest: float = 0.0  # bytes of the longest row, of a file of those that were sampled. Unknown ones are infinite
    pages: float = 0.0  # of HTML and of documents, each counted as the share of trafilatura's time that it takes

    @property
    def mean(self) -> float:
        """Mean bytes of a row, or 0 if unknown."""
        return self.text / self.number if self.text and self.number else 0.0

    def __add__(self, other: object) -> Rows:
        assert isinstance(other, Rows)
        number = None if self.number is None or other.number is None else self.number + other.number
        text = None if self.text is None or other.text is None else self.text + other.text
        longest = max(self.longest, other.longest)
        fetched, files, pages = self.fetched + other.fetched, self.files + other.files, self.pages + other.pages
        return Rows(number, text, fetched, files, longest, pages)


def rows_of(config: DownloadConfig) -> dict[str, Rows]:
    """The rows of all sources by role. Raises SourceError for missing files."""
    by_role: dict[str, Rows] = {}
    for source in config.sources:
        for role, rows in _rows_of(source).items():
            by_role[role] = by_role.get(role, Rows()) + rows
    return by_role


def _rows_of(source: Source) -> dict[str, Rows]:
    if isinstance(source, EmbeddedSource):
        return _embedded(source)
    if isinstance(source, WebSource):
        return {source.role: _in_archives(source)}
    if isinstance(source, DocumentSource):
        return {source.role: _in_documents(source)}
    if isinstance(source, DumpSource):
        return {source.role: _in_dumps(source)}
    return {source.role: _on_the_hub(source) if isinstance(source, HubSource) else _in_files(source)}


def _embedded(source: EmbeddedSource) -> dict[str, Rows]:
    documents = Rows()
    for corpus in source.corpora:
        count, size = EMBEDDED[corpus]
        kept = min(count, source.limit * CORPORA[corpus]) if source.limit else count
        documents += Rows(kept, size * kept / count)
    pairs = {"instructions": source.instructions, "preferences": source.preferences}
    limited = {role: min(most, EMBEDDED_PAIRS[role][0]) for role, most in pairs.items()}
    return {
        "documents": documents,
        **{
            role: Rows(count, count * EMBEDDED_PAIRS[role][1], longest=EMBEDDED_PAIRS[role][2] if count else 0.0)
            for role, count in limited.items()
        },
    }


def _on_the_hub(source: HubSource) -> Rows:
    if source.limit is None:
        return Rows(None, None, longest=math.inf)
    size = source.limit * USUAL_BYTES[source.role]
    return Rows(source.limit, size, size, longest=math.inf)


def _in_archives(source: WebSource) -> Rows:
    """Pages of web archives, from the files' sizes. Unknown for a whole crawl."""
    if source.crawl and not source.crawl.files:
        return Rows(None, None, longest=math.inf)
    files = [(path, path.stat().st_size) for path in find_files(source)]
    sent = [(Path(urlsplit(each.url).path), each.size) for each in looked_at(source)]
    if source.crawl and source.crawl.files:
        content = source.crawl.content
        sent += [(Path(f"a.{content}.gz"), OF_A_CRAWL[content])] * source.crawl.files
    total = Rows()
    for path, bytes_ in files + sent:
        size = bytes_ * (1.0 if path.suffix in UNPACKED else 1 / UNPACKED[".gz"])
        if ".wet" in path.suffixes:
            total += Rows(size / WET_PAGE, size * UNPACKED[".gz"])
        else:
            total += Rows(size / WARC_PAGE, size / WARC_PAGE * PAGE_TEXT, pages=size / WARC_PAGE)
    number, text = total.number or 0.0, total.text or 0.0
    kept = min(1.0, source.limit / max(1.0, number)) if source.limit else 1.0
    return Rows(
        number * kept,
        text * kept,
        fetched=sum(size for _, size in sent) * kept,
        files=len(files) + len(sent),
        longest=math.inf,
        pages=total.pages * kept * SECONDS[source.extractor],
    )


def _in_documents(source: DocumentSource) -> Rows:
    """Documents, from the files' sizes. A file is one, but for mailboxes."""
    total = Rows()
    files = find_files(source)
    for path in files:
        form, size = form_of(path), path.stat().st_size
        number = max(1.0, size / MESSAGE) if path.suffix.lower() == MAILBOX else 1.0
        text = size * DOCUMENT_TEXT.get(form, 1.0)
        share = DOCUMENT_TIME.get(form, 0.0) * text / DOCUMENT_PAGE
        if form in ("html", "mail"):
            share = number * SECONDS[source.extractor]
        total += Rows(number, text, pages=share)
    number = total.number or 0.0
    kept = min(1.0, source.limit / max(1.0, number)) if source.limit else 1.0
    text = (total.text or 0.0) * kept
    return Rows(number * kept, text, files=len(files), longest=math.inf, pages=total.pages * kept)


def _in_dumps(source: DumpSource) -> Rows:
    """Documents of dumps, from the files' sizes. A book is a file."""
    total = Rows()
    files = find_files(source)
    for path in files:
        if source.format == "gutenberg":
            total += Rows(1, _unpacked(path))
            continue
        unpacked, each, text, pages = DUMPS[source.format]
        number = max(1.0, path.stat().st_size * unpacked.get(path.suffix, 1.0) / each)
        total += Rows(number, number * text, pages=number * pages)
    number = total.number or 0.0
    kept = min(1.0, source.limit / max(1.0, number)) if source.limit else 1.0
    return Rows(number * kept, (total.text or 0.0) * kept, files=len(files), longest=math.inf, pages=total.pages * kept)


def _in_files(source: FileSource) -> Rows:
    files = find_files(source)
    line, text, longest = _sampled(source, files[:: max(1, len(files) // FILES)])
    total = Rows()
    for path in files:
        size = _unpacked(path)
        if kind_of(path) == ".parquet":
            total += _in_parquet(path, source)
        else:
            total += Rows(1, size) if kind_of(path) in WHOLE else Rows(size / line, size * min(1.0, text / line))
    assert total.number is not None
    assert total.text is not None
    kept = min(1.0, source.limit / max(1.0, total.number)) if source.limit else 1.0
    return Rows(total.number * kept, total.text * kept, files=len(files), longest=longest)


def _unpacked(path: Path) -> float:
    """Bytes of a file when unpacked: of gzip from its end (modulo 4 GiB, and of the last of several members)."""
    size = path.stat().st_size
    if path.suffix == ".gz" and size > GZIP_END:
        with path.open("rb") as file:
            file.seek(-GZIP_END, 2)
            stated = int.from_bytes(file.read(), "little")
        if stated > size:  # otherwise it is not the size of the whole
            return stated
    return size * UNPACKED.get(path.suffix, 1.0)


def _in_parquet(path: Path, source: FileSource) -> Rows:
    """Rows, and unpacked bytes of the text column or of all columns, from the footer."""
    from pyarrow import ArrowException
    from pyarrow.parquet import read_metadata

    try:
        metadata = read_metadata(path)
    except (OSError, ArrowException):
        return Rows()  # `download` will report what is wrong
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    columns = [group.column(number) for group in groups for number in range(group.num_columns)]
    wanted = source.text_column if source.role == "documents" else ""
    mine = [column for column in columns if column.path_in_schema == wanted] or columns
    return Rows(metadata.num_rows, sum(column.total_uncompressed_size for column in mine))


def _sampled(source: FileSource, files: list[Path]) -> tuple[float, float, float]:
    """Mean bytes of a row in its file, and of its text, and of the longest row, from the first rows of these files."""
    lines, texts = [], []
    for path in files:
        if kind_of(path) in WHOLE:
            continue
        try:
            for row in islice(read_file(path, path.name, source, LONGEST), ROWS):
                if isinstance(row, Row):
                    line = json.dumps(row.values, ensure_ascii=False, default=str)
                    lines.append(len(line.encode(errors="replace")))
                    text = row.values.get(source.text_column) if source.role == "documents" else None
                    texts.append(len(text.encode(errors="replace")) if isinstance(text, str) else lines[-1])
        except SourceError:
            continue  # `download` will report what is wrong
    usual = USUAL_BYTES[source.role]
    if not lines:
        return usual, usual, math.inf
    return sum(lines) / len(lines), sum(texts) / len(texts), max(lines)
