"""Rows of .csv and .tsv files, as a stream: a header, fields in quotes with line ends in them, a row of any length.

A quote opens a field only where the field begins (RFC 4180), so `5" disk` is text. A quote that is never closed would
swallow the rest of the file, so it ends the run.
"""

from __future__ import annotations

import codecs
import csv
import re
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Literal, NamedTuple

from tasks.download.sources.rows import Refused, Row, columns_of

CLOSING = re.compile(rb'(?:[^"]++|"")*+"')
DELIMITERS = {".csv": ",", ".tsv": "\t"}


class BrokenTable(ValueError):
    """The file isn't a table. The message says why."""


class Dialect(NamedTuple):
    """How fields are separated: an ASCII character between them, and whether quotes may enclose them."""

    delimiter: str
    quotes: bool

    def still_open(self, line: bytes, inside: bool, begins: bool) -> bool:
        """Whether a quote is open at the end of a line or of a part of one, given whether one was open before it
        (`inside`), and whether a field begins there."""
        if not self.quotes:
            return False
        place, sign = 0, self.delimiter.encode()
        while True:
            if inside or (line[place : place + 1] == b'"' and (place or begins)):
                closed = CLOSING.match(line, place if inside else place + 1)
                if not closed:
                    return True
                place, inside = closed.end(), False
            place = line.find(sign, place) + 1
            if not place:
                return False

    def split(self, record: str) -> list[str]:
        """The fields of a record without its line end. Raises csv.Error."""
        quoting: Literal[0, 3] = csv.QUOTE_MINIMAL if self.quotes else csv.QUOTE_NONE
        (fields,) = csv.reader([record], delimiter=self.delimiter, quoting=quoting)
        return fields


def read_table(readline: Callable[[int], bytes], name: str, dialect: Dialect, limit: int) -> Iterator[Row | Refused]:
    """The rows below the header, named by the file and the line in which they begin. Raises BrokenTable."""
    csv.field_size_limit(max(csv.field_size_limit(), limit))  # records are measured before they are split
    columns: list[str] | None = None
    for number, record in _records(readline, dialect, limit):
        place = f"{name}:{number}"
        if record is None:
            if columns is None:
                raise BrokenTable("its header is too long")
            yield Refused("too_long", place)
        elif columns is None:
            columns = _header(record, dialect)
        elif record.strip():
            yield _row(record, place, columns, dialect)


def _records(readline: Callable[[int], bytes], dialect: Dialect, limit: int) -> Iterator[tuple[int, bytes | None]]:
    """(line, record without its line end) of each record, None for one longer than `limit`."""
    parts: list[bytes] = []
    number, first, size, inside, ends = 1, 1, 0, False, True
    while line := readline(limit + 1):
        inside = dialect.still_open(line, inside, ends)
        size += len(line)
        if size <= limit + 1:
            parts.append(line)
        ends = line.endswith(b"\n")
        number += ends
        if inside or not ends:
            continue
        yield first, (b"".join(parts).rstrip(b"\r\n") if size <= limit + 1 else None)
        parts.clear()
        first, size = number, 0
    if inside:
        raise BrokenTable(f"the quote that opens in the row of line {first} is not closed")
    if size:
        yield first, (b"".join(parts) if size <= limit + 1 else None)


def _header(record: bytes, dialect: Dialect) -> list[str]:
    try:
        columns = [column.strip() for column in dialect.split(record.removeprefix(codecs.BOM_UTF8).decode())]
    except UnicodeDecodeError as error:
        raise BrokenTable("its header is not UTF-8") from error
    except (csv.Error, ValueError) as error:
        said = "its lines end with a carriage return only" if b"\r" in record else f"its header is broken ({error})"
        raise BrokenTable(said) from error
    twice = [column for column, times in Counter(columns).items() if times > 1]
    if twice:
        raise BrokenTable(f"it has two columns {columns_of(twice)[0] or 'without a name'}")
    return columns


def _row(record: bytes, place: str, columns: list[str], dialect: Dialect) -> Row | Refused:
    try:
        fields = dialect.split(record.decode())
    except UnicodeDecodeError:
        return Refused("invalid_utf8", place)
    except (csv.Error, ValueError) as error:
        why = "a carriage return outside quotes" if b"\r" in record else str(error)
        return Refused("broken_row", place, why=why)
    if len(fields) != len(columns):
        return Refused("wrong_columns", place, why=f"{len(fields)} fields, but the header has {len(columns)}")
    return Row(dict(zip(columns, fields, strict=True)), place)
