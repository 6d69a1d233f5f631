"""Win rates with their intervals, and whether a difference is beyond chance.

A tie is half a win. The bootstrap draws prompts, each with all its samples, so that the similar answers to one prompt
don't count as independent.

Shapes: P prompts, I items, R resamples.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tasks.evaluate.side_by_side.items import Item
from tasks.posttrain.reward_model.calibration import wilson

Array = npt.NDArray[np.float64]
NORMAL = NormalDist()
LEVEL = 0.05  # of intervals and tests
FLIPS = 10_000  # of signs, for a p-value
EXACT = 13  # prompts up to which all 2^P sign flips are tried
CHUNK = 2_000_000  # random numbers at a time


class Estimate(NamedTuple):
    """A number, and the ends of its 95 % interval."""

    value: float
    low: float
    high: float


def prompt_weights(prompts: int, resamples: int, seed: int) -> Array:
    """(R, P) how often each prompt occurs in each bootstrap sample of prompts (Efron 1979)."""
    drawn = np.random.default_rng(seed).multinomial(prompts, np.full(prompts, 1 / prompts), size=resamples)
    return drawn.astype(np.float64)


def interval(value: float, resampled: Array, prompts: int) -> Estimate:
    """The percentile interval of values resampled over `prompts` prompts, expanded as small numbers need: a bootstrap
    knows only the spread of the sample (Hesterberg 2015, "What Teachers Should Know About the Bootstrap", §3.3). It
    always includes the value itself, which rounding could leave out."""
    tail = tail_for(prompts)
    low, high = np.quantile(resampled, [tail, 1 - tail])
    return Estimate(value, min(float(low), value), max(float(high), value))


def tail_for(prompts: int) -> float:
    """The share of resampled values beyond each end: Φ(−t·√(n/(n−1))), where t is the quantile of Student's
    distribution at n − 1 degrees of freedom, by its expansion in the normal quantile (Abramowitz & Stegun 26.7.5)."""
    free, z = max(1, prompts - 1), NORMAL.inv_cdf(1 - LEVEL / 2)
    terms = ((z**3 + z) / 4, (5 * z**5 + 16 * z**3 + 3 * z) / 96, (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384)
    t = z + sum(term / free**power for power, term in enumerate(terms, 1))
    return NORMAL.cdf(-t * math.sqrt((free + 1) / free))


def sums_by_prompt(items: Sequence[Item], prompts: Sequence[str]) -> tuple[Array, Array]:
    """(P,) the wins of the first model at each prompt, and the number of items there."""
    place = {id: number for number, id in enumerate(prompts)}
    wins, number = np.zeros(len(prompts)), np.zeros(len(prompts))
    for item in items:
        wins[place[item.id]] += item.winner
        number[place[item.id]] += 1
    return wins, number


def win_rate(items: Sequence[Item], *, resamples: int, seed: int) -> Estimate:
    """The share of items that the first model wins, with the bootstrap's interval over prompts. If all prompts agree,
    so that the bootstrap would be certain, the interval is Wilson's. Raises ValueError for no items."""
    prompts = prompts_of(items)
    weights = prompt_weights(len(prompts), resamples, seed)
    return rate_of(*sums_by_prompt(items, prompts), weights)


def rate_of(wins: Array, number: Array, weights: Array) -> Estimate:
    """The win rate from (P,) wins and items of prompts and (R, P) weights."""
    value = float(wins.sum() / number.sum())
    asked = number > 0
    if np.ptp(wins[asked] / number[asked]) == 0:
        return Estimate(value, *wilson(value * int(asked.sum()), int(asked.sum())))
    return interval(value, share(weights, wins, number, value), int(asked.sum()))


def share(weights: Array, wins: Array, number: Array, empty: float) -> Array:
    """(R,) the win rates of resamples, `empty` for a resample without items of this pair."""
    drawn = weights @ number
    rates: Array = np.where(drawn > 0, (weights @ wins) / np.where(drawn > 0, drawn, 1), empty)
    return rates


def prompts_of(items: Sequence[Item]) -> list[str]:
    """The ids of prompts, each once, in order of appearance."""
    return list(dict.fromkeys(item.id for item in items))


def sign_flip(items: Sequence[Item], seed: int) -> float:
    """The p-value of "neither is better", by swapping the models at each prompt (Fisher 1935).

    If both answer alike, as one model with two seeds does, each prompt's result is as likely as its mirror image. So at
    most a share p of such comparisons has a value up to p, with any number of prompts. For few prompts all 2^P flips
    are tried, for more 10,000 random ones. The observed result counts as one of them.
    """
    wins, number = sums_by_prompt(items, prompts_of(items))
    leads = wins - number / 2
    leads = leads[leads != 0]
    if not len(leads):
        return 1.0
    observed = abs(leads.sum()) - 1e-9
    if len(leads) <= EXACT:
        signs = 1 - 2 * ((np.arange(2 ** len(leads))[:, None] >> np.arange(len(leads))) & 1)
        return float(np.mean(np.abs(signs @ leads) >= observed))
    random, extreme, left = np.random.default_rng(seed), 0, FLIPS
    while left:
        rows = min(left, max(1, CHUNK // len(leads)))
        signs = 1 - 2 * random.integers(0, 2, size=(rows, len(leads)))
        extreme += int((np.abs(signs @ leads) >= observed).sum())
        left -= rows
    return (extreme + 1) / (FLIPS + 1)


def holm(p_values: Mapping[tuple[str, str], float]) -> dict[tuple[str, str], float]:
    """The p-values corrected for their number (Holm 1979): in 95 of 100 cases, none of the comparisons between equal
    models is called a difference."""
    corrected: dict[tuple[str, str], float] = {}
    largest, total = 0.0, len(p_values)
    for rank, (pair, p) in enumerate(sorted(p_values.items(), key=lambda each: (each[1], each[0]))):
        largest = max(largest, min(1.0, p * (total - rank)))
        corrected[pair] = largest
    return {pair: corrected[pair] for pair in p_values}
