"""Headings, lists, tables and notes as plain text, the same for every format.

A heading begins with `#` for each of its levels, an item with its mark, and a row of a table has `|` between its cells.
A note is referred to by `[^1]` where it belongs, and stands at the end.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

LEVELS = 6
SPACES = re.compile(r"[ \t\r\n\f\v]+")  # not the hard space


class Block(NamedTuple):
    """A paragraph, a heading, a table or an item. Items follow one another without a blank line."""

    text: str
    item: bool = False


def heading(level: int, text: str) -> Block:
    """A heading of a level, from 1. Deeper ones than LEVELS count as of that."""
    return Block(f"{'#' * min(max(level, 1), LEVELS)} {flat(text)}" if text.strip() else "")


def item(level: int, text: str, number: int | None = None) -> Block:
    """An item of a list that is within `level` others, numbered or not."""
    mark = "-" if number is None else f"{number}."
    return Block(f"{'  ' * min(level, LEVELS)}{mark} {text.strip()}" if text.strip() else "", item=True)


def table(rows: Iterable[Iterable[str]]) -> Block:
    """A table of texts. Rows without any are left out."""
    cells = [[flat(cell) for cell in row] for row in rows]
    return Block("\n".join(" | ".join(row).strip() for row in cells if any(row)))


def flat(text: str) -> str:
    """A text on one line."""
    return SPACES.sub(" ", text).strip(" ")


def joined(blocks: Iterable[Block], notes: Iterable[str] = ()) -> str:
    """The text of a document, with its notes at the end."""
    parts: list[str] = []
    after_item = False
    for text, is_item in [*blocks, *(Block(f"[^{at}]: {flat(note)}", True) for at, note in enumerate(notes, 1))]:
        if text.strip():
            parts += [("\n" if after_item and is_item else "\n\n") if parts else "", text.strip("\n").rstrip()]
            after_item = is_item
    return "".join(parts)
