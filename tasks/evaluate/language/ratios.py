"""Means per byte or per token, with standard errors over documents.

The tokens of a document aren't independent draws: a hard text stays hard. So a mean is the ratio of two sums over
documents, with the error of a ratio estimator (Cochran 1977, "Sampling Techniques", §6.3: linearised, between
clusters), as Miller 2024 ("Adding Error Bars to Evals") requires for clustered items.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Float = NDArray[np.float64]
LENGTHS = (256, 1024, 4096, 16_384, 65_536)  # bytes at the borders of buckets of documents


class Ratio(NamedTuple):
    """A mean and its standard error, which is None for a single document."""

    value: float
    error: float | None
    documents: int


def ratio(over: Float, under: Float) -> Ratio | None:
    """Σ over / Σ under, each with a value per document. Documents without either are left out. None if Σ under is
    0."""
    present = (over > 0) | (under > 0)
    over, under = over[present], under[present]
    number, whole = len(over), float(under.sum())
    if not whole:
        return None
    value = float(over.sum()) / whole
    if number == 1:
        return Ratio(value, None, 1)
    spread = float(((over - value * under) ** 2).sum())
    return Ratio(value, math.sqrt(spread * number / (number - 1)) / whole, number)


def length_label(bucket: int, edges: Sequence[int] = LENGTHS) -> str:
    """`under 256`, `256 to 1,023`, `65,536 and more`: the bytes of a bucket of np.digitize."""
    if bucket == 0:
        return f"under {edges[0]:,}"
    if bucket == len(edges):
        return f"{edges[-1]:,} and more"
    return f"{edges[bucket - 1]:,} to {edges[bucket] - 1:,}"


def position_label(bucket: int, last: int) -> str:
    """`1`, `2`, `3–4`, `5–8`: the positions of a bucket."""
    first, end = positions(bucket, last)
    return f"{first:,}" if first == end else f"{first:,}–{end:,}"


def positions(bucket: int, last: int) -> tuple[int, int]:
    """The first and the last position of a bucket, which ends at a power of two as windows do."""
    return ((1 << bucket - 1) + 1 if bucket else 1), min(1 << bucket, last)
