"""Two models on the same questions: their difference, its certainty, and the smallest detectable difference.

Questions that are hard for one model are hard for the other, so the differences of single questions say far more than
two scores with an error each (Miller 2024, §4.2).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from tasks.significance.estimate import LEVEL, Codes, Values, is_binary, normal, standard_error, student
from tasks.significance.sign_flips import fewest_units, sign_flips

POWER = 0.8  # probability with which a difference of the detectable size is found


class Paired(NamedTuple):
    """The second model minus the first. `error` and interval are None if the questions give none."""

    first: float
    second: float
    difference: float
    error: float | None
    low: float | None
    high: float | None
    p: float  # two-sided, before any correction
    test: str
    items: int
    clusters: int | None  # None if no two questions share one
    differing: int  # questions, or clusters, on which the two differ
    binary: bool


def paired(first: Values, second: Values, codes: Codes) -> Paired:
    """Compare scores of the same questions, each shape (questions,), at least one, in clusters `codes`."""
    differences = second - first
    number, clusters = len(differences), int(codes.max()) + 1
    clustered, binary = clusters < number, is_binary(first) and is_binary(second)
    error = standard_error(differences, codes)
    low, high = interval(differences, codes, binary=binary)
    units = _units(differences, codes)
    flips = sign_flips(units)
    if binary and not clustered:
        test = "McNemar, exact"
    else:
        test = f"sign flips{' of clusters' if clustered else ''}, {'exact' if flips.exact else 'sampled'}"
    return Paired(
        float(first.mean()),
        float(second.mean()),
        float(differences.mean()),
        error,
        low,
        high,
        flips.p,
        test,
        number,
        clusters if clustered else None,
        int(np.count_nonzero(units)),
        binary,
    )


def interval(
    differences: Values, codes: Codes, *, binary: bool, level: float = LEVEL
) -> tuple[float | None, float | None]:
    """The two-sided interval of the mean of `differences`, shape (questions,).

    For right and wrong answers it is the adjusted Wald interval of Bonett and Price (2012), which holds even if few
    questions differ, or none. Otherwise it is Student's over clusters.
    """
    number, clusters = len(differences), int(codes.max()) + 1
    error = standard_error(differences, codes)
    if binary and (clusters == number or not error):
        share = clusters / number  # clusters that are all alike are worth a question each
        gained, lost = float((differences > 0).sum()) * share, float((differences < 0).sum()) * share
        up, down = (gained + 1) / (clusters + 2), (lost + 1) / (clusters + 2)
        half = normal(level) * math.sqrt((up + down - (up - down) ** 2) / (clusters + 2))
        return max(-1.0, up - down - half), min(1.0, up - down + half)
    if error is None:
        return None, None
    half, mean = student(level, clusters - 1) * error, float(differences.mean())
    return mean - half, mean + half


def detectable(found: Paired, level: float) -> float | None:
    """The smallest true difference that a test at `level` finds with probability `POWER`, from the error seen.

    None if there are too few questions, or clusters, for the test to find any, and if all answers are alike to the last
    digit, so that their error is unknown.
    """
    from scipy.special import betaincinv, ndtri

    least, units = fewest_units(level), found.clusters or found.items
    if units < least or found.error is None:
        return None
    by_error = float(-ndtri(level / 2) + ndtri(POWER)) * found.error
    if found.binary:  # at least the share at which all differ in one direction, and just enough of them do
        return min(1.0, max(by_error, float(betaincinv(least, units - least + 1, POWER))))
    return by_error or None


def loses_more_than(by: float, losses: Values, codes: Codes, *, binary: bool, level: float = LEVEL) -> bool:
    """Whether the mean of `losses`, shape (questions,), is above `by` beyond noise: the lower bound of its one-sided
    interval is above it, and flipped signs of the excess seldom give as much. The second test holds even if questions
    are too few for the first."""
    low, _ = interval(losses, codes, binary=binary, level=2 * level - 1)
    if low is None or low <= by or float(losses.mean()) <= by:
        return False
    return sign_flips(_units(losses - by, codes), two_sided=False).p <= 1 - level


def _units(differences: Values, codes: Codes) -> Values:
    """Sums over clusters, each of which flips its sign as a whole. Rounded, so that equal scores differ by 0."""
    if int(codes.max()) + 1 == len(differences):
        return differences
    sums = np.bincount(codes, weights=differences)
    size = np.bincount(codes, weights=np.abs(differences))
    return np.where(np.abs(sums) <= 1e-12 * size, 0.0, sums)
