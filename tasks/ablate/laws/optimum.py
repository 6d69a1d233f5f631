"""The best size for a budget, by the three approaches of Hoffmann et al. 2022, section 3.

    1  the least loss over all sizes at a compute. The loss of a size is interpolated between its lengths: there are
       trainings of each length, decayed to the end, where theirs used the curve of a few
    2  a parabola of the loss over log N at each budget, whose minimum is the best size (IsoFLOP)
    3  from the fitted law

The first two give sizes at several computes, and the best size as a power law through them. The three agree where a
ladder is wide enough, and a wide gap between them says that it isn't.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from tasks.ablate.laws.law import Fitted, Point, Predicted, distinct, fit, interval

LEAST_SIZES = 3  # at a budget, for a parabola
EVENLY = 20  # computes at which approach 1 looks


class Best(NamedTuple):
    """The best size as a power law of compute, N = coefficient × C^exponent, and the sizes at computes that it goes
    through, as (C, N). Approach 3 has none."""

    approach: int
    exponent: float
    coefficient: float
    at: list[tuple[float, float]]

    def size(self, flops: float) -> float:
        """The best size for a budget."""
        return float(self.coefficient * flops**self.exponent)


def best_sizes(fitted: Fitted) -> list[Best]:
    """The best size by each approach that the points allow."""
    found = [_by(1, _frontier, fitted.points), _by(2, _parabolas, fitted.points)]
    if len(fitted.axes) == 2:
        law = fitted.law
        exponent = float(law.beta / (law.alpha + law.beta))
        found.append(Best(3, exponent, float(law.best_size(1.0)), []))
    return [one for one in found if one is not None]


def best_size(fitted: Fitted, flops: float) -> Predicted:
    """The best size for a budget by the fitted law, with its interval."""
    return interval(float(fitted.law.best_size(flops)), fitted.draws.best_size(flops))


def _by(
    number: int, sizes: Callable[[Sequence[Point]], list[tuple[float, float]]], points: Sequence[Point]
) -> Best | None:
    at = sizes(points)
    if len({size for _, size in at}) < 2:
        return None
    computes, best = np.log(np.array(at)).T
    exponent, coefficient = np.polyfit(computes, best, 1)
    return Best(number, float(exponent), float(np.exp(coefficient)), at)


def _frontier(points: Sequence[Point]) -> list[tuple[float, float]]:
    """The best of all sizes at evenly spread computes. Only where it lies between two sizes: at the edges of the ladder
    a better one may be missing."""
    groups = distinct([point.size for point in points])
    curves = []
    for group in groups:
        lengths = distinct([points[index].flops for index in group])
        means = [
            np.mean([[np.log(points[group[i]].flops), points[group[i]].loss] for i in one], axis=0) for one in lengths
        ]
        curves.append((points[group[0]].size, np.array(means)))
    computes = [np.log(point.flops) for point in points]
    found = []
    for compute in np.linspace(min(computes), max(computes), EVENLY):
        there = [
            (float(np.interp(compute, curve[:, 0], curve[:, 1])), size)
            for size, curve in curves
            if curve[0, 0] - 1e-9 <= compute <= curve[-1, 0] + 1e-9
        ]
        if len(there) >= LEAST_SIZES:
            sizes = sorted(size for _, size in there)
            best = min(there)[1]
            if sizes[0] < best < sizes[-1]:
                found.append((float(np.exp(compute)), best))
    return found


def _parabolas(points: Sequence[Point]) -> list[tuple[float, float]]:
    """The minimum of the parabola at each budget, where that lies between the budget's sizes."""
    found = []
    for group in distinct([point.flops for point in points]):
        mine = [points[index] for index in group]
        if len(distinct([point.size for point in mine])) < LEAST_SIZES:
            continue
        logs = np.log([point.size for point in mine])
        middle = logs.mean()
        bend, slope, _ = np.polyfit(logs - middle, [point.loss for point in mine], 2)
        best = middle - slope / (2 * bend) if bend > 0 else np.inf
        if logs.min() <= best <= logs.max():
            found.append((float(np.exp(np.mean(np.log([point.flops for point in mine])))), float(np.exp(best))))
    return found


class HeldOut(NamedTuple):
    """A training that was left out of the fit, its predicted loss, and how far off that is, as a share of the loss."""

    point: Point
    predicted: Predicted
    error: float


def held_out_errors(points: Sequence[Point]) -> list[HeldOut]:
    """The trainings of the largest compute, predicted from the others. Raises ConfigError if these are too few."""
    *smaller, largest = distinct([point.flops for point in points])
    rest = fit([points[index] for group in smaller for index in group])
    found = []
    for point in (points[index] for index in largest):
        predicted = rest.predict(point.size, point.tokens, beyond=True)
        found.append(HeldOut(point, predicted, predicted.value / point.loss - 1))
    return found
