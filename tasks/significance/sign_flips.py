"""The sign-flip test: could a sum of paired differences be luck?

If two models are alike, each difference could as well have the other sign. The p-value is the share of all choices of
signs whose sum is at least as far from 0 as the observed one (Fisher 1935, "The Design of Experiments", §21). For
differences of 0 and ±1 this is McNemar's exact test. It is exact if the possible sums are few: on a lattice, such as
shares of a few samples, or up to some fourteen questions. Otherwise signs are drawn from a fixed seed.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tasks.significance.estimate import Values

DRAWN = 9_999  # choices of signs to draw if not all can be tried
SUMS = 1 << 14  # maximum different sums of an exact distribution
LIMIT = 1 << 21  # maximum sums before equal ones are merged
BATCH = 1 << 22  # maximum signs drawn at a time
CHOICES = 1_000  # maximum choices of signs drawn at a time, after which they may be enough
ENOUGH = 200  # choices at least as far as the observed one: luck, more only say how much (Besag and Clifford 1991)
SEED = 16
DIGITS = 10  # of a sum, as a share of the largest: sums that agree in them are equal apart from rounding
SLACK = 1e-9  # the same, after adding up


class Flips(NamedTuple):
    """A p-value, and whether all signs were tried."""

    p: float
    exact: bool


def sign_flips(differences: Values, *, two_sided: bool = True) -> Flips:
    """The p-value of the sum of `differences`, shape (units,), against 0. One-sided: against a sum above 0.

    Units are questions, or the sums of whole clusters of them.
    """
    units = differences[differences != 0]
    if not len(units):
        return Flips(1.0, True)
    units = units / float(np.abs(units).max())  # first, as tiny or huge values have no sum to divide by
    units = np.round(units / float(np.abs(units).sum()), 15)
    seen = float(units.sum())
    known = _all_sums(units)
    if known is not None:
        sums, shares = known
        return Flips(min(1.0, float(shares[_as_far(sums, seen, two_sided)].sum())), True)
    met, drawn = 0, 0
    generator = np.random.default_rng(SEED)
    while drawn < DRAWN and met < ENOUGH:
        rows = min(max(1, BATCH // len(units)), CHOICES, DRAWN - drawn)
        bits = np.unpackbits(np.frombuffer(generator.bytes(-(-rows * len(units) // 8)), np.uint8))
        signs = bits[: rows * len(units)].reshape(rows, len(units)).astype(np.float64)
        met += int(_as_far(signs @ (2 * units) - seen, seen, two_sided).sum())
        drawn += rows
    share = (met + 1) / (drawn + 1)  # the observed choice is one of them (Phipson and Smyth 2010)
    return Flips(min(share, _at_most(units, seen, two_sided)), False)


def fewest_units(level: float) -> int:
    """The number of units that must differ, all in one direction, for the two-sided test to reach `level`."""
    return math.ceil(math.log2(2 / level))


def _as_far(sums: Values, seen: float, two_sided: bool) -> npt.NDArray[np.bool_]:
    return np.abs(sums) >= abs(seen) - SLACK if two_sided else sums >= seen - SLACK


def _all_sums(units: Values) -> tuple[Values, Values] | None:
    """Every sum that signs can give, with its probability. None if there are too many."""
    sums: Values = np.zeros(1)
    shares: Values = np.ones(1)
    for size, count in zip(*np.unique(np.abs(units), return_counts=True), strict=True):
        if len(sums) > SUMS or len(sums) * (int(count) + 1) > LIMIT:
            return None
        flipped = np.arange(count + 1)
        sums = np.round(np.add.outer(sums, size * (2 * flipped - count)).ravel(), DIGITS)
        shares = np.multiply.outer(shares, _halves(int(count))).ravel()
        sums, place = np.unique(sums, return_inverse=True)
        shares = np.bincount(place, weights=shares).astype(np.float64)
    return sums, shares


def _halves(count: int) -> Values:
    """The binomial distribution of `count` fair coins, shape (count + 1,)."""
    from scipy.special import gammaln

    heads = np.arange(count + 1)
    logs = gammaln(count + 1) - gammaln(heads + 1) - gammaln(count - heads + 1) - count * math.log(2)
    return np.asarray(np.exp(logs))


def _at_most(units: Values, seen: float, two_sided: bool) -> float:
    """An upper bound on the exact p-value (Hoeffding 1963). For large differences it is below any drawn p-value."""
    if not two_sided and seen <= 0:
        return 1.0
    return (2 if two_sided else 1) * math.exp(-(seen**2) / (2 * float(units @ units)))
