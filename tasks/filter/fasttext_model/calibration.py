"""Calibration of log-odds to probabilities, and precision and recall by threshold.

Platt's sigmoid (Platt 1999, with the smoothed targets of his section 2.2, which keep it finite on separable data) is
fitted by Newton's method to examples that the classifier was not trained on.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from storage.shards.arrays import Bool, Float64

STEPS = 100
THRESHOLDS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)


class Sigmoid(NamedTuple):
    """p = 1 / (1 + exp(−(slope · log-odds + offset)))."""

    slope: float
    offset: float

    def __call__(self, log_odds: Float64) -> Float64:
        """Probabilities."""
        from scipy.special import expit

        return np.asarray(expit(self.slope * log_odds + self.offset))

    def at_rate(self, rate: float, wanted: float) -> Sigmoid:
        """Adapt a sigmoid fitted to data of which a share `rate` is positive to data of which a share `wanted` is
        (Saerens et al. 2002)."""
        return Sigmoid(self.slope, self.offset + math.log(wanted / (1 - wanted)) - math.log(rate / (1 - rate)))


def fit_sigmoid(log_odds: Float64, positive: Bool) -> Sigmoid:
    """The maximum-likelihood sigmoid for these outcomes. Both classes must occur."""
    ones, zeros = int(positive.sum()), int((~positive).sum())
    wanted = np.where(positive, (ones + 1) / (ones + 2), 1 / (zeros + 2))
    inputs = np.stack([log_odds, np.ones_like(log_odds)], axis=1)
    # Scaled, so that Newton's first step has the right size for any classifier
    scale = float(np.std(log_odds)) or 1.0
    inputs[:, 0] /= scale
    weights = np.array([1.0, 0.0])
    for _ in range(STEPS):
        chance = Sigmoid(1.0, 0.0)(inputs @ weights)
        slope = inputs.T @ (chance - wanted)
        curve = (inputs * (chance * (1 - chance))[:, None]).T @ inputs + 1e-9 * np.eye(2)
        step = np.linalg.solve(curve, slope)
        weights = weights - step * min(1.0, 4.0 / float(np.abs(step).max() or 1.0))
        if float(np.abs(step).max()) < 1e-9:
            break
    return Sigmoid(float(weights[0]) / scale, float(weights[1]))


def area_under_curve(scores: Float64, positive: Bool) -> float:
    """The probability that a positive example scores above a negative one, ties counting half (Mann–Whitney)."""
    from scipy.stats import rankdata

    ones, zeros = int(positive.sum()), int((~positive).sum())
    return float((rankdata(scores)[positive].sum() - ones * (ones + 1) / 2) / (ones * zeros))


def threshold_table(scores: Float64, positive: Bool, base_rate: float | None = None) -> list[dict[str, Any]]:
    """The number of each class that scores at least each threshold, with recall and precision. Precision is for data of
    which a share `base_rate` is positive (None: the share here), or None if nothing scores as high."""
    rows = []
    ones, zeros = int(positive.sum()), int((~positive).sum())
    rate = ones / (ones + zeros) if base_rate is None else base_rate
    for threshold in THRESHOLDS:
        hits, alarms = int((scores[positive] >= threshold).sum()), int((scores[~positive] >= threshold).sum())
        right, wrong = rate * hits / ones, (1 - rate) * alarms / zeros
        rows.append(
            {
                "threshold": threshold,
                "positives above": f"{hits:,} of {ones:,}",
                "negatives above": f"{alarms:,} of {zeros:,}",
                "recall": round(hits / ones, 3),
                "expected precision": round(right / (right + wrong), 3) if hits or alarms else None,
            }
        )
    return rows


def threshold_for(scores: Float64, positive: Bool, base_rate: float, precision: float) -> float | None:
    """The lowest threshold with this precision on data of which a share `base_rate` is positive, or None.

    One more negative than observed counts as above each threshold: a sample without negatives above it doesn't prove
    that there are none.
    """
    ones, zeros = np.sort(scores[positive]), np.sort(scores[~positive])
    levels = np.unique(scores)
    right = base_rate * (len(ones) - np.searchsorted(ones, levels)) / len(ones)
    wrong = (1 - base_rate) * (len(zeros) - np.searchsorted(zeros, levels) + 1) / (len(zeros) + 1)
    enough = np.flatnonzero(right >= precision * (right + wrong))
    return float(levels[enough[0]]) if len(enough) else None
