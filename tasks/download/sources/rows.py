"""A row of a source and where it was read: what every kind of source gives."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

SHOWN = 12  # columns in an error


class Row(NamedTuple):
    """A row that was read, not yet looked at, and its location: file and line, or row."""

    values: dict[str, Any]
    place: str


class Refused(NamedTuple):
    """A row that cannot be used: the reason in a word, its location, and perhaps a sentence that names the key; if it
    lacks the columns that are read, those it has."""

    reason: str
    place: str
    columns: tuple[str, ...] | None = None
    why: str = ""

    @property
    def detail(self) -> str:
        """Where the row is, and what is wrong with which key. It quotes no text."""
        return f"{self.place}: {self.why}" if self.why else self.place


def columns_of(values: Iterable[str]) -> tuple[str, ...]:
    """The names of a row's first columns, as they can be printed."""
    return tuple(_printable(name) for name, _ in zip(values, range(SHOWN + 1), strict=False))


def describe_columns(refused: Iterable[Refused]) -> str:
    """The columns of the first three rows that lack what is read, each once."""
    lacking: Iterator[tuple[str, ...]] = (row.columns for row in refused if row.columns is not None)
    names = list(dict.fromkeys(name for columns, _ in zip(lacking, range(3), strict=False) for name in columns))
    return ", ".join([*names[:SHOWN], *(["…"] if len(names) > SHOWN else [])]) or "none at all"


def _printable(name: str) -> str:
    shown = name if len(name) <= 40 else f"{name[:37]}…"
    return shown if shown.isprintable() else repr(shown)
