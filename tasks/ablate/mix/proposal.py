"""The mixture that a fitted law proposes, and how sure that is.

It minimises

    predicted target + 2 × error × KL(shares ‖ natural proportions)

over all shares that stay within what the swarm has seen of each source, and within the repeats that the profile's own
run may make. `error` is that of the law for runs it wasn't fitted to. Without the second term the minimum lies where
the law is most wrong in the hopeful direction. With it, a source moves away from natural proportions only for a gain
that the error couldn't feign: a move of one nat has to promise at least two errors. On worlds whose best mixture is
known, that costs next to nothing where sources differ, and halves what noise moves where they don't.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tasks.ablate.mix.laws import EffectiveData, Fitted, Law, LogLinear, Swarm, Values
from tasks.ablate.mix.swarm import towards

PRICE = 2.0  # errors for each nat away from natural proportions
TOP, SEARCHED = 64, 8192  # of that many mixtures the mean of the best is taken, where a law has no gradient
LEAST = 1e-9


class Proposal(NamedTuple):
    """The proposed share of each source beside the natural one, with the interval that holds 95 % of the proposals of
    resampled swarms."""

    names: list[str]
    natural: Values
    best: Values
    low: Values
    high: Values

    @property
    def shares(self) -> dict[str, float]:
        """The proposal by source, without those that get nothing."""
        return {name: share for name, share in zip(self.names, self.best.tolist(), strict=True) if share}

    @property
    def unclear(self) -> list[str]:
        """The sources whose share can't be told from the natural one."""
        inside = (self.low <= self.natural) & (self.natural <= self.high)
        return [name for name, one in zip(self.names, inside, strict=True) if one]


class Space(NamedTuple):
    """Where a proposal may lie: natural proportions, and the least and largest share of each source."""

    natural: Values
    least: Values
    most: Values


def space_of(swarm: Values, natural: Values, most: Values) -> Space:
    """The box of what the swarm has seen of each source, within the limits of the profile's own run."""
    least = np.minimum(swarm.min(0), natural)
    return Space(natural, np.where(least < 0.02, 0.0, least), np.minimum(most, np.maximum(swarm.max(0), natural)))


def proposed(law: Fitted, weights: Values, space: Space, error: float, seed: int = 0) -> Values:
    """The shares that a law proposes, for a target that is the mean of its losses by `weights`."""
    if isinstance(law, LogLinear | EffectiveData):
        return _minimum(law, weights, space, error)
    return _mean_of_best(law, weights, space, error, seed)


def divergence(shares: Values, natural: Values) -> Values:
    """KL(shares ‖ natural) in nats, for shares of shape (…, sources)."""
    value: Values = np.sum(shares * np.log(np.maximum(shares, LEAST) / np.maximum(natural, LEAST)), axis=-1)
    return value


def _minimum(law: LogLinear | EffectiveData, weights: Values, space: Space, error: float) -> Values:
    """The laws and KL are convex, so that there is one minimum."""
    from scipy.optimize import minimize

    scale = PRICE * max(error, 1e-4)

    def value(shares: Values) -> tuple[float, Values]:
        height, slope = law.height(shares, weights)
        logs = np.log(np.maximum(shares, LEAST) / np.maximum(space.natural, LEAST))
        return height / scale + float(shares @ logs), slope / scale + logs + 1

    found = minimize(
        value,
        space.natural,
        jac=True,
        method="SLSQP",
        bounds=list(zip(space.least, space.most, strict=True)),
        constraints={"type": "eq", "fun": lambda shares: shares.sum() - 1, "jac": np.ones_like},
        options={"maxiter": 300, "ftol": 1e-7},
    )
    shares = np.clip(found.x, space.least, space.most)
    best: Values = shares / shares.sum()
    return best


def _mean_of_best(law: Fitted, weights: Values, space: Space, error: float, seed: int) -> Values:
    """The mean of the best of many random mixtures, as in RegMix: the minimum of a law of steps would be any point of a
    step."""
    rng = np.random.default_rng(seed)
    counts = np.concatenate(
        [
            rng.dirichlet(np.maximum(space.natural, 0.01) ** power * size, SEARCHED // 4)
            for power, size in ((1.0, 20.0), (0.5, 10.0), (0.5, 3.0), (0.0, 1.0))
        ]
    )
    drawn = np.array([towards(space.natural, one, space.most) for one in counts])
    drawn = drawn[np.all(drawn >= space.least, axis=1)]
    values = law(drawn) @ weights + PRICE * error * divergence(drawn, space.natural)
    best: Values = drawn[np.argsort(values)[:TOP]].mean(0)
    return best


def resampled(fit: Law, swarm: Swarm, weights: Values, space: Space, error: float, *, times: int, seed: int) -> Values:
    """Proposals from swarms drawn with replacement from this one (bootstrap), shape (times, sources)."""
    found = []
    for number in range(times):
        runs = np.random.default_rng([seed, number]).integers(len(swarm.shares), size=len(swarm.shares))
        found.append(proposed(fit(swarm.of(runs)), weights, space, error, number))
    return np.array(found)
