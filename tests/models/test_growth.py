"""Growth of a stage: a fit recovers the law behind the data, and times never shrink as text grows."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.growth import LAWS, Measured, fit, units

MB = 1_000_000


@pytest.mark.parametrize("law", sorted(set(LAWS.values())))
def test_a_law_with_a_start_is_found_again(law: str) -> None:
    def seconds(text: float) -> float:
        return 3.0 + 2e-8 * units(law, text, 50 * MB)

    found = fit(law, [Measured(size * MB, seconds(size * MB)) for size in (1, 10, 100)], 50 * MB)
    assert found.fixed == pytest.approx(3.0, rel=1e-6)
    assert (found.measured, found.largest) == (3, 100 * MB)
    assert found.seconds(1e12) == pytest.approx(seconds(1e12), rel=1e-6)


def test_laws_by_hand() -> None:
    assert units("n", 1e12, 1e9) == 1e12
    assert units("n log n", 2.0**40) == 40 * 2.0**40
    assert units("n, up to its sample", 1e12, 1e9) == 1e9


def test_one_size_is_all_growth() -> None:
    found = fit("n", [Measured(10 * MB, 20.0), Measured(10 * MB, 22.0)])
    assert (found.fixed, found.measured) == (0.0, 1)
    assert found.seconds(1e12) == pytest.approx(21.0 * 1e5)


def test_a_vocabulary_that_fills_up_is_not_taken_for_growth() -> None:
    def seconds(text: int, vocabulary: float) -> float:
        return 2.0 + 5e-8 * (text + vocabulary)

    sizes = ((10 * MB, 130e6), (100 * MB, 270e6))
    found = fit("n", [Measured(size, seconds(size, known), known) for size, known in sizes])
    assert found.seconds(1000 * MB) == pytest.approx(seconds(1000 * MB, 270e6))
    without = fit("n", [Measured(size, seconds(size, known)) for size, known in sizes])
    assert without.seconds(1000 * MB) > 2 * found.seconds(1000 * MB)


@given(
    st.lists(st.tuples(st.integers(1, 10**15), st.floats(0.001, 1e9)), min_size=1, max_size=6),
    st.sampled_from(sorted(set(LAWS.values()))),
)
def test_more_text_never_costs_less(points: list[tuple[int, float]], law: str) -> None:
    found = fit(law, [Measured(*point) for point in points], 1e9)
    told = [found.seconds(text) for text in (1e6, 1e9, 1e12, 1e15)]
    assert told == sorted(told)
    assert told[0] >= 0
