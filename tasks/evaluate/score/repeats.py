"""Samples of one problem are requests with the same text: told apart by their number, so that each has its own seed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable


def repeats(texts: Iterable[str]) -> list[int]:
    """For each text how many before it are the same."""
    seen = Counter[str]()
    numbers = []
    for text in texts:
        numbers.append(seen[text])
        seen[text] += 1
    return numbers
