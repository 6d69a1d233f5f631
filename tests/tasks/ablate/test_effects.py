"""Effects of an ablation: exact where the answer is known, false alarms as rare as said, intervals that hold."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import ttest_rel

from tasks.ablate.effects import (
    BETTER,
    SAME,
    UNCLEAR,
    UNTESTED,
    WORSE,
    Measure,
    Noise,
    effects,
    noise_of,
    power,
    seeds_for,
)
from tasks.ablate.effects import winner as best_of
from tasks.significance.estimate import Values


def of_values(values: object) -> Measure:
    """A measure of one document, in which only seeds make a difference."""
    return Measure("text", np.array(values, float)[..., None], np.ones(1))


class World:
    """Runs of which each has a loss of its own on every document: of the arm, the seed, the document, and chance."""

    def __init__(self, seed: int) -> None:
        self.draw = np.random.default_rng(seed)

    def measure(self, truth: Values, *, seeds: int = 3, documents: int = 60, of_arm: float = 0.05) -> Measure:
        """Bits and bytes of arms whose true bits per byte are `truth`, shape (arms,)."""
        sizes = self.draw.lognormal(6, 1, documents)
        arms = len(truth)
        rates = (
            truth[:, None, None]
            + self.draw.normal(0, 0.3, documents)  # hard and easy text
            + self.draw.normal(0, 0.02, (1, seeds, 1))  # that arms share
            + self.draw.normal(0, 0.01, (arms, seeds, 1))
            + self.draw.normal(0, of_arm, (arms, 1, documents))  # an arm is better at some documents
            + self.draw.normal(0, 0.02, (arms, seeds, documents))
        )
        return Measure("text", rates * sizes, sizes)


def test_two_arms_are_compared_by_the_paired_t_test() -> None:
    one, two = [2.91, 2.95, 2.90, 2.97], [2.88, 2.90, 2.89, 2.92]
    (found,) = effects([of_values([one, two])])
    expected = ttest_rel(two, one)
    assert found.p == pytest.approx(expected.pvalue)
    assert (found.low, found.high) == pytest.approx(tuple(expected.confidence_interval(0.95)))
    assert found.by_seed == pytest.approx([-0.03, -0.05, -0.01, -0.05])


def test_noise_is_that_of_all_arms() -> None:
    values = np.array([[1.0, 2.0, 4.0], [1.1, 2.3, 4.2], [0.9, 1.8, 4.1]])
    pairs = [np.var(values[a] - values[b], ddof=1) for a, b in ((0, 1), (0, 2), (1, 2))]
    assert noise_of(values).sd == pytest.approx(np.sqrt(np.mean(pairs)))
    assert noise_of(values).freedom == 4
    assert noise_of(values[:1]).sd == pytest.approx(np.sqrt(2) * values[0].std(ddof=1))
    assert noise_of(values[:, :1]).freedom == 0


def test_one_seed_tells_nothing() -> None:
    (found,) = effects([of_values([[2.0], [1.0]])])
    assert (found.difference, found.p, found.low, found.verdict) == (-1.0, None, None, UNTESTED)
    assert best_of([found], "text") is None


def test_equal_arms_are_rarely_called_different_and_intervals_hold_the_truth() -> None:
    worlds, false, covered, comparisons = 500, 0, 0, 0
    for number in range(worlds):
        truth = np.array([2.0, 2.0, 2.0, 2.1])
        found = effects([World(number).measure(truth)])
        false += any(one.verdict != UNCLEAR for one in found[:2])
        for one, real in zip(found, (0.0, 0.0, 0.1), strict=True):
            assert one.low is not None
            assert one.high is not None
            covered += one.low <= real <= one.high
            comparisons += 1
    assert false / worlds < 0.03
    assert 0.93 < covered / comparisons < 0.985


def test_a_difference_that_is_there_is_found_and_has_its_sign() -> None:
    found = [effects([World(number).measure(np.array([2.0, 1.93, 2.07]), documents=200)]) for number in range(100)]
    assert sum(better.verdict == BETTER and worse.verdict == WORSE for better, worse in found) > 90
    assert {best_of(one, "text") for one in found} <= {1, None}
    more = [one._replace(lower_is_better=False) for one in [World(1).measure(np.array([2.0, 1.93]))]]
    assert effects(more)[0].verdict == WORSE


def test_few_documents_leave_a_difference_open_however_many_seeds_there_are() -> None:
    """Arms that are equal on average, and differ on the six documents that were held out."""
    called = [
        effects([World(number).measure(np.array([2.0, 2.0]), seeds=8, documents=6)])[0].verdict != UNCLEAR
        for number in range(200)
    ]
    assert sum(called) / 200 < 0.04


def test_an_arm_that_makes_the_same_models_is_no_comparison() -> None:
    one, two = [2.91, 2.95, 2.90, 2.97], [2.88, 2.90, 2.89, 2.92]
    same, other = effects([of_values([one, one, two])])
    assert (same.difference, same.p, same.verdict) == (0.0, None, SAME)
    assert other.p is not None


def test_arms_that_were_given_up_count() -> None:
    measure = of_values([[2.91, 2.95, 2.90, 2.97], [2.88, 2.90, 2.89, 2.92]])
    alone, among = (effects([measure], given_up)[0].p for given_up in (0, 4))
    assert alone is not None
    assert among == pytest.approx(5 * alone)


@pytest.mark.parametrize(("difference", "arms"), [(0.02, 2), (0.05, 2), (0.03, 4)])
def test_as_many_seeds_as_are_said_find_a_difference(difference: float, arms: int) -> None:
    noise = Noise(0.03, 100)
    seeds = seeds_for(difference, noise, arms)
    assert seeds is not None
    draw, found, tries = np.random.default_rng(4), 0, 600
    for _ in range(tries):
        values = draw.normal(0, noise.sd / np.sqrt(2), (arms, seeds))
        values[1] -= difference
        found += effects([of_values(values)])[0].verdict == BETTER
    assert 0.76 < found / tries < 0.97
    needed = [seeds_for(size, noise, arms) or 10**6 for size in (1e-6, 0.01, 0.02, 0.1, 10.0)]
    assert needed == sorted(needed, reverse=True)
    assert needed[0] == 10**6
    assert power(10.0, noise.sd, 2, arms) == pytest.approx(1)
