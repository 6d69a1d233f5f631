"""Finding the words of a list in texts, as C4 does (`c4_utils.py` in tensorflow_datasets; the same in datatrove).

C4 searches for all of them by one regular expression. Here the words of a text are looked up in a table, so that time
does not grow with the list: an entry can only be where its first word is.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

WITHOUT_SPACES = ("ja", "th", "zh")
WORD = re.compile(r"\w+")


class WordList:
    """The entries of a list; `whole` for those that must stand between other characters than letters and digits."""

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
        """The first entry, by alphabet, that is in the text, "" for none."""
        text = text.lower()
        found = [entry for entry in self.anywhere if entry in text]
        if self.firsts:
            met = self.firsts.intersection(WORD.findall(text))
            found += [entry for first in met for entry in self.by_first[first]]
        return next((entry for entry in sorted(found) if not self.whole or _stands_in(entry, text)), "")


def _stands_in(entry: str, text: str) -> bool:
    return entry == text or re.search(rf"(?:\W|^){re.escape(entry)}(?:\W|$)", text) is not None
