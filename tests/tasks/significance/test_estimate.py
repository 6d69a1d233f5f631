"""Errors and intervals of a mean: golden values by other formulas, and coverage where truth is known."""

from __future__ import annotations

import math
import statistics
from itertools import product

import numpy as np
import pytest
from scipy.stats import binom, t

from tasks.significance.chance import against_chance
from tasks.significance.estimate import codes_of, estimate, standard_error, wilson

SCORES = np.array([0.2, 0.9, 0.4, 0.4, 0.7, 0.1, 0.8, 0.3])
TEXTS = ["a", "a", "a", "b", "b", None, "c", None]


def by_the_paper(scores: list[float], texts: list[str | None]) -> float:
    """Miller 2024, written as he writes it: a double sum over the pairs of each cluster."""
    mean, number = statistics.mean(scores), len(scores)
    plain = statistics.stdev(scores) / math.sqrt(number)
    pairs = [
        (one - mean) * (two - mean)
        for (i, one), (j, two) in product(enumerate(scores), repeat=2)
        if i != j and texts[i] is not None and texts[i] == texts[j]
    ]
    return math.sqrt(plain**2 + sum(pairs) / number**2)


def test_errors_are_those_of_the_paper() -> None:
    assert standard_error(SCORES) == pytest.approx(statistics.stdev(SCORES) / math.sqrt(8), rel=1e-12)
    assert standard_error(SCORES, codes_of(TEXTS)) == pytest.approx(by_the_paper(SCORES.tolist(), TEXTS), rel=1e-12)


def test_copies_of_a_question_in_one_cluster_bring_no_certainty() -> None:
    copied, texts = np.repeat(SCORES, 10), [str(number) for number in range(8) for _ in range(10)]
    alone = standard_error(SCORES)
    assert alone is not None
    assert standard_error(copied, codes_of(texts)) == pytest.approx(alone * math.sqrt(7 / 8), rel=0.02)
    plain = standard_error(copied)
    assert plain is not None
    assert plain < alone / 3


def test_an_interval_is_students_over_clusters() -> None:
    found = estimate(SCORES, codes_of(TEXTS))
    half = t.ppf(0.975, 4) * by_the_paper(SCORES.tolist(), TEXTS)
    assert (found.low, found.high) == pytest.approx((SCORES.mean() - half, SCORES.mean() + half))
    assert (found.items, found.clusters) == (8, 5)


@pytest.mark.parametrize("values", [[0.3], [0.3, 0.4]])
def test_one_question_or_one_cluster_has_no_error(values: list[float]) -> None:
    found = estimate(np.array(values), codes_of(["one"] * len(values)))
    assert (found.error, found.low, found.high) == (None, None, None)


@pytest.mark.parametrize("truth", [0.02, 0.25, 0.9])
@pytest.mark.parametrize("number", [10, 50])
def test_wilson_covers_the_truth_as_often_as_it_says(truth: float, number: int) -> None:
    """Summed over all outcomes, not sampled. Wilson's interval oscillates about its level."""
    intervals = [wilson(right / number, number) for right in range(number + 1)]
    covered = sum(
        binom.pmf(right, number, truth) for right, (low, high) in enumerate(intervals) if low <= truth <= high
    )
    assert 0.91 < covered <= 1


def test_all_right_is_not_certain_and_clusters_make_it_less_so() -> None:
    every = np.ones(20)
    alone, grouped = estimate(every), estimate(every, codes_of([str(n // 5) for n in range(20)]))
    assert (alone.error, alone.high) == (0, 1)
    assert alone.low == pytest.approx(20 / (20 + 1.959964**2), abs=1e-6)  # Wilson's at the edge, in closed form
    assert grouped.low == pytest.approx(4 / (4 + 1.959964**2), abs=1e-6)


@pytest.mark.parametrize(
    ("value", "chance", "items", "error", "said"),
    [
        (0.31, 0.25, 10_000, 0.0046, "above chance"),
        (0.25, 0.25, 10_000, 0.0043, "no better than chance"),
        (0.27, 0.25, 100, 0.044, "no better than chance"),
        (0.12, 0.25, 100, 0.0325, "below chance"),
        (1.0, 0.5, 2, 0.0, "no better than chance"),  # both right by luck
        (0.0, 0.5, 100, 0.0, "below chance"),
        (0.0, 0.0, 1319, 0.0, "no better than chance"),  # nothing is guessed, and nothing was right
        (0.01, 0.0, 1319, 0.0027, "above chance"),
        (1.0, 0.25, 1, None, "no better than chance"),
    ],
)
def test_a_score_stands_above_at_or_below_chance(
    value: float, chance: float, items: int, error: float | None, said: str
) -> None:
    assert against_chance(value, chance, items, error) == said
