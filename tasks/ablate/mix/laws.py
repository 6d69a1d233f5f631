"""Laws that predict losses from the shares of the sources, and which of them predicts unseen mixtures best.

- log-linear, the law of data mixing (Ye et al. 2024, equation 7): a loss falls towards a floor, exponentially in the
  shares.
- effective data: a loss falls as a power of the data that serve it, of which each source brings its share times its
  worth. Scaling laws have this form in the number of tokens. It is the steeper the less of such data there are, as real
  losses are.
- boosted trees (RegMix, Liu et al. 2024) can follow any shape, and need more runs.

The first two have few parameters, and their sums one minimum, as they are convex. The law that predicts members of the
swarm that it wasn't fitted to with the smallest error is used.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from tasks.ablate.mix.swarm import Bool

Values = npt.NDArray[np.float64]

FLOORS = np.geomspace(0.02, 8, 14)  # distances of the floor below the smallest loss, in units of the losses' range
DISTANCES, POWERS, TINY = (0.01, 0.1, 0.3, 1.0, 3.0), (0.05, 0.1, 0.2, 0.4, 0.8), 1e-12  # of effective data
RIDGE = 1e-3  # of the exponents, beside runs × variance of shares
TREES = {"max_iter": 60, "learning_rate": 0.15, "max_leaf_nodes": 5, "min_samples_leaf": 3, "random_state": 0}
FOLDS, REPEATS = 5, 2


class Swarm(NamedTuple):
    """Shares of shape (runs, sources) and losses of shape (runs, losses). The losses of runs that are `apart` may all
    differ by one amount from those of the others, as their tokens do."""

    shares: Values
    losses: Values
    apart: Bool

    def of(self, runs: npt.NDArray[np.int64]) -> Swarm:
        """Some of its runs, by number."""
        return Swarm(self.shares[runs], self.losses[runs], self.apart[runs])

    @property
    def features(self) -> Values:
        """The shares, and a column that marks the runs that are apart."""
        return np.column_stack([self.shares, self.apart.astype(float)])


def nearness(losses: Values) -> Values:
    """The weight of each run: half of the best one's at the median, and small for runs that are much worse. One mixture
    that is nearly all noise would otherwise count more than all others, and says nothing about the best."""
    away = losses - losses.min()
    weights: Values = 1 / (1 + (away / max(float(np.median(away)), 1e-9)) ** 2)
    return weights


class Fitted(Protocol):
    """A law whose constants are known."""

    def __call__(self, shares: Values, /) -> Values:
        """Losses of shape (mixtures, losses), of shares of shape (mixtures, sources)."""


Law = Callable[[Swarm], Fitted]


class LogLinear(NamedTuple):
    """floor + exp(shares · exponents) for each loss: floors of shape (losses,), exponents (sources, losses)."""

    floors: Values
    exponents: Values

    def __call__(self, shares: Values, /) -> Values:
        """The losses of mixtures."""
        losses: Values = self.floors + np.exp(shares @ self.exponents)
        return losses

    def height(self, shares: Values, weights: Values) -> tuple[float, Values]:
        """How far one mixture's target is above its floor, and the slope of that by source."""
        heights = np.exp(shares @ self.exponents) * weights
        return float(heights.sum()), self.exponents @ heights


def fit_log_linear(swarm: Swarm) -> LogLinear:
    """For each floor of a grid, least squares of the logarithm, weighted so that errors count as errors of the loss.
    The floor is that with the least error of runs left out one by one, which the hat matrix gives."""
    columns = [_fit_one(swarm.features, column) for column in swarm.losses.T]
    return LogLinear(np.array([floor for floor, _ in columns]), np.array([exponents for _, exponents in columns]).T)


def _fit_one(features: Values, losses: Values) -> tuple[float, Values]:
    """The floor and the exponents of one loss."""
    penalty = RIDGE * len(features) * np.diag(np.maximum(features.var(0), 1e-6))
    spread = float(np.ptp(losses)) or 1e-9
    fits: list[tuple[float, float, Values]] = []
    near = nearness(losses)
    for distance in FLOORS:
        floor = float(losses.min()) - distance * spread
        above = losses - floor
        logs, weights = np.log(above), near * (above / above.mean()) ** 2
        middle = float(np.average(logs, weights=weights))  # the penalty draws towards a law that no share changes
        weighted = (weights[:, None] * features).T
        solved = np.linalg.solve(weighted @ features + penalty, weighted)
        away = solved @ (logs - middle)
        leverage = np.clip(np.einsum("ij,ji->i", features, solved), 0, 0.99)
        missed = (np.exp(middle + features @ away) - above) / (1 - leverage)
        fits.append((float(np.mean(near * missed**2)), floor, middle + away[:-1]))  # shares have the sum 1
    _, floor, exponents = min(fits, key=lambda one: one[0])
    return floor, exponents


class EffectiveData(NamedTuple):
    """floor + (shares · worths)^-power for each loss: floors and powers have shape (losses,), worths (sources,
    losses)."""

    floors: Values
    powers: Values
    worths: Values

    def __call__(self, shares: Values, /) -> Values:
        """The losses of mixtures."""
        losses: Values = self.floors + self.data(shares) ** -self.powers
        return losses

    def data(self, shares: Values) -> Values:
        """The effective data of mixtures, shape (mixtures, losses)."""
        return np.maximum(shares @ self.worths, TINY)

    def height(self, shares: Values, weights: Values) -> tuple[float, Values]:
        """How far one mixture's target is above its floor, and the slope of that by source."""
        data = self.data(shares)
        heights = data**-self.powers * weights
        return float(heights.sum()), self.worths @ (-self.powers * heights / data)


def fit_effective_data(swarm: Swarm) -> EffectiveData:
    """For each floor and power of a grid, non-negative least squares of the worths, weighted so that errors count as
    errors of the loss. Floor and power are those with the least error."""
    from scipy.optimize import nnls

    features = swarm.features
    found = []
    for losses in swarm.losses.T:
        spread, fits, near = float(np.ptp(losses)) or 1e-9, [], np.sqrt(nearness(losses))
        for distance in DISTANCES:
            floor = float(losses.min()) - distance * spread
            above = losses - floor
            for power in POWERS:
                data = above ** (-1 / power)
                weights = near * power * above / data  # of an error of the data, in the loss
                worths, _ = nnls(weights[:, None] * features, weights * data)
                missed = np.maximum(features @ worths, TINY) ** -power - above
                fits.append((float(np.mean((near * missed) ** 2)), floor, power, worths[:-1]))
        found.append(min(fits, key=lambda one: one[0])[1:])
    floors, powers, worths = zip(*found, strict=True)
    return EffectiveData(np.array(floors), np.array(powers), np.array(worths).T)


def fit_trees(swarm: Swarm) -> Fitted:
    """Boosted trees of each loss, small ones, as a swarm has tens of runs."""
    from sklearn.ensemble import HistGradientBoostingRegressor
    from threadpoolctl import threadpool_limits

    with threadpool_limits(1):  # threads that wait for each other take a thousand times as long on busy cores
        trees = [
            HistGradientBoostingRegressor(**TREES).fit(swarm.features, one, nearness(one)) for one in swarm.losses.T
        ]

    def predicted(shares: Values) -> Values:
        features = np.column_stack([shares, np.zeros(len(shares))])
        return np.stack([one.predict(features) for one in trees], axis=1)

    return predicted


LAWS: dict[str, Law] = {"log-linear": fit_log_linear, "effective data": fit_effective_data, "boosted trees": fit_trees}


class Tried(NamedTuple):
    """How well a law predicts the target of runs that it wasn't fitted to: by the rank correlation (Spearman), and the
    root of the mean squared error, of all runs and weighted by their nearness to the best."""

    law: str
    spearman: float
    rmse: float
    error: float


def tried(swarm: Swarm, weights: Values, seed: int) -> list[Tried]:
    """Every law by cross-validation, best first. The target is the mean of the losses by `weights`. Runs that are apart
    are only fitted to."""
    asked = np.flatnonzero(~swarm.apart)
    target = swarm.losses @ weights
    found = []
    for name, law in LAWS.items():
        predicted = np.zeros((REPEATS, len(target)))
        for repeat in range(REPEATS):
            for fold in folds(asked, np.random.default_rng([seed, repeat])):
                rest = np.setdiff1d(np.arange(len(target)), fold)
                predicted[repeat, fold] = law(swarm.of(rest))(swarm.shares[fold]) @ weights
        squares = np.mean((predicted - target)[:, asked] ** 2, axis=0)
        rank = float(np.mean([_spearman(one[asked], target[asked]) for one in predicted]))
        near = float(np.average(squares, weights=nearness(target[asked])))
        found.append(Tried(name, rank, float(np.sqrt(squares.mean())), float(np.sqrt(near))))
    return sorted(found, key=lambda one: one.error)


def folds(runs: npt.NDArray[np.int64], rng: np.random.Generator) -> Sequence[npt.NDArray[np.int64]]:
    """The runs in FOLDS parts, at random."""
    return np.array_split(rng.permutation(runs), min(FOLDS, len(runs)))


def _spearman(one: Values, other: Values) -> float:
    from scipy.stats import spearmanr

    if not np.ptp(one) or not np.ptp(other):
        return 0.0
    return float(spearmanr(one, other).statistic)
