"""Numbers the samples of one problem, which are requests with the same text, so that each gets its own seed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable


def repeats(texts: Iterable[str]) -> list[int]:
    """For each text, the number of equal texts before it."""
    seen = Counter[str]()
    numbers = []
    for text in texts:
        numbers.append(seen[text])
        seen[text] += 1
    return numbers
