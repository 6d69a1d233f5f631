"""The equations of PPO against a transcription in numpy, one token at a time."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from tasks.posttrain.ppo import equations
from tasks.posttrain.ppo.equations import KlEstimator

LENGTHS = (5, 1, 3)
Numbers = NDArray[np.float64]


def drawn(*names: str) -> tuple[Numbers, ...]:
    """Numbers for three answers of different lengths, with zeros after them for the mask."""
    random = np.random.default_rng(7)
    mask = np.array([[1.0] * length + [0.0] * (5 - length) for length in LENGTHS])
    return (mask, *(random.normal(size=(3, 5)) for _ in names))


def test_the_divergence_is_estimated_by_k1_or_k3() -> None:
    _, policy, reference = drawn("policy", "reference")
    names: tuple[KlEstimator, ...] = ("k1", "k3")
    for estimator in names:
        found = equations.kl_of_tokens(torch.tensor(policy), torch.tensor(reference), estimator).numpy()
        for b in range(3):
            for t in range(5):
                d = reference[b, t] - policy[b, t]
                assert found[b, t] == pytest.approx(-d if estimator == "k1" else math.exp(d) - 1 - d)


def test_the_score_comes_with_the_last_token() -> None:
    mask, kl = drawn("kl")
    score = np.array([1.0, -2.0, 0.5])
    found = equations.rewards_of_tokens(torch.tensor(score), torch.tensor(kl), 0.1, torch.tensor(mask)).numpy()
    for b, length in enumerate(LENGTHS):
        for t in range(5):
            expected = (-0.1 * kl[b, t] if t < length else 0.0) + (score[b] if t == length - 1 else 0.0)
            assert found[b, t] == pytest.approx(expected)


def estimated(rewards: Numbers, values: Numbers, mask: Numbers, *, discount: float, decay: float) -> list[Numbers]:
    tensors = torch.tensor(rewards), torch.tensor(values), torch.tensor(mask)
    return [each.numpy() for each in equations.advantages_and_returns(*tensors, discount=discount, decay=decay)]


def test_advantages_are_the_sums_of_equation_16() -> None:
    mask, rewards, values = drawn("rewards", "values")
    rewards = rewards * mask
    advantages, returns = estimated(rewards, values, mask, discount=0.9, decay=0.8)
    for b, length in enumerate(LENGTHS):
        deltas = [
            rewards[b, t] + (0.9 * values[b, t + 1] if t + 1 < length else 0.0) - values[b, t] for t in range(length)
        ]
        for t in range(5):
            expected = sum((0.9 * 0.8) ** (later - t) * deltas[later] for later in range(t, length))
            assert float(advantages[b, t]) == pytest.approx(expected)
            assert float(returns[b, t]) == pytest.approx(expected + (values[b, t] if t < length else 0.0))


def test_with_no_decay_a_return_is_what_is_still_earned() -> None:
    mask, rewards, values = drawn("rewards", "values")
    _, returns = estimated(rewards * mask, values, mask, discount=1.0, decay=1.0)
    for b, length in enumerate(LENGTHS):
        for t in range(length):
            assert float(returns[b, t]) == pytest.approx(rewards[b, t:length].sum())


def test_whitened_advantages_have_mean_0_and_variance_1_over_the_answers() -> None:
    mask, values = drawn("values")
    found = equations.whiten(torch.tensor(values), torch.tensor(mask)).numpy()
    inside = values[mask == 1]
    assert found[mask == 1] == pytest.approx((inside - inside.mean()) / inside.std())
    assert not found[mask == 0].any()


def test_both_losses_are_clipped_on_the_side_that_would_go_too_far() -> None:
    _, new, old, advantages, values, old_values, returns = drawn(*"abcdef")
    policy = equations.policy_losses(torch.tensor(new), torch.tensor(old), torch.tensor(advantages), 0.2).numpy()
    tensors = torch.tensor(values), torch.tensor(old_values), torch.tensor(returns)
    value = equations.value_losses(*tensors, 0.2).numpy()
    for place in np.ndindex(3, 5):
        ratio = math.exp(new[place] - old[place])
        kept = min(max(ratio, 0.8), 1.2)
        assert policy[place] == pytest.approx(-min(ratio * advantages[place], kept * advantages[place]))
        near = min(max(values[place], old_values[place] - 0.2), old_values[place] + 0.2)
        errors = (values[place] - returns[place]) ** 2, (near - returns[place]) ** 2
        assert value[place] == pytest.approx(max(errors) / 2)


def test_the_coefficient_moves_by_at_most_a_fifth_of_a_horizon() -> None:
    assert equations.adapt_beta(0.1, kl=6.0, target=6.0, samples=64, horizon=10_000) == 0.1
    assert equations.adapt_beta(0.1, kl=6.6, target=6.0, samples=64, horizon=6_400) == pytest.approx(
        0.1 * (1 + 0.1 * 0.01)
    )
    assert equations.adapt_beta(0.1, kl=60.0, target=6.0, samples=64, horizon=6_400) == pytest.approx(
        0.1 * (1 + 0.2 * 0.01)
    )
    assert equations.adapt_beta(0.1, kl=0.0, target=6.0, samples=64, horizon=6_400) == pytest.approx(
        0.1 * (1 - 0.2 * 0.01)
    )
