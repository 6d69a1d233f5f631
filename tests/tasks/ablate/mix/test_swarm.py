"""The mixtures of a swarm: what they cover, what they respect, and what stays when it grows."""

from __future__ import annotations

import numpy as np
import pytest

from tasks.ablate.mix.swarm import default_runs, drawn, even, largest_shares, rounded

FREE = np.ones(4)
NATURAL = np.array([0.6, 0.25, 0.13, 0.02])


def test_a_longer_swarm_begins_with_the_shorter_one() -> None:
    assert np.array_equal(drawn(NATURAL, FREE, 12), drawn(NATURAL, FREE, 30)[:12])


@pytest.mark.parametrize("sources", [2, 3, 5, 12])
def test_each_source_is_seen_with_next_to_nothing_and_with_much(sources: int) -> None:
    natural = np.linspace(1, 4, sources) / np.linspace(1, 4, sources).sum()
    swarm = np.array(drawn(natural, np.ones(sources), default_runs(sources)))
    assert np.array_equal(swarm[0], natural)
    assert np.allclose(swarm.sum(1), 1)
    assert np.all(swarm.min(0) < 0.05)
    assert np.all(swarm.max(0) > (0.6 if sources < 5 else 2.5 * natural))
    assert len({tuple(one) for one in swarm}) == len(swarm)
    assert np.linalg.matrix_rank(swarm) == sources, "fewer would not tell the sources apart"


def test_no_source_is_read_more_often_than_allowed() -> None:
    tokens = np.array([9e6, 1e6, 1e5])
    most = largest_shares(tokens, 5_000_000, np.array([4.0, 4.0, 2.0]))
    assert most.tolist() == [1.0, 0.8, 0.04]
    swarm = np.array(drawn(tokens / tokens.sum(), most, 40))
    assert np.all(swarm <= most + 1e-12)
    assert np.any(swarm[:, 2] > 0.02)
    assert even(most).tolist() == pytest.approx([0.48, 0.48, 0.04])
    assert even(np.ones(3)).tolist() == pytest.approx([1 / 3] * 3)
    assert even(np.array([0.2, 0.3, 0.5])).tolist() == pytest.approx([0.2, 0.3, 0.5])


def test_with_an_added_source_the_old_members_stay_and_all_new_ones_have_some_of_it() -> None:
    old = drawn(np.array([0.7, 0.3]), np.ones(2), 16)
    widened = [np.array([*one, 0.0]) for one in old]
    swarm = drawn(np.array([0.5, 0.2, 0.3]), np.ones(3), 24, old=widened)
    assert np.array_equal(swarm[1:17], widened)
    assert np.all(np.array(swarm[17:])[:, 2] > 0)


def test_rounded_shares_have_the_sum_one_and_no_crumbs() -> None:
    assert rounded(np.array([0.5, 0.4999, 0.0001])).tolist() == [0.5001, 0.4999, 0.0]
