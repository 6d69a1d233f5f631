"""How much the sources of a profile will bring, before they are read: rows, and bytes of their text.

Of files by their sizes and their first rows; of the embedded corpora as they are; of a data set of the hub by its
limit, with rows as long as those of well-known ones. Without a limit that is not known.
"""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from storage.errors import SourceError
from tasks.download.config import DownloadConfig, EmbeddedSource, FileSource, HubSource, Source
from tasks.download.sources.files import find_files, kind_of, read_file
from tasks.download.sources.rows import Row

# Documents and bytes of text of each embedded corpus; the most pairs that they give, copies apart, and the bytes of one
EMBEDDED = {"speeches": (249, 12.3e6), "encyclopedia": (23_268, 9.8e6), "packages": (568, 3.9e6)}
EMBEDDED_PAIRS = {"instructions": (1_930, 280.0), "preferences": (483, 900.0)}
CORPORA = {"speeches": 1, "encyclopedia": 3, "packages": 1}  # sources of a corpus, each with a limit of its own
# Bytes of a row of FineWeb-Edu, UltraChat and UltraFeedback
USUAL_BYTES = {"documents": 4_800.0, "instructions": 6_000.0, "preferences": 5_000.0, "labelled": 3_000.0}
WHOLE = (".txt", ".md")  # a file is a row
UNPACKED = {".gz": 3.0, ".zst": 3.5}  # bytes of text in one of the file, about
GZIP_END = 4  # bytes, which have the size
FILES, ROWS = 8, 50  # that are looked at, of each source
LONGEST = 1_000_000  # bytes of a row that is looked at


class Rows(NamedTuple):
    """Of one role. None is what is not known."""

    number: float | None = 0.0
    text: float | None = 0.0  # bytes
    fetched: float = 0.0  # bytes over the network
    files: float = 0.0

    @property
    def mean(self) -> float:
        """Bytes of a row, as far as they are known."""
        return self.text / self.number if self.text and self.number else 0.0

    def __add__(self, other: object) -> Rows:
        assert isinstance(other, Rows)
        number = None if self.number is None or other.number is None else self.number + other.number
        text = None if self.text is None or other.text is None else self.text + other.text
        return Rows(number, text, self.fetched + other.fetched, self.files + other.files)


def rows_of(config: DownloadConfig) -> dict[str, Rows]:
    """By role, what all sources bring. Raises SourceError for files that are not there."""
    found: dict[str, Rows] = {}
    for source in config.sources:
        for role, rows in _rows_of(source).items():
            found[role] = found.get(role, Rows()) + rows
    return found


def _rows_of(source: Source) -> dict[str, Rows]:
    if isinstance(source, EmbeddedSource):
        return _embedded(source)
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
        **{role: Rows(count, count * EMBEDDED_PAIRS[role][1]) for role, count in limited.items()},
    }


def _on_the_hub(source: HubSource) -> Rows:
    if source.limit is None:
        return Rows(None, None)
    size = source.limit * USUAL_BYTES[source.role]
    return Rows(source.limit, size, size)


def _in_files(source: FileSource) -> Rows:
    files = find_files(source)
    looked = files[:: max(1, len(files) // FILES)]
    line, text = _mean_row(source, looked)
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
    return Rows(total.number * kept, total.text * kept, files=len(files))


def _unpacked(path: Path) -> float:
    """Bytes of a file when it is unpacked: of gzip as its end says (modulo 4 GiB, of the last of several members)."""
    size = path.stat().st_size
    if path.suffix == ".gz" and size > GZIP_END:
        with path.open("rb") as file:
            file.seek(-GZIP_END, 2)
            told = int.from_bytes(file.read(), "little")
        if told > size:
            return told
    return size * UNPACKED.get(path.suffix, 1.0)


def _in_parquet(path: Path, source: FileSource) -> Rows:
    """By the footer: rows, and the bytes of the column of the text, or of all columns, before they are packed."""
    from pyarrow import ArrowException
    from pyarrow.parquet import read_metadata

    try:
        found = read_metadata(path)
    except (OSError, ArrowException):
        return Rows()  # `download` says so, and what is wrong
    groups = [found.row_group(number) for number in range(found.num_row_groups)]
    columns = [group.column(number) for group in groups for number in range(group.num_columns)]
    wanted = source.text_column if source.role == "documents" else ""
    mine = [column for column in columns if column.path_in_schema == wanted] or columns
    return Rows(found.num_rows, sum(column.total_uncompressed_size for column in mine))


def _mean_row(source: FileSource, files: list[Path]) -> tuple[float, float]:
    """Bytes of a row in its file, and of its text, in the mean of the first rows of these files."""
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
            continue  # `download` says so, and what is wrong
    usual = USUAL_BYTES[source.role]
    return sum(lines) / len(lines) if lines else usual, sum(texts) / len(texts) if texts else usual
