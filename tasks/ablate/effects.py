"""Which differences between the arms of an ablation are real: paired by seed, with intervals, corrected.

The arms share their seeds, so a difference is taken within each seed. Two things make it uncertain: another seed would
give another model, and other documents would give other losses. The error holds both. The noise of seeds is estimated
from all arms together, as in a randomized block design: two seeds of one pair say little about it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tasks.significance.compare import WRONGLY, holm
from tasks.significance.estimate import LEVEL, Values, student
from tasks.significance.paired import POWER

BETTER, WORSE = "better", "worse"
UNCLEAR = "not told apart"
SAME = "all the same"
UNTESTED = "one seed: not tested"
MOST_SEEDS = 1000


class Measure(NamedTuple):
    """A quantity of each run: a ratio of sums over units, which are documents or questions.

    `above` and `below` have shape (arms, seeds, units), or `below` (units,) if it is the same for all runs. Bits per
    byte has bits above and bytes below, accuracy has right answers above and ones below.
    """

    name: str
    above: Values
    below: Values
    lower_is_better: bool = True
    unit: str = "documents"

    @property
    def values(self) -> Values:
        """The measure of each run, shape (arms, seeds)."""
        values: Values = self.above.sum(-1) / np.broadcast_to(self.below, self.above.shape).sum(-1)
        return values


class Noise(NamedTuple):
    """What another seed changes. `sd` is the standard deviation of a difference between two arms of the same seed, with
    its degrees of freedom. Both are of no use with one seed."""

    sd: float
    freedom: int


class Effect(NamedTuple):
    """An arm beside the reference: its difference, the 95 % interval, and the corrected p-value. With one seed, or if
    all losses are the same, the difference only."""

    measure: str
    arm: int
    reference: float
    value: float
    difference: float
    low: float | None
    high: float | None
    p: float | None
    verdict: str
    units: int
    by_seed: list[float]
    error: float | None = None  # standard error of the difference, with its degrees of freedom
    freedom: float | None = None


def noise_of(values: Values) -> Noise:
    """The noise of seeds in values of shape (arms, seeds): by the residuals of a randomized block design, or for one
    arm by the spread of its seeds, as if pairs had nothing in common."""
    arms, seeds = values.shape
    if seeds < 2:
        return Noise(math.nan, 0)
    if arms == 1:
        return Noise(math.sqrt(2) * float(values.std(ddof=1)), seeds - 1)
    residuals = values - values.mean(1, keepdims=True) - values.mean(0, keepdims=True) + values.mean()
    freedom = (arms - 1) * (seeds - 1)
    return Noise(math.sqrt(2 * float((residuals**2).sum()) / freedom), freedom)


def effects(measures: Sequence[Measure], given_up: int = 0) -> list[Effect]:
    """Every arm beside the first, by each measure. All of them are one family: by Holm's correction the chance that any
    is wrongly called different is at most 2 %. Arms that were `given_up` belong to it too, as the best were chosen
    among them."""
    found = [effect for measure in measures for effect in _of_measure(measure)]
    tested = [effect for effect in found if effect.p is not None]
    unseen = [1.0] * given_up * len(measures)
    corrected = iter(holm([*(effect.p for effect in tested if effect.p is not None), *unseen]))
    lower = {measure.name: measure.lower_is_better for measure in measures}
    return [effect if effect.p is None else _judged(effect, next(corrected), lower[effect.measure]) for effect in found]


def _judged(effect: Effect, p: float, lower_is_better: bool) -> Effect:
    verdict = UNCLEAR if p > WRONGLY else BETTER if (effect.difference < 0) == lower_is_better else WORSE
    return effect._replace(p=p, verdict=verdict)


def _of_measure(measure: Measure) -> list[Effect]:
    values = measure.values
    seeds, noise = values.shape[1], noise_of(values)
    found = []
    for arm in range(1, len(values)):
        by_seed = values[arm] - values[0]
        difference = float(by_seed.mean())
        effect = Effect(
            measure.name,
            arm,
            float(values[0].mean()),
            float(values[arm].mean()),
            difference,
            None,
            None,
            None,
            UNTESTED,
            measure.above.shape[2],
            by_seed.tolist(),
        )
        if np.array_equal(measure.above[arm], measure.above[0]):
            effect = effect._replace(verdict=SAME)
        elif seeds > 1:
            error, freedom = _error(noise, seeds, *_of_units(measure, arm))
            half = student(LEVEL, freedom) * error
            effect = effect._replace(
                low=difference - half,
                high=difference + half,
                p=_two_sided(difference, error, freedom),
                error=error,
                freedom=freedom,
            )
        found.append(effect)
    return found


def _of_units(measure: Measure, arm: int) -> tuple[float, float]:
    """The variance of a difference that other documents or questions would bring, for the mean over seeds, and its
    degrees of freedom: that of a ratio of sums (Cochran 1977, section 6.4). A few long documents may be most of the
    text, so there are as many as ones of equal length would be (Kish 1965, section 11.2C)."""
    below = np.broadcast_to(measure.below, measure.above.shape)
    weights = below[[0, arm]].mean((0, 1))
    number = float(weights.sum() ** 2 / (weights**2).sum())
    if number < 1.5:
        return 0.0, 1.0
    parts = np.zeros(measure.above.shape[2])
    for which, sign in ((arm, 1), (0, -1)):
        ratio = measure.above[which].sum(-1, keepdims=True) / below[which].sum(-1, keepdims=True)
        away = (measure.above[which] - ratio * below[which]) / below[which].sum(-1, keepdims=True)
        parts += sign * away.mean(0)
    return float((parts**2).sum()) * number / (number - 1), number - 1


def _error(noise: Noise, seeds: int, of_units: float, freedom: float) -> tuple[float, float]:
    """The standard error of a mean difference over seeds, and its degrees of freedom (Welch and Satterthwaite). The
    variance `of_units` has `freedom`."""
    of_seeds = noise.sd**2 / seeds
    variance = of_seeds + of_units
    if not variance:
        return 0.0, float(noise.freedom)
    return math.sqrt(variance), variance**2 / (of_seeds**2 / noise.freedom + of_units**2 / freedom)


def _two_sided(difference: float, error: float, freedom: float) -> float:
    from scipy.special import stdtr

    if not error:
        return 1.0 if not difference else 0.0
    return float(2 * stdtr(freedom, -abs(difference) / error))


def seeds_for(difference: float, noise: Noise, arms: int) -> int | None:
    """The seeds with which a true difference of this size is found with probability 0.8, as if there were documents
    without end. None for more than a thousand."""
    for seeds in range(2, MOST_SEEDS + 1):
        if power(difference, noise.sd, seeds, arms) >= POWER:
            return seeds
    return None


def power(difference: float, sd: float, seeds: int, arms: int) -> float:
    """The probability that a true difference is found with its sign, at the level of Holm's first test."""
    from scipy.special import nctdtr

    freedom, level = (arms - 1) * (seeds - 1), WRONGLY / (arms - 1)
    shift = abs(difference) / (sd / math.sqrt(seeds)) if sd else math.inf
    if math.isinf(shift):
        return 1.0
    least = student(1 - level, freedom)
    return 1.0 - float(nctdtr(freedom, shift, least))


def winner(found: Sequence[Effect], measure: str) -> int | None:
    """The arm that is better than the reference by a measure, and has the largest such difference. None if no arm is
    better beyond noise."""
    better = [effect for effect in found if effect.measure == measure and effect.verdict == BETTER]
    return max(better, key=lambda effect: abs(effect.difference)).arm if better else None
