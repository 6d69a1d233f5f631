"""Percentiles over the last minutes, in bounded memory at any rate.

Observations are counted by logarithmic bucket, in slices of time that expire as a whole. A percentile is the middle of
its bucket and so within 1 % of the exact one, as in DDSketch (Masson et al. 2019), whose fixed error and free merging
this takes.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Iterable

SLICE_SECONDS = 10
PER_E_FOLD = 50  # buckets 2 % wide
LEAST, MOST = 1e-6, 1e5  # seconds
_SHIFT = math.log(LEAST)
QUANTILES = (0.5, 0.95, 0.99)


class Recent:
    """Durations of the last `window` seconds. Times are in seconds of any clock that never goes back."""

    def __init__(self, window: int) -> None:
        self._slices = deque[tuple[int, dict[int, int]]](maxlen=math.ceil(window / SLICE_SECONDS))
        self._number, self._counts = -1, dict[int, int]()

    def add(self, seconds: float, now: float, count: int = 1) -> None:
        """Count `count` observations of the same duration."""
        if (number := int(now // SLICE_SECONDS)) != self._number:
            self._number, self._counts = number, {}
            self._slices.append((number, self._counts))
        bucket = int((math.log(min(seconds, MOST)) - _SHIFT) * PER_E_FOLD) if seconds > LEAST else 0
        self._counts[bucket] = self._counts.get(bucket, 0) + count

    def counts(self, now: float, window: float | None = None) -> Counter[int]:
        """Observations by bucket, of the last `window` seconds (None: all that are kept)."""
        span = self._slices.maxlen or 1 if window is None else math.ceil(window / SLICE_SECONDS)
        first = int(now // SLICE_SECONDS) - span
        merged = Counter[int]()
        for number, counts in self._slices:
            if number > first:
                merged.update(counts)
        return merged


def percentiles(parts: Iterable[Counter[int]]) -> dict[str, float | int | None]:
    """`{"count": …, "p50": …, "p95": …, "p99": …}` of all parts together, in seconds. None without observations."""
    counts = sum(parts, Counter[int]())
    total, reached = counts.total(), 0
    found: dict[str, float | int | None] = {"count": total, **{f"p{q * 100:.0f}": None for q in QUANTILES}}
    waiting = list(QUANTILES)
    for bucket in sorted(counts):
        reached += counts[bucket]
        while waiting and reached >= waiting[0] * total:
            found[f"p{waiting.pop(0) * 100:.0f}"] = LEAST * math.exp((bucket + 0.5) / PER_E_FOLD)
    return found
