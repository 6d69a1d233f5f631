"""Labelled texts on disk as examples for a classifier."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from storage.digest_cache import remembered_digest
from storage.errors import SourceError
from storage.shards.documents import document_id
from storage.shards.lines import parse_json
from tasks.filter.fasttext_model.config import LabelledFile

LONGEST_FIELD = 1 << 24  # characters per field of a CSV file, where Python's own limit is 131,072


class Example(NamedTuple):
    """A text with its class. The ID decides which split it belongs to."""

    id: str
    positive: bool
    text: str


def digests(files: Iterable[LabelledFile], section: str) -> dict[str, str]:
    """The digest of each file, for a stage's key. Raises SourceError for a missing one."""
    by_path = {}
    for file in files:
        path = Path(file.path).expanduser()
        if not path.is_file():
            raise SourceError(f"{file.path} does not exist.", f"Check the paths under `{section}`.")
        by_path[file.path] = remembered_digest(path)
    return by_path


def read_labelled(file: LabelledFile) -> Iterator[Example]:
    """Yield the texts of a file with their classes. Raises SourceError for a file or row that isn't as described."""
    path = Path(file.path).expanduser()
    rows = {".csv": _read_csv, ".jsonl": _read_lines}.get(path.suffix)
    if rows is None:
        raise SourceError(f"{file.path} is neither .csv nor .jsonl.", "Convert it to one of them.")
    positives = 0
    for number, row in enumerate(rows(path), 1):
        text, label = row.get(file.text_column), row.get(file.label_column)
        if not isinstance(text, str) or label is None:
            raise SourceError(
                f"{file.path}, row {number} lacks {file.text_column} or {file.label_column}.",
                "Check the names of the columns.",
            )
        positive = str(label) in file.positive
        if not positive and file.negative and str(label) not in file.negative:
            continue
        positives += positive
        yield Example(document_id(text), positive, text)
    if not positives:
        raise SourceError(
            f"No row of {file.path} is labelled {' or '.join(file.positive)}.", "Check `positive` and the file."
        )


def _read_csv(path: Path) -> Iterator[dict[str, Any]]:
    csv.field_size_limit(LONGEST_FIELD)
    try:
        with path.open(encoding="utf-8", newline="") as file:
            yield from csv.DictReader(file)
    except (UnicodeDecodeError, csv.Error) as error:
        raise SourceError(f"{path} is not a CSV file in UTF-8: {error}.", "Convert it.") from error


def _read_lines(path: Path) -> Iterator[dict[str, Any]]:
    with path.open("rb") as file:
        for line in file:
            try:
                row = parse_json(line)
            except ValueError as error:
                raise SourceError(f"{path} has a line that is not JSON: {error}.", "Convert it.") from error
            if not isinstance(row, dict):
                raise SourceError(f"{path} has a line that is not an object.", "Convert it.")
            yield row
