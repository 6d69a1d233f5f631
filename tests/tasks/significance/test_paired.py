"""Differences of two models: exact tests by other means, false alarms as rare as said, real differences found."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom, binomtest

from tasks.significance.compare import WRONGLY, holm
from tasks.significance.estimate import Codes, Values, codes_of
from tasks.significance.paired import detectable, interval, loses_more_than, paired
from tasks.significance.sign_flips import sign_flips

ALONE = np.arange(120)


def coins(*counts: int) -> Values:
    """Answers that are right so often, then wrong: `coins(2, 1)` is 1, 1, 0."""
    return np.repeat([1.0, 0.0], counts)


def by_hand(differences: list[float]) -> float:
    """All choices of signs, one by one."""
    seen = abs(sum(differences))
    sums = [
        abs(sum(s * d for s, d in zip(signs, differences, strict=True)))
        for signs in product((1, -1), repeat=len(differences))
    ]
    return sum(one >= seen - 1e-9 for one in sums) / len(sums)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from([0.0, 1.0, -1.0, 0.2, -0.4, 1 / 3, 2.5]), min_size=1, max_size=9))
def test_signs_are_flipped_in_all_ways(differences: list[float]) -> None:
    found = sign_flips(np.array(differences))
    assert found.exact
    assert found.p == pytest.approx(by_hand(differences), abs=1e-9)


@pytest.mark.parametrize(("gained", "lost", "same"), [(9, 2, 30), (0, 6, 0), (700, 610, 5000), (3, 3, 10)])
def test_right_and_wrong_are_compared_by_mcnemars_exact_test(gained: int, lost: int, same: int) -> None:
    first = np.concatenate([np.zeros(gained), np.ones(lost), np.ones(same)])
    second = np.concatenate([np.ones(gained), np.zeros(lost), np.ones(same)])
    found = paired(first, second, np.arange(len(first)))
    assert found.test == "McNemar, exact"
    assert found.p == pytest.approx(binomtest(gained, gained + lost).pvalue, rel=1e-6)
    assert found.difference == pytest.approx((gained - lost) / len(first))


def test_sampled_signs_come_near_the_exact_p_and_repeat() -> None:
    """Tenths, of which all sums can be counted, and the same numbers shifted by too little to matter: sampled."""
    generator = np.random.default_rng(3)
    tenths = generator.integers(-10, 11, 60) / 10 + 0.15
    exact, sampled = sign_flips(tenths), sign_flips(tenths + generator.uniform(-1e-5, 1e-5, 60))
    assert exact.exact
    assert not sampled.exact
    assert sampled.p == pytest.approx(exact.p, abs=0.015)
    assert sign_flips(tenths + 1e-7 * np.arange(60)) == sign_flips(tenths + 1e-7 * np.arange(60))


def test_a_large_difference_is_not_held_up_by_the_number_of_samples() -> None:
    differences = np.random.default_rng(1).normal(1, 0.5, 400)
    assert sign_flips(differences).p < 1e-30
    assert sign_flips(-differences, two_sided=False).p > 0.99


@pytest.mark.parametrize("scale", [1e-300, 1e-12, 1e90])
def test_the_unit_of_a_score_does_not_matter(scale: float) -> None:
    differences = np.array([3.0, 1.0, 2.0, -1.0, 4.0, 1.0, 5.0, 2.0])
    assert sign_flips(differences * scale).p == pytest.approx(sign_flips(differences).p)


def test_holm_is_as_in_his_example() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([]) == []
    assert holm([0.7, 0.9]) == [1.0, 1.0]


def test_no_difference_in_few_questions_has_an_interval_all_the_same() -> None:
    found = paired(coins(5, 5), coins(5, 5), np.arange(10))
    assert (found.difference, found.p) == (0, 1)
    assert (found.low, found.high) == pytest.approx((-0.231, 0.231), abs=0.001)  # 1.96 · √(2/12 / 12)
    size = detectable(found, 0.05)
    assert size is not None
    assert binom.sf(5, 10, size) == pytest.approx(0.8)  # six or more of the ten, in one direction: 2 / 2 ** 6 < 0.05
    assert detectable(paired(coins(3, 2), coins(2, 3), np.arange(5)), 0.05) is None  # 2 / 2 ** 5 is not


def test_intervals_cover_a_true_difference() -> None:
    """Right and wrong on questions of differing difficulty: the mean of the two models' chances is the truth."""
    generator = np.random.default_rng(5)
    ease = generator.beta(0.7, 0.7, ALONE.size)
    better = np.clip(ease + 0.08, 0, 1)
    truth, covered = float((better - ease).mean()), 0
    for _ in range(400):
        drawn = [(generator.random(ALONE.size) < p).astype(float) for p in (ease, better)]
        low, high = interval(drawn[1] - drawn[0], ALONE, binary=True)
        assert low is not None
        assert high is not None
        covered += low <= truth <= high
    assert covered / 400 > 0.93  # given the questions it covers more often than it says


class World:
    """Five tasks of as many questions, each question of a difficulty of its own, which its cluster shares in part."""

    def __init__(self, seed: int, *, clustered: bool, questions: int = 120) -> None:
        self.draw, self.questions = np.random.default_rng(seed), questions
        alone = np.arange(questions)
        self.codes: Codes = codes_of([f"text {n // 4}" for n in alone]) if clustered else alone
        shared = self.draw.normal(0, 1.5, (5, int(self.codes.max()) + 1))[:, self.codes]
        self.ease = shared + self.draw.normal(0, 1, (5, self.questions))

    def answers(self, metric: str, better: float = 0.0) -> Values:
        """One model asked once: its luck is shared within a cluster too. Shape (tasks, questions)."""
        luck = self.draw.logistic(0, 1, (5, int(self.codes.max()) + 1))[:, self.codes]
        alone = self.draw.logistic(0, 1, (5, self.questions))
        seen = self.ease + better + np.where(self.draw.random((5, self.questions)) < 0.4, luck, alone)
        if metric == "right or wrong":
            return (seen > 0).astype(float)
        return np.round(1 / (1 + np.exp(-seen)) * 10) / 10 if metric == "share" else np.exp(0.5 * seen)

    def called_different(self, metric: str, better: float = 0.0) -> int:
        """How many of the five tasks are, corrected."""
        one, two = self.answers(metric), self.answers(metric, better)
        ps = [paired(a, b, self.codes).p for a, b in zip(one, two, strict=True)]
        return sum(p <= WRONGLY for p in holm(ps))


@pytest.mark.soak_but("right or wrong-alone")
@pytest.mark.parametrize("clustered", [False, True], ids=["alone", "clustered"])
@pytest.mark.parametrize("metric", ["right or wrong", "share", "real"])
def test_one_model_asked_twice_is_called_equal_in_95_of_100_repetitions(metric: str, clustered: bool) -> None:
    """On all five tasks at once. The worlds are drawn from fixed seeds: the test does not fail by chance."""
    equal = sum(World(seed, clustered=clustered).called_different(metric) == 0 for seed in range(100))
    assert equal >= 95


@pytest.mark.parametrize("clustered", [False, True], ids=["alone", "clustered"])
def test_a_useful_difference_is_found_in_most(clustered: bool) -> None:
    """Some 11 points of accuracy, on 400 questions, in 100 clusters or none."""
    worlds = [World(seed, clustered=clustered, questions=400) for seed in range(20)]
    assert sum(world.called_different("right or wrong", better=0.7) for world in worlds) >= 0.7 * 5 * 20


def test_a_difference_of_the_detectable_size_is_found_four_times_in_five() -> None:
    generator, number = np.random.default_rng(9), 200
    first, seen = generator.normal(0, 1, number), []
    equal = paired(first, first + generator.normal(0, 1, number), np.arange(number))
    size = detectable(equal, 0.05)
    assert size == pytest.approx(2.8 / math.sqrt(number), rel=0.1)
    assert size is not None
    for _ in range(150):
        again = paired(first, first + generator.normal(size, 1, number), np.arange(number))
        seen.append(again.p <= 0.05)
    assert 0.7 < sum(seen) / 150 < 0.9


def test_a_loss_is_beyond_noise_or_within_it() -> None:
    losses = np.repeat([1.0, 0.0, -1.0], [30, 160, 10])  # 0.1 of 200 questions
    codes = np.arange(200)
    assert loses_more_than(0.0, losses, codes, binary=True)
    assert loses_more_than(0.03, losses, codes, binary=True)
    assert not loses_more_than(0.09, losses, codes, binary=True)
    assert not loses_more_than(0.0, -losses, codes, binary=True)
    assert not loses_more_than(0.0, np.ones(3), np.arange(3), binary=False)  # all lost, but three are luck
    assert not loses_more_than(0.0, np.ones(40), np.zeros(40, dtype=np.intp), binary=False)  # one cluster


def test_a_gate_stops_an_equal_model_in_one_run_of_twenty() -> None:
    stopped = 0
    for seed in range(300):
        world = World(seed, clustered=False)
        one, two = world.answers("right or wrong")[0], world.answers("right or wrong")[0]
        stopped += loses_more_than(0.0, one - two, world.codes, binary=True)
    assert 0 < stopped <= 0.05 * 300 + 7
