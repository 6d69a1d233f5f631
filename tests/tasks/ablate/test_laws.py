"""Scaling laws of synthetic ladders: what was planted is found again, and intervals hold it."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from itertools import product

import numpy as np
import pytest
from scipy.optimize import minimize

from storage.errors import ConfigError
from tasks.ablate.laws.law import DELTA, Fitted, Law, Point, fit
from tasks.ablate.laws.multiplier import multiplier
from tasks.ablate.laws.optimum import best_size, best_sizes, held_out_errors

TRUE = Law(E=0.9, A=25.0, alpha=0.33, B=60.0, beta=0.30)
BUDGETS = (1e12, 2e12, 5e12, 1e13)
NOISE = 0.003  # of a loss
few = functools.partial(fit, draws=200)


def ladder(seed: int = 0, noise: float = NOISE, sizes: Sequence[float] = (0.35, 0.6, 1, 1.7, 2.8)) -> list[Point]:
    """Trainings at each budget, of sizes around the best one."""
    random, points = np.random.default_rng(seed), []
    for budget, share in product(BUDGETS, sizes):
        size = float(TRUE.best_size(budget)) * share
        tokens = budget / 6 / size
        points.append(Point(size, tokens, float(TRUE.loss(size, tokens) * np.exp(noise * random.standard_normal()))))
    return points


@functools.cache
def fitted(seed: int) -> Fitted:
    return few(ladder(seed), seed=seed)


def at_best(flops: float) -> float:
    size = TRUE.best_size(flops)
    return float(TRUE.loss(size, flops / 6 / size))


def test_a_planted_law_is_recovered_with_its_best_sizes() -> None:
    points = ladder(noise=1e-6)
    found = few(points)
    assert found.law == pytest.approx(TRUE, rel=2e-3)
    assert found.law.gamma == pytest.approx(0.33 * 0.30 / 0.63, rel=1e-3)
    one, two, three = best_sizes(found)
    assert (three.exponent, three.size(1e13)) == pytest.approx((0.30 / 0.63, TRUE.best_size(1e13)), rel=1e-3)
    assert (two.exponent, two.size(1e13)) == pytest.approx((0.30 / 0.63, TRUE.best_size(1e13)), rel=0.06)
    assert one.size(1e13) == pytest.approx(TRUE.best_size(1e13), rel=0.3)  # it knows the ladder's own sizes only
    # One with another budget's power laws: the best size is where no other has less loss
    sizes = TRUE.best_size(3e12) * np.geomspace(0.5, 2, 2001)
    assert sizes[TRUE.loss(sizes, 3e12 / 6 / sizes).argmin()] == pytest.approx(TRUE.best_size(3e12), rel=1e-3)


def test_the_fit_is_the_minimum_that_scipy_finds() -> None:
    points = ladder(3)
    size, tokens, loss = np.array(points).T

    def objective(p: Sequence[float]) -> float:
        terms = [np.full(len(size), p[0]), p[1] - p[2] * np.log(size / 1e5), p[3] - p[4] * np.log(tokens / 1e6)]
        z = np.abs(np.logaddexp.reduce(terms) - np.log(loss)) / DELTA
        return float(np.where(z <= 1, z**2 / 2, z - 0.5).sum())

    options = {"maxiter": 5000, "maxfun": 50_000, "ftol": 1e-14, "gtol": 1e-9}
    starts = product((-0.7, 0.0), (-1.0, 0.0), (0.3,), (-1.0, 0.0), (0.3,))
    best = min(
        (minimize(objective, start, method="L-BFGS-B", options=options) for start in starts), key=lambda r: r.fun
    )
    law = few(points).law
    mine = [
        math.log(law.E),
        math.log(law.A) - law.alpha * math.log(1e5),
        law.alpha,
        math.log(law.B) - law.beta * math.log(1e6),
        law.beta,
    ]
    assert objective(mine) <= best.fun * (1 + 1e-9)
    assert mine == pytest.approx(best.x, abs=1e-3)


def test_intervals_hold_the_truth_of_a_training_of_eight_times_the_compute() -> None:
    flops = 8 * BUDGETS[-1]
    size = float(TRUE.best_size(flops))
    held = sizes_held = 0
    widths = []
    for seed in range(10):
        found = fitted(seed)
        predicted = found.predict(size, flops / 6 / size)
        held += predicted.low <= at_best(flops) <= predicted.high
        widths.append((predicted.high - predicted.low) / predicted.value)
        best = best_size(found, flops)
        sizes_held += best.low <= size <= best.high
    assert held >= 9
    assert sizes_held >= 9
    assert max(widths) < 0.06  # they say something


@pytest.mark.filterwarnings("error")
def test_the_best_loss_is_a_number_wherever_the_search_for_exponents_ends() -> None:
    at = np.geomspace(1e9, 1e14, 5)
    for alpha, beta in product((0.01, 5.0), repeat=2):
        for a, b in product((0.0, 1e-300, 1e30), (1e-300, 1e30)):
            assert np.isfinite(Law(E=1.0, A=a, alpha=alpha, B=b, beta=beta).best_loss(at)).all()
    law = Law(E=0.9, A=25.0, alpha=0.33, B=60.0, beta=0.30)
    size = law.best_size(1e12)
    assert law.best_loss(1e12) == pytest.approx(law.loss(size, 1e12 / 6 / size))


def test_the_largest_trainings_are_predicted_from_the_others() -> None:
    errors = held_out_errors(ladder())
    assert [error.point.flops for error in errors] == pytest.approx([1e13] * 5)
    assert max(abs(error.error) for error in errors) < 0.02
    others = few(ladder()[:15])
    for error in errors:
        assert error.predicted.value == pytest.approx(others.law.loss(error.point.size, error.point.tokens))
        assert error.error == pytest.approx(error.predicted.value / error.point.loss - 1)


def test_of_one_size_or_one_length_a_reduced_law_is_fitted_and_said() -> None:
    of_tokens = [Point(1e5, tokens, float(TRUE.loss(1e5, tokens))) for tokens in (1e6, 2e6, 5e6, 2e7)]
    found = few(of_tokens)
    assert found.reduced == "all points have one size, so the law is reduced to E + B / D^β"
    assert found.law.beta == pytest.approx(0.30, rel=1e-2)
    assert found.law.gamma == found.law.beta
    assert found.predict(1e5, 3e7).value == pytest.approx(float(TRUE.loss(1e5, 3e7)), rel=1e-3)
    with pytest.raises(ConfigError, match="of one size only"):
        found.predict(2e5, 1e6)
    of_sizes = [Point(size, 1e6, float(TRUE.loss(size, 1e6))) for size in (1e4, 3e4, 1e5, 3e5, 1e6)]
    assert few(of_sizes).law.alpha == pytest.approx(0.33, rel=1e-2)
    assert "one number of tokens" in few(of_sizes).reduced


def sizes(*values: tuple[float, float]) -> list[Point]:
    return [Point(size, tokens, float(TRUE.loss(size, tokens))) for size, tokens in values]


@pytest.mark.parametrize(
    ("points", "named"),
    [
        (ladder()[:3], "needs 6 trainings, and there are 3"),
        (sizes((1e5, 1e6), (1e5, 2e6), (1e5, 4e6)), "a law in tokens needs 4|needs 4 trainings"),
        (sizes(*((1e5, 1e6),) * 5), "the same size and tokens"),
        (sizes(*product((1e5, 2e5), (1e6, 2e6, 4e6))), "2 values of size"),
        (sizes(*((1e5 * 2**k, 1e6 * 2**k) for k in range(7))), "grow together"),
        ([Point(1e5, 1e6, math.nan)] * 6, "isn't positive"),
        (
            [Point(size, tokens, 2.0 + 1e-6 * tokens) for size, tokens in product((1, 2, 4), (1e5, 2e5, 4e5))],
            "doesn't fall",
        ),
    ],
)
def test_degenerate_ladders_are_refused(points: list[Point], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        few(points)


def test_nothing_is_predicted_far_beyond_the_ladder_unless_allowed() -> None:
    found = fitted(0)
    with pytest.raises(ConfigError, match=r"1.2e\+14 FLOPs are more than 10 × the"):
        found.predict(1e6, 2e7)
    assert found.predict(1e6, 2e7, beyond=True).value < min(point.loss for point in found.points)


@pytest.mark.parametrize("seeds", [1, 3])
def test_a_planted_multiplier_is_found(seeds: int) -> None:
    flops, held, values = 5e12, 0, []
    for seed in range(10):
        random = np.random.default_rng(100 + seed)
        noise = [np.exp(NOISE * random.standard_normal(seeds)) for _ in range(2)]
        reference, arm = at_best(flops) * noise[0], at_best(1.25 * flops) * noise[1]
        found = multiplier(fitted(seed), reference.tolist(), arm.tolist(), flops=flops)
        held += found.low <= 1.25 <= found.high
        values.append(found.value)
        assert not found.extrapolated
    assert held >= 9
    assert np.median(values) == pytest.approx(1.25, abs=0.05)


def test_a_multiplier_says_what_it_cannot() -> None:
    found = fitted(0)
    reference = [at_best(5e12)] * 3
    assert multiplier(found, reference, reference, flops=5e12).value == 1
    far = multiplier(found, reference, [at_best(3e13)] * 3, flops=5e12)
    assert far.extrapolated
    assert far.value == pytest.approx(6, rel=0.2)
    assert str(far).endswith("beyond the ladder)")
    with pytest.raises(ConfigError, match="no compute reaches"):
        multiplier(found, reference, [0.5, 0.5, 0.5], flops=5e12)
    with pytest.raises(ConfigError, match="aren't pairs"):
        multiplier(found, reference, reference[:2], flops=5e12)
    # A noise that is known better than by these pairs
    given = multiplier(found, reference, [at_best(6e12)] * 3, flops=5e12, error=0.002, freedom=30)
    assert 1.05 < given.low < 1.2 < given.high < 1.35
