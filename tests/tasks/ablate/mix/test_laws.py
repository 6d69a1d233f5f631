"""Laws and proposals against worlds whose best mixture is known."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from tasks.ablate.mix.laws import (
    LAWS,
    EffectiveData,
    Fitted,
    LogLinear,
    Swarm,
    Values,
    fit_effective_data,
    fit_log_linear,
    tried,
)
from tasks.ablate.mix.proposal import Space, divergence, proposed, resampled, space_of
from tasks.ablate.mix.swarm import Bool, default_runs, drawn

SOURCES, NOISE = 4, 0.004


def world(seed: int) -> tuple[LogLinear, Values]:
    """The true law of three sources and a useless one, for the losses of the three. Each helps itself, and the others a
    little. Then natural proportions."""
    rng = np.random.default_rng(seed)
    exponents = rng.uniform(-0.5, 0.1, (SOURCES, SOURCES - 1))
    exponents[range(SOURCES - 1), range(SOURCES - 1)] = rng.uniform(-2.5, -1.2, SOURCES - 1)
    exponents[-1] = rng.uniform(0.1, 0.3, SOURCES - 1)
    natural = rng.dirichlet(np.full(SOURCES, 5.0))
    return LogLinear(rng.uniform(1, 2, SOURCES - 1), exponents), np.maximum(natural, 0.03) / np.maximum(
        natural, 0.03
    ).sum()


def swarm_of(law: Fitted, natural: Values, seed: int, noise: float = NOISE) -> Swarm:
    shares = np.array(drawn(natural, np.ones(SOURCES), default_runs(SOURCES)))
    losses = law(shares)
    return Swarm(
        shares, losses + np.random.default_rng(seed).normal(0, noise, losses.shape), np.zeros(len(shares), bool)
    )


def least(law: Fitted, weights: Values) -> float:
    """The least target over a fine grid of the simplex."""
    steps = 40
    cuts = np.array(
        [(a, b, c) for a in range(steps + 1) for b in range(a, steps + 1) for c in range(b, steps + 1)], float
    )
    grid = np.diff(np.column_stack([np.zeros(len(cuts)), cuts, np.full(len(cuts), steps)]), axis=1) / steps
    return float((law(grid) @ weights).min())


def test_the_known_best_mixture_is_found() -> None:
    weights, near, covered = np.array([0.5, 0.3, 0.2]), 0, 0
    for seed in range(10):
        law, natural = world(seed)
        swarm = swarm_of(law, natural, seed)
        space, error = space_of(swarm.shares, natural, np.ones(SOURCES)), NOISE
        best = proposed(fit_log_linear(swarm), weights, space, error)
        before, after = (law(np.array([natural, best])) @ weights).tolist()
        near += before - after > 0.9 * (before - least(law, weights)) and best[-1] < natural[-1] / 2
        others = resampled(fit_log_linear, swarm, weights, space, error, times=40, seed=seed)
        covered += bool(np.quantile(others[:, -1], 0.975) < natural[-1])
    assert near >= 9, "the mixture brings nine tenths of what the best one would, and the useless source is gone"
    assert covered >= 9, "and that it is useless is beyond doubt"


def test_where_no_share_matters_natural_proportions_stay() -> None:
    _, natural = world(0)
    flat = LogLinear(np.array([1.0]), np.zeros((SOURCES, 1)))
    far = []
    for seed in range(10):
        swarm = swarm_of(flat, natural, seed, 0.02)
        space = space_of(swarm.shares, natural, np.ones(SOURCES))
        far.append(float(divergence(proposed(fit_log_linear(swarm), np.ones(1), space, 0.02), natural)))
    assert np.median(far) < 0.1


@pytest.mark.soak
def test_trees_win_where_sources_interact() -> None:
    rng = np.random.default_rng(0)
    shares = rng.dirichlet(np.ones(3), 120)
    steps = (shares[:, 0] > 0.3).astype(float) * (shares[:, 1] > 0.3)
    losses = (2 - 0.5 * steps + rng.normal(0, 0.01, 120))[:, None]
    laws = tried(Swarm(shares, losses, np.zeros(120, bool)), np.ones(1), 0)
    assert laws[0].law == "boosted trees"
    assert laws[0].error < min(one.error for one in laws[1:]) / 2
    fitted = LAWS["boosted trees"](Swarm(shares, losses, np.zeros(120, bool)))
    best = proposed(fitted, np.ones(1), Space(np.array([0.8, 0.1, 0.1]), np.zeros(3), np.ones(3)), laws[0].error)
    assert best[0] > 0.3 < best[1]


def test_the_log_linear_law_wins_where_it_is_true_and_says_its_error() -> None:
    law, natural = world(1)
    first, *others = tried(swarm_of(law, natural, 1), np.full(SOURCES - 1, 1 / 3), 0)
    assert first.law == "log-linear"
    assert first.spearman > 0.98
    assert max(first.rmse, first.error) < 2 * NOISE
    assert all(one.error > first.error for one in others)


def test_the_effective_data_law_wins_where_losses_are_steep() -> None:
    """As they are where a source has next to nothing: every loss here is a power of few effective tokens."""
    weights, near = np.array([0.5, 0.3, 0.2]), 0
    worths = np.array([[1.0, 0.1, 0.05], [0.08, 1.0, 0.1], [0.02, 0.1, 1.0], [0.0, 0.0, 0.001]])
    law = EffectiveData(np.array([0.5, 1.0, 0.8]), np.array([0.15, 0.2, 0.3]), worths)
    natural = np.array([0.2, 0.3, 0.1, 0.4])
    for seed in range(10):
        swarm = swarm_of(law, natural, seed, 0.01)
        best = proposed(fit_effective_data(swarm), weights, space_of(swarm.shares, natural, np.ones(SOURCES)), 0.01)
        before, after = (law(np.array([natural, best])) @ weights).tolist()
        near += before - after > 0.9 * (before - least(law, weights)) and best[-1] < 0.02
    assert near >= 9
    assert tried(swarm, weights, 0)[0].law == "effective data"


def test_models_of_other_tokens_shift_the_law_and_not_the_proposal() -> None:
    law, natural = world(2)
    swarm = swarm_of(law, natural, 2)
    apart = np.arange(len(swarm.shares)) % 2 == 1
    losses, fresh = swarm.losses + 0.1 * apart[:, None], np.zeros(len(apart), bool)

    def error(apart: Bool) -> float:
        fitted = fit_log_linear(Swarm(swarm.shares, losses, apart))
        return float(np.sqrt(np.mean((fitted(swarm.shares) - law(swarm.shares)) ** 2)))

    assert error(apart) < 3 * NOISE
    assert error(fresh) > 4 * error(apart)


def test_a_proposal_stays_within_its_limits_and_moves_less_the_larger_the_error() -> None:
    law, natural = world(3)
    weights, most = np.full(SOURCES - 1, 1 / 3), np.minimum(1, 1.2 * natural)
    capped = proposed(law, weights, Space(natural, np.zeros(SOURCES), most), 0.001)
    assert np.all(capped <= most + 1e-6)
    assert capped.sum() == pytest.approx(1)
    far = [
        float(divergence(proposed(law, weights, Space(natural, np.zeros(SOURCES), np.ones(SOURCES)), error), natural))
        for error in (0.001, 0.1, 10)
    ]
    assert all(one > other for one, other in pairwise(far))
    assert far[-1] < 1e-3
