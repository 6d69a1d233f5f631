"""How accurate a reward model is on pairs, and how well calibrated its probabilities are.

Its probability that the first answer is preferred is σ(r₁ − r₂) (Bradley & Terry 1952). It predicts the answer with the
higher reward, and the probability of that one, at least a half, is its confidence.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from tasks.stage.output import Output

BINS = 5  # of equal width, between 0.5 and 1
NORMAL_95 = 1.959963984540054  # quantile of the normal distribution at 97.5 %


class Bin(NamedTuple):
    """Pairs with a confidence from `low` up to `high`: their number, mean confidence, and the share predicted right."""

    low: float
    high: float
    pairs: int
    predicted: float
    observed: float


def wilson(right: float, total: int, z: float = NORMAL_95) -> tuple[float, float]:
    """The score interval of a share (Wilson 1927), by default at 95 %. `right` may count a tie as a half."""
    share = right / total
    middle = (share + z * z / (2 * total)) / (1 + z * z / total)
    half = z / (1 + z * z / total) * math.sqrt(share * (1 - share) / total + z * z / (4 * total * total))
    return max(0.0, middle - half), min(1.0, middle + half)


def accuracy(margins: Sequence[float]) -> tuple[float, float, float]:
    """The share of pairs whose preferred answer has the higher reward, and its 95 % interval. `margins` are the rewards
    of preferred answers minus those of rejected ones. Equal rewards count as wrong, as in TRL."""
    right = sum(margin > 0 for margin in margins)
    return right / len(margins), *wilson(right, len(margins))


def calibration(margins: Sequence[float], bins: int = BINS) -> list[Bin]:
    """The bins that contain pairs, from the least confident to the most."""
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


def report_judge(measured: dict[str, Any], out: Output) -> None:
    """Write the measures of `measure_judge` as counts of the manifest and the table "Calibration"."""
    rows = measured.pop("calibration", [])
    out.count(**measured)
    if not rows:
        return  # nothing was held out
    out.table(
        "Calibration",
        [
            {
                "probability": f"{row['low']:.1f} to {row['high']:.1f}",
                "pairs": row["pairs"],
                "predicted": f"{row['predicted']:.3f}",
                "observed": f"{row['observed']:.3f}",
            }
            for row in rows
        ],
    )


def _sigmoid(value: float) -> float:
    return 1 / (1 + math.exp(-value))
