"""The law of a ladder of trainings: L = E + A / N^α + B / D^β, fitted with intervals.

N is a sixth of the FLOPs that training takes a token, so that C = 6 N D is exact: products of matrices with the output
layer, and attention. The embedding is looked up and doesn't count. Bi et al. 2024 (DeepSeek LLM, section 3.2) count so,
and Porian et al. 2024 show that the exponents of small models depend on it. D is the tokens, and L any loss, such as
bits per byte.

The fit is that of Hoffmann et al. 2022 (approach 3, appendix D.2): Huber's loss of log L with δ = 1e-3, from a grid of
starts. Besiroglu et al. 2024 found that theirs had ended early, because it took the mean over the points. Here it is
the sum, in units of δ², and every start is followed until nothing changes (Levenberg and Marquardt).

Intervals come from model-based resampling (Davison & Hinkley 1997, section 6.3): new noise on the fitted losses, fitted
again. A ladder is designed, and a resample of its few points would lack whole sizes. The noise has the spread of the
residuals, which is itself uncertain: it is drawn too.

Shapes: S starts or draws, n points, P parameters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from storage.errors import ConfigError

Floats = npt.NDArray[np.float64]
Number = Any  # a float, or an array of one number a draw

DELTA = 1e-3  # of Huber's loss, in log L
LEVEL = 0.95
DRAWS = 400
FARTHEST = 10.0  # times the compute of the largest point
SAME = 1.05  # sizes, token counts or budgets within this factor count as one
LEAST = {"size": 3, "tokens": 3}  # distinct values, for a law in both
EXPONENTS, LARGEST_DROP = (0.01, 5.0), 10.0  # bounds: of exponents, and of log E below the smallest log loss
STEPS = 400


class Point(NamedTuple):
    """A training: its size N, its tokens D, and its loss."""

    size: float
    tokens: float
    loss: float

    @property
    def flops(self) -> float:
        """Its compute."""
        return 6 * self.size * self.tokens


class Law(NamedTuple):
    """L = E + A / N^α + B / D^β. A is 0 in a law of tokens only, and B in one of sizes only."""

    E: Number
    A: Number
    alpha: Number
    B: Number
    beta: Number

    def loss(self, size: Number, tokens: Number) -> Number:
        """The loss of a training."""
        return self.E + self.A * np.power(size, -self.alpha) + self.B * np.power(tokens, -self.beta)

    @property
    def gamma(self) -> Number:
        """The exponent of compute along the best sizes, L = E + K / C^γ. With one size, or one number of tokens, it is
        that of the other."""
        if not np.any(self.A):
            return self.beta
        return self.alpha if not np.any(self.B) else self.alpha * self.beta / (self.alpha + self.beta)

    def best_size(self, flops: Number) -> Number:
        """The size with the least loss for a budget (Hoffmann et al. 2022, equation 4)."""
        ratio = (self.alpha * self.A) / (self.beta * self.B)
        total = self.alpha + self.beta
        return np.power(ratio, 1 / total) * np.power(flops / 6, self.beta / total)

    def best_loss(self, flops: Number) -> Number:
        """The loss of that size, with at least one parameter and one token."""
        size = np.clip(self.best_size(flops), 1.0, flops / 6)
        return self.loss(size, flops / 6 / size)


class Predicted(NamedTuple):
    """A number with its 95 % interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Fitted:
    """A law and what is uncertain about it. `noise` is the standard deviation of a measured log loss around it, with
    its degrees of freedom. `draws` are laws that fit as well, and `noises` their noise."""

    law: Law
    points: tuple[Point, ...]
    axes: tuple[str, ...]  # of "size" and "tokens"
    noise: float
    freedom: int
    draws: Law
    noises: Floats

    @property
    def largest(self) -> float:
        """The compute of the largest point."""
        return max(point.flops for point in self.points)

    @property
    def reduced(self) -> str:
        """What the law leaves out, in words. Empty if nothing."""
        if len(self.axes) == 2:
            return ""
        other, form = ("size", "E + B / D^β") if self.axes == ("tokens",) else ("number of tokens", "E + A / N^α")
        return f"all points have one {other}, so the law is reduced to {form}"

    def predict(self, size: float, tokens: float, *, beyond: bool = False, seed: int = 0) -> Predicted:
        """The loss that a training will have, with the interval of a measured one: of the law, and of noise. Raises
        ConfigError beyond ten times the compute of the largest point, unless `beyond`, and for another size (or number
        of tokens) than a reduced law was fitted to."""
        self.check_reach(6 * size * tokens, beyond=beyond)
        for axis, value in (("size", size), ("tokens", tokens)):
            known = getattr(self.points[0], axis)
            if axis not in self.axes and not known / SAME < value < known * SAME:
                raise ConfigError(
                    f"The law is of one {axis} only, {known:,.3g}, and says nothing of {value:,.3g}.",
                    f"Add trainings with other values of {axis} to the ladder.",
                )
        drawn = self.draws.loss(size, tokens)
        noise = np.random.default_rng(seed).standard_normal(len(self.noises)) * self.noises
        return interval(float(self.law.loss(size, tokens)), drawn * np.exp(noise))

    def check_reach(self, flops: float, *, beyond: bool) -> None:
        """Raises ConfigError for a compute too far from the points, unless `beyond`."""
        if flops > FARTHEST * self.largest and not beyond:
            raise ConfigError(
                f"{flops:.3g} FLOPs are more than {FARTHEST:g} × the {self.largest:.3g} of the largest training of the "
                "ladder.",
                f"Add a larger budget: a law is trusted up to {FARTHEST:g} ×. Or allow it with --beyond.",
            )


def interval(value: float, drawn: Floats) -> Predicted:
    """A value with the percentiles of its draws."""
    low, high = np.quantile(drawn, [(1 - LEVEL) / 2, (1 + LEVEL) / 2], method="nearest")  # some may be infinite
    return Predicted(value, float(low), float(high))


def distinct(values: Sequence[float]) -> list[list[int]]:
    """The indices of values, grouped by those that are about the same, in ascending order."""
    groups: list[list[int]] = []
    for index in sorted(range(len(values)), key=values.__getitem__):
        if groups and values[index] <= values[groups[-1][0]] * SAME:
            groups[-1].append(index)
        else:
            groups.append([index])
    return groups


def axes_of(points: Sequence[Point]) -> tuple[str, ...]:
    """The axes along which points tell a law. Raises ConfigError for too few points."""
    for point in points:
        if not all(np.isfinite(value) and value > 0 for value in point):
            raise ConfigError(f"A point has {point}, of which a number isn't positive.", "Leave the training out.")
    counts = {
        "size": len(distinct([point.size for point in points])),
        "tokens": len(distinct([point.tokens for point in points])),
    }
    single = [axis for axis, count in counts.items() if count == 1]
    axes = tuple(axis for axis in counts if axis not in single)
    needed = 2 + 2 * len(axes)
    if not axes and len(points) > 1:
        raise ConfigError("All trainings have about the same size and tokens.", "Give budgets further apart, or sizes.")
    if not axes or len(points) < needed:
        raise ConfigError(
            f"A law in {' and '.join(axes) or 'size or tokens'} needs {max(4, needed)} trainings, and there are "
            f"{len(points)}.",
            "Give more budgets or sizes.",
        )
    for axis in axes:
        least = LEAST[axis] if len(axes) == 2 else 4
        if counts[axis] < least:
            raise ConfigError(
                f"The trainings have {counts[axis]} values of {axis}: a law in {' and '.join(axes)} needs {least}.",
                f"Give more values of {axis}" + (", or just one." if len(axes) == 2 else "."),
            )
    if len(axes) == 2:
        x, y = (np.log([getattr(point, axis) for point in points]) for axis in axes)
        if abs(np.corrcoef(x, y)[0, 1]) > 0.999:
            raise ConfigError(
                "Size and tokens grow together in all trainings, so that the law can't tell them apart.",
                "Give each budget several sizes.",
            )
    return axes


def fit(points: Sequence[Point], *, draws: int = DRAWS, seed: int = 0) -> Fitted:
    """The law of these points. Raises ConfigError for too few or degenerate ones, and for losses that don't fall."""
    axes = axes_of(points)
    centres = {axis: float(np.exp(np.mean(np.log([getattr(point, axis) for point in points])))) for axis in axes}
    logs = np.log([[getattr(point, axis) / centres[axis] for axis in axes] for point in points])  # (n, axes)
    losses = np.log([point.loss for point in points])
    starts = _starts(losses, len(axes))
    found, costs = _followed(starts, logs, np.broadcast_to(losses, (len(starts), len(losses))))
    best = found[costs.argmin()]
    law = _law(best, axes, centres)
    fitted = _model(best[None], logs)[0][0]
    freedom = len(points) - len(best)
    noise = float(np.sqrt(((losses - fitted) ** 2).sum() / freedom))
    _check_falls(law, points, axes, noise)
    random = np.random.default_rng(seed)
    noises = noise * np.sqrt(freedom / random.chisquare(freedom, draws))
    drawn = fitted + noises[:, None] * random.standard_normal((draws, len(points)))
    laws, _ = _followed(np.repeat(best[None], draws, axis=0), logs, drawn)
    return Fitted(law, tuple(points), axes, noise, freedom, _law(laws.T, axes, centres), noises)


def _check_falls(law: Law, points: Sequence[Point], axes: Sequence[str], noise: float) -> None:
    """Raises ConfigError for a term that changes the losses by less than their noise."""
    size, tokens, loss = np.array(points).T
    terms = {"size": law.A * size**-law.alpha, "tokens": law.B * tokens**-law.beta}
    for axis in axes:
        if np.ptp(terms[axis]) <= noise * loss.min():
            raise ConfigError(
                f"The loss doesn't fall with {axis} beyond its noise, so there is no law of it.",
                f"Take values of {axis} further apart, and check the learning rate at each size (--check-rate).",
            )


def _law(parameters: Floats, axes: Sequence[str], centres: dict[str, float]) -> Law:
    """The law of parameters in units of the points' centres, of shape (P,) or (P, S)."""
    terms: dict[str, tuple[Number, Number]] = {}
    for number, axis in enumerate(axes):
        exponent = np.exp(parameters[2 + 2 * number])
        terms[axis] = np.exp(parameters[1 + 2 * number]) * centres[axis] ** exponent, exponent
    none = np.zeros_like(parameters[0])
    (a, alpha), (b, beta) = (terms.get(axis, (none, none)) for axis in ("size", "tokens"))
    return Law(np.exp(parameters[0]), a, alpha, b, beta)


def _starts(losses: Floats, axes: int) -> Floats:
    """(S, P) starts: log E, then for each axis the log of its term at the centre and of its exponent."""
    middle, least = float(np.exp(losses.mean())), float(np.exp(losses.min()))
    starts = []
    for share in (0.1, 0.4, 0.7, 0.9):
        for exponents in product((0.1, 0.25, 0.5, 1.0, 1.5), repeat=axes):
            for part in (0.2, 0.5, 0.8) if axes == 2 else (1.0,):
                rest = middle - share * least
                parts = (part, 1 - part)[:axes]
                terms = zip(np.log(rest * np.array(parts)), np.log(exponents), strict=True)
                starts.append([np.log(share * least), *(value for term in terms for value in term)])
    return np.array(starts)


def _model(parameters_SP: Floats, logs_nA: Floats) -> tuple[Floats, Floats]:
    """(S, n) the log of the law at the points, and (S, n, P) its derivatives."""
    size, points = len(parameters_SP), len(logs_nA)
    terms = np.empty((size, points, 1 + logs_nA.shape[1]))
    terms[..., 0] = parameters_SP[:, :1]
    for axis, x_n in enumerate(logs_nA.T):
        coefficient, exponent = parameters_SP[:, 1 + 2 * axis], np.exp(parameters_SP[:, 2 + 2 * axis])
        terms[..., 1 + axis] = coefficient[:, None] - exponent[:, None] * x_n
    total = np.logaddexp.reduce(terms, axis=-1)
    weights = np.exp(terms - total[..., None])
    slopes = np.empty((size, points, parameters_SP.shape[1]))
    slopes[..., 0] = weights[..., 0]
    for axis, x_n in enumerate(logs_nA.T):
        slopes[..., 1 + 2 * axis] = weights[..., 1 + axis]
        exponent = np.exp(parameters_SP[:, 2 + 2 * axis])
        slopes[..., 2 + 2 * axis] = -weights[..., 1 + axis] * exponent[:, None] * x_n
    return total, slopes


def _followed(starts_SP: Floats, logs_nA: Floats, losses_Sn: Floats) -> tuple[Floats, Floats]:
    """Each start followed to a minimum of Huber's loss, and that loss."""
    low = np.full(starts_SP.shape[1], -np.inf)
    high = np.full(starts_SP.shape[1], np.inf)
    low[2::2], high[2::2] = np.log(EXPONENTS)
    low[0] = losses_Sn.min() - LARGEST_DROP
    now = np.clip(starts_SP, low, high)
    model, slopes = _model(now, logs_nA)
    cost, damping = _huber(model - losses_Sn), np.full(len(now), 1e-2)
    live = np.arange(len(now))  # those that still move
    for _ in range(STEPS):
        off, slope = (model[live] - losses_Sn[live]) / DELTA, slopes[live]
        weighted = slope * np.minimum(1, 1 / np.maximum(np.abs(off), 1e-300))[..., None]
        hessian = np.einsum("snp,snq->spq", weighted, slope) / DELTA**2
        gradient = np.einsum("snp,sn->sp", weighted, off) / DELTA
        scale = damping[live, None] * np.einsum("spp->sp", hessian) + 1e-12
        damped = hessian + np.einsum("sp,pq->spq", scale, np.eye(now.shape[1]))
        tried = np.clip(now[live] - np.linalg.solve(damped, gradient[..., None])[..., 0], low, high)
        there, steeper = _model(tried, logs_nA)
        new = _huber(there - losses_Sn[live])
        better, moved = new < cost[live], np.abs(tried - now[live]).max(axis=1)
        which = live[better]
        now[which], model[which], slopes[which], cost[which] = (
            tried[better],
            there[better],
            steeper[better],
            new[better],
        )
        damping[live] = np.clip(np.where(better, damping[live] / 4, damping[live] * 3), 1e-12, 1e12)
        live = live[(moved >= 1e-10) & (damping[live] < 1e12)]
        if not len(live):
            break
    return now, cost


def _huber(off_Sn: Floats) -> Floats:
    """(S,) the sum over the points, in units of δ²."""
    z = np.abs(off_Sn) / DELTA
    total: Floats = np.where(z <= 1, z**2 / 2, z - 0.5).sum(axis=1)
    return total
