"""The results of comparing several models: rates, ratings, and which differences are beyond chance.

All numbers are resampled together, over the prompts that any pair was compared on.

Shapes: M models, P prompts, R resamples, I items of a pair.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tasks.evaluate.side_by_side.items import Item
from tasks.evaluate.side_by_side.rates.length import length_controlled, resampled_length_controlled
from tasks.evaluate.side_by_side.rates.strengths import elo, strengths
from tasks.evaluate.side_by_side.rates.win_rate import (
    LEVEL,
    Array,
    Estimate,
    holm,
    interval,
    prompt_weights,
    prompts_of,
    rate_of,
    share,
    sign_flip,
    sums_by_prompt,
)

Pair = tuple[str, str]
CHUNK = 4_000_000  # weights of items at a time


@dataclass(frozen=True)
class PairResult:
    """Two models: items won, tied and lost by the first, its win rates, the p-value of "neither is better", and the
    same corrected for the number of pairs."""

    wins: int
    ties: int
    losses: int
    prompts: int
    win_rate: Estimate
    length_controlled: Estimate
    p: float
    p_holm: float

    @property
    def differs(self) -> bool:
        """Whether one of the two is better beyond chance: the corrected p-value is below 0.05."""
        return self.p_holm < LEVEL


@dataclass(frozen=True)
class ModelResult:
    """A model against all its opponents, over which the win rates are means."""

    win_rate: Estimate
    length_controlled: Estimate
    elo: Estimate


@dataclass(frozen=True)
class Standings:
    """The results of comparisons, by pair and by model."""

    pairs: dict[Pair, PairResult]
    models: dict[str, ModelResult]


def standings(compared: Mapping[Pair, Sequence[Item]], *, baseline: str | None, resamples: int, seed: int) -> Standings:
    """The standings of all models in `compared`, in order of appearance. A baseline's rating is 1000. Raises ValueError
    for no pairs, or a pair without items."""
    if not compared or not all(compared.values()):
        raise ValueError("every pair needs an item")
    prompts = prompts_of([item for items in compared.values() for item in items])
    names = list(dict.fromkeys(name for pair in compared for name in pair))
    weights_RP = prompt_weights(len(prompts), resamples, seed)
    plain, controlled = {}, {}
    raw = {pair: sign_flip(items, seed) for pair, items in compared.items()}
    corrected = holm(raw)
    pairs: dict[Pair, PairResult] = {}
    for pair, items in compared.items():
        wins_P, number_P = sums_by_prompt(items, prompts)
        value = float(wins_P.sum() / number_P.sum())
        plain[pair] = value, share(weights_RP, wins_P, number_P, value)
        controlled[pair] = _controlled(items, prompts, weights_RP)
        asked = int((number_P > 0).sum())
        winners = [item.winner for item in items]
        pairs[pair] = PairResult(
            wins=winners.count(1),
            ties=winners.count(0.5),
            losses=winners.count(0),
            prompts=asked,
            win_rate=rate_of(wins_P, number_P, weights_RP),
            length_controlled=interval(*controlled[pair], asked),
            p=raw[pair],
            p_holm=corrected[pair],
        )
    ratings = _ratings(compared, names, prompts, weights_RP, baseline)
    models = {
        name: ModelResult(
            _mean(name, plain, pairs, len(prompts)), _mean(name, controlled, None, len(prompts)), ratings[name]
        )
        for name in names
    }
    return Standings(pairs, models)


def _controlled(items: Sequence[Item], prompts: Sequence[str], weights_RP: Array) -> tuple[float, Array]:
    place = {id: number for number, id in enumerate(prompts)}
    places_I = np.array([place[item.id] for item in items])
    rows = max(1, CHUNK // len(items))
    parts = [
        resampled_length_controlled(items, weights_RP[start : start + rows, places_I])
        for start in range(0, len(weights_RP), rows)
    ]
    return length_controlled(items), np.concatenate(parts)


def _mean(
    name: str, rates: Mapping[Pair, tuple[float, Array]], pairs: Mapping[Pair, PairResult] | None, prompts: int
) -> Estimate:
    """The mean of a model's rates over its opponents. For a single opponent, the interval is that of the pair."""
    mine = [(pair, value, drawn) for pair, (value, drawn) in rates.items() if name in pair]
    oriented = [(value, drawn) if pair[0] == name else (1 - value, 1 - drawn) for pair, value, drawn in mine]
    if len(mine) == 1 and pairs is not None:
        estimate, first = pairs[mine[0][0]].win_rate, mine[0][0][0] == name
        return estimate if first else Estimate(1 - estimate.value, 1 - estimate.high, 1 - estimate.low)
    value = sum(value for value, _ in oriented) / len(oriented)
    return interval(value, np.mean([drawn for _, drawn in oriented], axis=0), prompts)


def _ratings(
    compared: Mapping[Pair, Sequence[Item]],
    names: Sequence[str],
    prompts: Sequence[str],
    weights_RP: Array,
    baseline: str | None,
) -> dict[str, Estimate]:
    wins_PMM = np.zeros((len(prompts), len(names), len(names)))
    for (first, second), items in compared.items():
        i, j = names.index(first), names.index(second)
        wins_P, number_P = sums_by_prompt(items, prompts)
        wins_PMM[:, i, j] += wins_P
        wins_PMM[:, j, i] += number_P - wins_P
    anchor = names.index(baseline) if baseline in names else None
    value_M = elo(strengths(wins_PMM.sum(0)[None]), anchor)[0]
    drawn_RM = elo(strengths(np.einsum("rp,pij->rij", weights_RP, wins_PMM, optimize=True)), anchor)
    return {name: interval(float(value_M[place]), drawn_RM[:, place], len(prompts)) for place, name in enumerate(names)}
