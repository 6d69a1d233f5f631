"""pass@k against exact binomials, and its standard error."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.errors import ConfigError
from tasks.harness.code import mean_pass_at_k, pass_at_k


def by_binomials(samples: int, passed: int, k: int) -> Fraction:
    return 1 - Fraction(math.comb(samples - passed, k), math.comb(samples, k))


def test_golden_values() -> None:
    assert pass_at_k(1, 1, 1) == 1.0
    assert pass_at_k(1, 0, 1) == 0.0
    assert pass_at_k(10, 3, 1) == pytest.approx(0.3, abs=1e-15)
    assert pass_at_k(5, 2, 2) == pytest.approx(0.7, abs=1e-15)
    assert pass_at_k(20, 5, 10) == pytest.approx(1 - 3003 / 184756, abs=1e-15)
    assert pass_at_k(200, 10, 100) == pytest.approx(0.9992289739372822, abs=1e-15)


@given(st.integers(1, 400), st.data())
def test_it_is_the_exact_value_however_many_samples(samples: int, data: st.DataObject) -> None:
    passed, k = data.draw(st.integers(0, samples)), data.draw(st.integers(1, samples))
    assert pass_at_k(samples, passed, k) == pytest.approx(float(by_binomials(samples, passed, k)), abs=1e-12)


@given(st.integers(1, 9), st.integers(0, 9), st.integers(1, 9))
def test_it_is_the_share_of_subsets_with_a_program_that_passes(samples: int, passed: int, k: int) -> None:
    if passed > samples or k > samples:
        return
    subsets = list(itertools.combinations([True] * passed + [False] * (samples - passed), k))
    assert pass_at_k(samples, passed, k) == pytest.approx(sum(map(any, subsets)) / len(subsets), abs=1e-12)


def test_the_mean_has_the_standard_error_of_independent_problems() -> None:
    found = mean_pass_at_k([(10, 0), (10, 5), (10, 10), (10, 5)], 1)
    assert (found.k, found.problems) == (1, 4)
    assert found.value == pytest.approx(0.5)
    assert found.standard_error == pytest.approx(math.sqrt((0.25 + 0.25) / 3 / 4))  # 0.2041
    assert math.isnan(mean_pass_at_k([(10, 5)], 1).standard_error)
    assert mean_pass_at_k([(2, 2), (9, 9)], 2).standard_error == 0


@pytest.mark.parametrize(("samples", "passed", "k"), [(4, 1, 5), (4, 5, 1), (4, -1, 1), (4, 1, 0), (0, 0, 1)])
def test_what_is_not_defined_is_refused(samples: int, passed: int, k: int) -> None:
    with pytest.raises(ConfigError, match=f"pass@{k}"):
        pass_at_k(samples, passed, k)
    with pytest.raises(ConfigError, match="pass@1"):
        mean_pass_at_k([], 1)
