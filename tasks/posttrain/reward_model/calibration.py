"""How well a reward model knows which of two answers is preferred, and whether its probabilities are shares.

Its probability that the first answer is preferred is σ(r₁ − r₂) (Bradley & Terry 1952). Of a pair, the answer with the
higher reward is its prediction, and the probability of that one, at least a half, its confidence.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

BINS = 5  # of equal width, between 0.5 and 1
NORMAL_95 = 1.959963984540054  # quantile of the normal distribution at 97.5 %


class Bin(NamedTuple):
    """Pairs with a confidence from `low` up to `high`: their number, mean confidence, and share that was right."""

    low: float
    high: float
    pairs: int
    predicted: float
    observed: float


def wilson(right: float, total: int, z: float = NORMAL_95) -> tuple[float, float]:
    """The score interval of a share (Wilson 1927), by default at 95 %. A tie may count as half a one that is right."""
    share = right / total
    middle = (share + z * z / (2 * total)) / (1 + z * z / total)
    half = z / (1 + z * z / total) * math.sqrt(share * (1 - share) / total + z * z / (4 * total * total))
    return max(0.0, middle - half), min(1.0, middle + half)


def accuracy(margins: Sequence[float]) -> tuple[float, float, float]:
    """The share of pairs whose preferred answer has the higher reward, and its 95 % interval. `margins` are rewards of
    preferred answers less those of the rejected ones; equal rewards are wrong, as TRL counts."""
    right = sum(margin > 0 for margin in margins)
    return right / len(margins), *wilson(right, len(margins))


def calibration(margins: Sequence[float], bins: int = BINS) -> list[Bin]:
    """The bins that hold a pair, from the least confident to the most."""
    held: list[list[tuple[float, bool]]] = [[] for _ in range(bins)]
    for margin in margins:
        confidence = _sigmoid(abs(margin))
        held[min(bins - 1, int((confidence - 0.5) * 2 * bins))].append((confidence, margin > 0))
    edges = [0.5 + number / (2 * bins) for number in range(bins + 1)]
    return [
        Bin(
            edges[number],
            edges[number + 1],
            len(pairs),
            sum(confidence for confidence, _ in pairs) / len(pairs),
            sum(right for _, right in pairs) / len(pairs),
        )
        for number, pairs in enumerate(held)
        if pairs
    ]


def expected_calibration_error(bins: Sequence[Bin]) -> float:
    """The mean over pairs of |confidence − share| of their bin (Guo et al. 2017, equation 3)."""
    total = sum(each.pairs for each in bins)
    return sum(each.pairs * abs(each.predicted - each.observed) for each in bins) / total


def _sigmoid(value: float) -> float:
    return 1 / (1 + math.exp(-value))
