"""Numbers of a comparison: golden values by other means, known strengths recovered, equal models called equal."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize
from scipy.stats import norm, t

from tasks.evaluate.side_by_side.items import Item
from tasks.evaluate.side_by_side.rates.length import RIDGE as LENGTH_RIDGE
from tasks.evaluate.side_by_side.rates.length import length_controlled
from tasks.evaluate.side_by_side.rates.standings import standings
from tasks.evaluate.side_by_side.rates.strengths import RIDGE, elo, strengths
from tasks.evaluate.side_by_side.rates.win_rate import holm, sign_flip, tail_for, win_rate

WON, LOST, TIED = 1.0, 0.0, 0.5


def items(winners: list[float], samples: int = 1) -> list[Item]:
    """One item per winner, several at each prompt, with all answers equally long."""
    return [Item(f"p{number // samples}", winner, 10, 10) for number, winner in enumerate(winners)]


def test_a_win_rate_is_the_mean_with_ties_half_and_its_interval_that_of_the_normal_distribution() -> None:
    found = win_rate(items([WON] * 60 + [TIED] * 20 + [LOST] * 20), resamples=4000, seed=1)
    assert found.value == 0.7
    sd = math.sqrt((60 * 0.3**2 + 20 * 0.2**2 + 20 * 0.7**2) / 100 / 100)
    assert (found.low, found.high) == pytest.approx((0.7 - 1.96 * sd, 0.7 + 1.96 * sd), abs=0.01)


def test_intervals_of_few_prompts_hold_the_truth_as_often_as_they_say() -> None:
    """They are expanded by Student's distribution: plain percentiles hold the value in about 90 of 100 cases."""
    assert tail_for(10) == pytest.approx(norm.cdf(-t.ppf(0.975, 9) * math.sqrt(10 / 9)), rel=0.01)
    assert tail_for(100_000) == pytest.approx(0.025, rel=1e-3)
    random = np.random.default_rng(3)
    held = 0
    for seed in range(400):
        found = win_rate(items(random.choice([LOST, TIED, WON], 12).tolist()), resamples=400, seed=seed)
        held += found.low <= 0.5 <= found.high
    assert 368 <= held <= 394, "380 are expected"


def test_samples_of_one_prompt_are_no_further_evidence() -> None:
    alone = win_rate(items([WON, LOST] * 20), resamples=2000, seed=1)
    fourfold = win_rate(items([winner for winner in [WON, LOST] * 20 for _ in range(4)], 4), resamples=2000, seed=1)
    assert fourfold == alone


def test_a_model_that_wins_all_of_five_is_not_certain_to_win() -> None:
    found = win_rate(items([WON] * 5), resamples=1000, seed=1)
    assert found.value == 1.0
    assert found.low == pytest.approx(0.5655, abs=1e-4)  # Wilson's, of 5 of 5: 5 / (5 + 1.96²)
    tied = win_rate(items([TIED] * 5), resamples=1000, seed=1)
    assert tied.value - tied.low == pytest.approx(tied.high - tied.value)
    assert tied.low < 0.2 < tied.value == 0.5  # five ties don't prove that neither is better


def test_the_sign_flip_test_is_the_binomial_one_where_every_prompt_has_a_winner() -> None:
    # 9 of 10 won: 2 · (1 + 10) / 2¹⁰
    assert sign_flip(items([WON] * 9 + [LOST]), seed=0) == pytest.approx(22 / 1024)
    assert sign_flip(items([TIED] * 8), seed=0) == 1.0
    many = sign_flip(items([WON] * 60 + [LOST] * 40), seed=0)
    exact = 2 * sum(math.comb(100, wins) for wins in range(60, 101)) / 2**100
    assert many == pytest.approx(exact, abs=0.01)


def test_one_model_with_two_seeds_is_called_equal_in_95_of_100_cases() -> None:
    """Also with several samples of each prompt, which agree more than samples of different prompts do."""
    random = np.random.default_rng(5)
    for samples in (1, 4):
        differs = 0
        for _ in range(200):
            leaning = np.repeat(random.beta(0.5, 0.5, size=40), samples)  # symmetric: neither is better
            drawn = random.choice([LOST, TIED, WON], p=[0.4, 0.2, 0.4], size=40 * samples)
            winners = np.where(random.random(40 * samples) < 0.5, drawn, leaning > 0.5)
            differs += sign_flip(items(list(map(float, winners)), samples), seed=1) < 0.05
        assert differs <= 20, "10 are expected; 20 or more are met once in a thousand times"


def test_holm_is_its_definition() -> None:
    given_ = {("a", "b"): 0.01, ("a", "c"): 0.04, ("b", "c"): 0.03}
    assert holm(given_) == pytest.approx({("a", "b"): 0.03, ("a", "c"): 0.06, ("b", "c"): 0.06})


def biased(number: int, skill: float, liking: float, seed: int) -> list[Item]:
    """A judge who likes length: the first model writes 200 more characters on average."""
    random = np.random.default_rng(seed)
    lengths = random.normal([[700], [500]], 150, size=(2, number)).round().clip(10)
    delta = lengths[0] - lengths[1]
    p = 1 / (1 + np.exp(-(skill + liking * np.tanh(delta / delta.std()))))
    won = random.random(number) < p
    return [
        Item(f"p{place}", float(won[place]), int(lengths[0][place]), int(lengths[1][place])) for place in range(number)
    ]


def test_the_length_controlled_rate_is_the_regression_of_scipy() -> None:
    found = biased(300, 0.3, 1.5, 1)
    found = [
        Item(item.id, TIED if place % 7 == 0 else item.winner, item.first_length, item.second_length)
        for place, item in enumerate(found)
    ]
    delta = np.array([item.first_length - item.second_length for item in found], float)
    x, y = np.tanh(delta / delta.std()), np.array([item.winner for item in found])

    def loss(beta: np.ndarray) -> float:
        logits = beta[0] + beta[1] * x
        return float(np.sum(np.logaddexp(0, logits) - y * logits) + np.sum(LENGTH_RIDGE * beta**2) / 2)

    best = minimize(loss, np.zeros(2), method="BFGS", options={"gtol": 1e-8}).x
    assert length_controlled(found) == pytest.approx(1 / (1 + math.exp(-best[0])), abs=1e-6)


def test_a_model_that_only_writes_more_wins_no_more_at_equal_length() -> None:
    found = biased(4000, 0.0, 2.0, 3)
    assert win_rate(found, resamples=100, seed=0).value > 0.65
    assert length_controlled(found) == pytest.approx(0.5, abs=0.05)
    better = biased(4000, 0.8, 2.0, 4)
    assert length_controlled(better) == pytest.approx(1 / (1 + math.exp(-0.8)), abs=0.05)


def test_where_length_says_nothing_the_rates_are_the_same() -> None:
    assert length_controlled(items([WON] * 70 + [LOST] * 30)) == pytest.approx(0.7, abs=1e-3)
    assert 0.9 < length_controlled(items([WON] * 30)) < 1


@given(
    st.lists(st.tuples(st.sampled_from([WON, LOST, TIED]), st.integers(0, 10**6), st.integers(0, 10**6)), min_size=1)
)
@settings(max_examples=60, deadline=None)
def test_swapping_two_models_turns_every_rate_round(rows: list[tuple[float, int, int]]) -> None:
    one = [Item(f"p{place}", *row) for place, row in enumerate(rows)]
    other = [Item(item.id, 1 - item.winner, item.second_length, item.first_length) for item in one]
    assert length_controlled(one) == pytest.approx(1 - length_controlled(other), abs=1e-6)
    assert sign_flip(one, 1) == sign_flip(other, 1)


def minorise(wins: np.ndarray, rounds: int = 20_000) -> np.ndarray:
    """Bradley–Terry by Hunter's MM algorithm (2004), without a penalty: another way to the same maximum."""
    models, games = len(wins), wins + wins.T
    strength = np.ones(models)
    for _ in range(rounds):
        spread = games / (strength[:, None] + strength[None, :])
        strength = wins.sum(1) / spread.sum(1)
        strength /= np.exp(np.log(strength).mean())
    return np.log(strength)


def test_strengths_are_those_of_the_mm_algorithm() -> None:
    wins = np.array([[0, 30, 45.5, 80], [20, 0, 30, 60], [14.5, 20, 0, 41], [5, 11, 19, 0]]) * 50
    found = strengths(wins[None])[0]
    assert found == pytest.approx(minorise(wins), abs=2e-4)
    assert found.sum() == pytest.approx(0, abs=1e-9)
    ratings = elo(found[None], anchor=3)[0]
    assert ratings[3] == 1000
    assert ratings[0] - ratings[1] == pytest.approx(400 / math.log(10) * (found[0] - found[1]))


def test_a_gap_of_400_points_is_odds_of_ten_to_one() -> None:
    wins = np.array([[[0, 1000.0], [100, 0]]])
    ratings = elo(strengths(wins))[0]
    assert ratings[0] - ratings[1] == pytest.approx(400, abs=0.5)


@given(st.lists(st.integers(0, 40), min_size=12, max_size=12))
@settings(max_examples=60, deadline=None)
def test_strengths_are_finite_and_the_maximum_whoever_wins_all(counts: list[int]) -> None:
    wins = np.zeros((4, 4))
    wins[~np.eye(4, dtype=bool)] = counts
    theta = strengths(wins[None])[0]
    assert np.isfinite(theta).all()
    p = 1 / (1 + np.exp(theta[None, :] - theta[:, None]))
    gradient = wins.sum(1) - ((wins + wins.T) * p).sum(1) - RIDGE * theta
    assert np.abs(gradient).max() < 1e-6


def simulated(true: dict[str, float], prompts: int, seed: int) -> dict[tuple[str, str], list[Item]]:
    random = np.random.default_rng(seed)
    names = list(true)
    pairs = [(one, other) for place, one in enumerate(names) for other in names[place + 1 :]]
    return {
        (one, other): items(
            [float(random.random() < 1 / (1 + math.exp(true[other] - true[one]))) for _ in range(prompts)]
        )
        for one, other in pairs
    }


@pytest.mark.soak
def test_known_strengths_are_found_within_their_intervals() -> None:
    true = {"strong": 1.0, "middle": 0.0, "twin": 0.0, "weak": -1.0}
    inside = told_apart = 0
    for seed in range(10):
        found = standings(simulated(true, 300, seed), baseline=None, resamples=300, seed=seed)
        for name, strength in true.items():
            estimate = found.models[name].elo
            inside += estimate.low <= 1000 + 400 / math.log(10) * strength <= estimate.high
        told_apart += found.pairs["middle", "twin"].differs
        assert found.pairs["strong", "weak"].differs
    assert inside >= 34, "38 of 40 are expected"
    assert told_apart <= 2, "equals, of which one in twenty may seem different"


def test_the_same_model_twice_is_equal_in_every_number() -> None:
    found = standings({("a", "b"): items([TIED] * 40)}, baseline="b", resamples=200, seed=1)
    pair = found.pairs["a", "b"]
    assert (pair.win_rate.value, pair.length_controlled.value, pair.p_holm, pair.differs) == (0.5, 0.5, 1.0, False)
    assert found.models["a"].elo == (1000.0, 1000.0, 1000.0)
    assert (pair.wins, pair.ties, pair.losses) == (0, 40, 0)


def test_a_model_is_rated_by_the_mean_over_its_opponents() -> None:
    compared = {
        ("a", "b"): items([WON] * 30 + [LOST] * 10),
        ("a", "c"): items([WON] * 20 + [LOST] * 20),
        ("b", "c"): items([LOST] * 40),
    }
    found = standings(compared, baseline=None, resamples=300, seed=1)
    assert found.models["a"].win_rate.value == pytest.approx((0.75 + 0.5) / 2)
    assert found.models["b"].win_rate.value == pytest.approx((0.25 + 0) / 2)
    assert found.models["c"].win_rate.value == pytest.approx((0.5 + 1) / 2)
    for model in found.models.values():
        assert model.win_rate.low <= model.win_rate.value <= model.win_rate.high
    with pytest.raises(ValueError, match="every pair needs an item"):
        standings({("a", "b"): []}, baseline=None, resamples=300, seed=1)
