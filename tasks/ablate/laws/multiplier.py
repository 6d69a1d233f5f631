"""How much compute a change is worth: the reference would need 1.12 × the compute to reach the loss of an arm.

Along the reference's ladder L = E + K / C^γ, so that the multiplier is ((L_reference - E) / (L_arm - E))^(1/γ). Its
interval holds what is uncertain about E and γ, by the draws of the fit, and about both losses, by the noise of seeds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from storage.errors import ConfigError
from tasks.ablate.laws.law import Fitted, Floats, Number, interval

DRAWS = 4000


class Multiplier(NamedTuple):
    """How many times the compute the reference would need, with the 95 % interval. `high` is infinite if no compute may
    be enough. `extrapolated` says that this is more, or less, compute than any training of the ladder had."""

    value: float
    low: float
    high: float
    extrapolated: bool

    def __str__(self) -> str:
        beyond = ", beyond the ladder" if self.extrapolated else ""
        upper = f"{self.high:.2f}" if np.isfinite(self.high) else "any"
        return f"{self.value:.2f} × compute ({self.low:.2f} to {upper}{beyond})"


def multiplier(
    fitted: Fitted,
    reference: Sequence[float],
    arm: Sequence[float],
    *,
    flops: float,
    error: float | None = None,
    freedom: float | None = None,
    seed: int = 0,
) -> Multiplier:
    """What an arm is worth. `reference` and `arm` are losses by seed, paired, of trainings of `flops`, in the unit of
    the law. `error` is the standard error of their mean difference with its degrees of freedom, by default that of
    these pairs, or for one seed by the noise of the law.

    Raises ConfigError for a loss that the law's E says no compute reaches.
    """
    ours, theirs = np.array(reference, float), np.array(arm, float)
    if ours.shape != theirs.shape or not len(ours):
        raise ConfigError(
            f"{len(ours)} losses of the reference and {len(theirs)} of the arm aren't pairs.",
            "Run both with the same seeds.",
        )
    seeds = len(ours)
    law = fitted.law
    least = min(ours.mean(), theirs.mean())
    if least <= law.E:
        raise ConfigError(
            f"A loss of {least:.4f} is below {float(law.E):.4f}, which by the law no compute reaches.",
            "Give the ladder larger budgets: its law doesn't hold here.",
        )
    if error is None:
        error, freedom = _error(theirs - ours) if seeds > 1 else (np.sqrt(2) * fitted.noise * least, fitted.freedom)
    of_reference, of_seeds = _error(ours) if seeds > 1 else (fitted.noise * ours[0], fitted.freedom)
    random = np.random.default_rng(seed)
    chosen = random.integers(0, len(fitted.noises), DRAWS)
    level = ours.mean() + of_reference * random.standard_t(of_seeds, DRAWS)
    change = (theirs - ours).mean() + error * random.standard_t(freedom or seeds, DRAWS)
    drawn = _ratio(fitted.draws.E[chosen], fitted.draws.gamma[chosen], level, level + change)
    value = float(_ratio(law.E, law.gamma, ours.mean(), theirs.mean()))
    _, low, high = interval(value, drawn)
    computes = [point.flops for point in fitted.points]
    return Multiplier(value, low, high, not min(computes) <= value * flops <= max(computes))


def _error(values: Floats) -> tuple[float, float]:
    """The standard error of a mean, and its degrees of freedom."""
    return float(values.std(ddof=1) / np.sqrt(len(values))), len(values) - 1


def _ratio(least: Number, gamma: Number, ours: Number, theirs: Number) -> Floats:
    """The multiplier. Infinite where no compute of the reference reaches the arm's loss."""
    above, below = np.maximum(ours - least, 0.0), np.maximum(theirs - least, 0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio: Floats = np.power(above / below, 1 / gamma)
    return np.where(np.isnan(ratio), 1.0, ratio)
