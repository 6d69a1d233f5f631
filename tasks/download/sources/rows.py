"""A row of a source and the place where it was read, as every kind of source gives it."""

from __future__ import annotations

import difflib
import hashlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from storage.errors import BadDocument
from storage.shards.documents import Verdict

NOT_READ = "not_read"  # of members of archives
SHOWN = 12  # columns in an error
USUAL = ("text", "content", "contents", "body", "raw_content", "document", "markdown", "html")  # names of text columns


class Row(NamedTuple):
    """A row that was read but not checked, and its location: file and line, or row."""

    values: dict[str, Any]
    place: str


class Refused(NamedTuple):
    """A row that can't be used: the reason in a word, its location, and perhaps a sentence that names the key. If it
    lacks the columns that are read, also the columns that it has. `removed` says that it isn't a fault of the source: a
    page that is an image, say."""

    reason: str
    place: str
    columns: tuple[str, ...] | None = None
    why: str = ""
    removed: bool = False

    @classmethod
    def by(cls, error: BadDocument, place: str) -> Refused:
        """The row at a place, which can't be used because of this error."""
        return cls(error.message, place, error.facts.get("columns"), error.facts.get("why", ""))

    def verdict(self, source: str) -> Verdict:
        """The line of the ledger."""
        identity = hashlib.sha256(self.place.encode()).hexdigest()[:32]
        return Verdict(identity, source, "removed" if self.removed else "quarantined", self.reason, detail=self.detail)

    @property
    def detail(self) -> str:
        """The row's place, and the key with its problem. Quotes no text."""
        return f"{self.place}: {self.why}" if self.why else self.place


def first(rows: Iterator[Row | Refused], limit: int | None) -> Iterator[Row | Refused]:
    """The first rows, or all if the limit is None. Members of archives that hold no rows don't count."""
    left = limit
    while left != 0 and (row := next(rows, None)) is not None:
        yield row
        if left is not None and not (isinstance(row, Refused) and row.reason == NOT_READ):
            left -= 1


def columns_of(values: Iterable[str]) -> tuple[str, ...]:
    """The names of a row's first columns, printable. A column with inner names gives those, as paths."""
    names = (
        path
        for name in values
        for path in (
            [f"{name}.{below}" for below in values[name]]
            if isinstance(values, Mapping) and isinstance(values[name], Mapping) and values[name]
            else [name]
        )
    )
    return tuple(_printable(name) for name, _ in zip(names, range(SHOWN + 1), strict=False))


def nearest(column: str, refused: Iterable[Refused]) -> str | None:
    """The likely intended column, of those that the rows have instead."""
    names = list(dict.fromkeys(name for row in refused for name in row.columns or ()))
    close = difflib.get_close_matches(column, names, 1)
    within = [name for name in names if name.rpartition(".")[2] == column]
    usual = [name for usual in USUAL for name in names if name.rpartition(".")[2].lower() == usual]
    return next(iter([*within, *close, *usual]), None)


def describe_columns(refused: Iterable[Refused]) -> str:
    """The columns of the first three rows that lack the columns to read, each once."""
    lacking: Iterator[tuple[str, ...]] = (row.columns for row in refused if row.columns is not None)
    names = list(dict.fromkeys(name for columns, _ in zip(lacking, range(3), strict=False) for name in columns))
    return ", ".join([*names[:SHOWN], *(["…"] if len(names) > SHOWN else [])]) or "none at all"


def _printable(name: str) -> str:
    shown = name if len(name) <= 40 else f"{name[:37]}…"
    return shown if shown.isprintable() else repr(shown)
