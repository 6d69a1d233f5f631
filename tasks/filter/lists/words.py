"""Finds the words of a list in texts, as do C4 (`c4_utils.py` in tensorflow_datasets) and datatrove.

C4 searches for all of them with one regular expression. Here the words of a text are looked up in a table, so that time
doesn't grow with the list: an entry can occur only where its first word does.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

WITHOUT_SPACES = ("ja", "th", "zh")
WORD = re.compile(r"\w+")


class WordList:
    """The entries of a list. With `whole`, an entry must not be preceded or followed by a letter or a digit."""

    def __init__(self, entries: Iterable[str], *, whole: bool) -> None:
        self.whole = whole
        self.by_first: dict[str, list[str]] = {}
        self.anywhere: list[str] = []
        for entry in sorted({entry.lower() for entry in entries}):
            first = WORD.search(entry)
            if whole and first:
                self.by_first.setdefault(first[0], []).append(entry)
            else:
                self.anywhere.append(entry)
        self.firsts = frozenset(self.by_first)

    def find(self, text: str) -> str:
        """The first entry, in alphabetical order, that the text contains, or ""."""
        text = text.lower()
        candidates = [entry for entry in self.anywhere if entry in text]
        if self.firsts:
            firsts = self.firsts.intersection(WORD.findall(text))
            candidates += [entry for first in firsts for entry in self.by_first[first]]
        return next((entry for entry in sorted(candidates) if not self.whole or _has_entry(entry, text)), "")


def _has_entry(entry: str, text: str) -> bool:
    return entry == text or re.search(rf"(?:\W|^){re.escape(entry)}(?:\W|$)", text) is not None
