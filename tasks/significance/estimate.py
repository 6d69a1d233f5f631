"""A mean over questions with its standard error and interval, clustered where questions share a text.

Standard errors follow Miller 2024, "Adding Error Bars to Evals" (arXiv 2411.00640): the one of the central limit
theorem, plus the covariances within clusters for questions in clusters. Intervals are Student's, with one degree of
freedom less than the number of clusters. Intervals of proportions are Wilson's (1927), which hold near 0 and 1 as well,
for the number of independent questions that would have the clustered error.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Values = npt.NDArray[np.float64]
Codes = npt.NDArray[np.intp]
LEVEL = 0.95  # of intervals


class Estimate(NamedTuple):
    """A mean. Its standard error and interval are None if a single question or cluster gives none."""

    mean: float
    error: float | None
    low: float | None
    high: float | None
    items: int
    clusters: int | None  # None if no two questions share one


def codes_of(clusters: Sequence[str | None]) -> Codes:
    """The number of each question's cluster, from 0. A question without one is its own cluster."""
    seen: dict[tuple[bool, str | int], int] = {}
    keys = [(True, number) if name is None else (False, name) for number, name in enumerate(clusters)]
    return np.array([seen.setdefault(key, len(seen)) for key in keys], dtype=np.intp)


def standard_error(values: Values, codes: Codes | None = None) -> float | None:
    """The standard error of the mean of `values`, shape (questions,), in clusters `codes`, or of independent questions
    without. None for fewer than two questions or clusters."""
    number = len(values)
    clusters = number if codes is None else int(codes.max(initial=-1)) + 1
    if clusters < 2:
        return None
    away = values - values.mean()
    squares = float(away @ away)
    variance = squares / (number * (number - 1))
    if codes is not None and clusters < number:
        sums = np.bincount(codes, weights=away)
        variance += (float(sums @ sums) - squares) / number**2
    return math.sqrt(max(variance, 0.0))  # below 0 by rounding only


def estimate(values: Values, codes: Codes | None = None, level: float = LEVEL) -> Estimate:
    """The mean of `values`, shape (questions,), at least one, with its error and two-sided interval."""
    mean, number = float(values.mean()), len(values)
    clusters = number if codes is None else int(codes.max()) + 1
    error = standard_error(values, codes)
    low, high = None, None
    if is_binary(values):
        low, high = wilson(mean, _worth(mean, error, number, clusters), level)
    elif error is not None:
        half = student(level, clusters - 1) * error
        low, high = mean - half, mean + half
    return Estimate(mean, error, low, high, number, clusters if clusters < number else None)


def wilson(share: float, number: float, level: float = LEVEL) -> tuple[float, float]:
    """Wilson's two-sided interval for a proportion seen in `number` independent questions."""
    squared = normal(level) ** 2
    centre = (share + squared / (2 * number)) / (1 + squared / number)
    spread = math.sqrt(squared * (share * (1 - share) / number + squared / (4 * number**2))) / (1 + squared / number)
    # At the edges the formula gives the edge itself, apart from rounding
    return 0.0 if share == 0 else max(0.0, centre - spread), 1.0 if share == 1 else min(1.0, centre + spread)


def is_binary(values: Values) -> bool:
    """Whether each answer is right or wrong: 1 or 0."""
    return bool(np.isin(values, (0.0, 1.0)).all())


def normal(level: float) -> float:
    """Standard errors to each side of a two-sided normal interval."""
    from scipy.special import ndtri

    return float(ndtri((1 + level) / 2))


def student(level: float, freedom: float) -> float:
    """Standard errors to each side of a two-sided interval of Student's distribution."""
    from scipy.special import stdtrit

    return float(stdtrit(freedom, (1 + level) / 2))


def _worth(share: float, error: float | None, number: int, clusters: int) -> float:
    """The number of independent questions that would give this error (Korn and Graubard 1998): at most the number of
    questions, and at least the number of clusters, which is also the value if all answers are alike and show no
    error."""
    if clusters == number:
        return number
    if not error:
        return clusters
    return min(float(number), max(1.0, share * (1 - share) / error**2))
