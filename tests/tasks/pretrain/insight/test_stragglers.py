"""The rank that is slower than the others, by its own time. tests/hosts has the drill of a slowed host."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from tasks.pretrain.insight import stragglers
from tasks.pretrain.insight.speed import slow_hosts, summarise
from tasks.pretrain.insight.stragglers import FACTOR, OwnTime, Stragglers, by_host, sentence, slow_ranks
from tasks.pretrain.world import World
from tests.tasks.pretrain.engines.pair import results_of_pair
from tests.tasks.pretrain.insight.slow_rank import ENGINES

HOSTS = ["a", "a", "b", "b"]


@pytest.mark.parametrize(
    ("times", "slow"),
    [
        ([1.0, 1.0, 1.0, 2.0], {3: 2.0}),
        ([1.0, 1.0, 3.0, 2.0], {2: 3.0, 3: 2.0}),  # half of them
        ([1.0, 2.0], {1: 2.0}),
        ([1.0, 1.4], {}),
        ([0.0, 1.0], {}),  # nothing was measured
    ],
)
def test_a_rank_is_slow_beside_the_others(times: list[float], slow: dict[int, float]) -> None:
    assert slow_ranks(times) == slow


@given(st.lists(st.floats(1.0, FACTOR - 0.01), min_size=2, max_size=32), st.data())
def test_ranks_of_about_the_same_speed_are_never_slow_and_one_far_from_them_is(
    times: list[float], data: st.DataObject
) -> None:
    assert slow_ranks(times) == {}
    straggler = data.draw(st.integers(0, len(times) - 1))
    times[straggler] = FACTOR * FACTOR
    assert [*slow_ranks(times)] == [straggler]


class Sleeping(nn.Module):
    """A block that takes its time."""

    def forward(self, x: Tensor) -> Tensor:
        """Nothing, slowly."""
        time.sleep(0.02)
        return x


def test_own_time_is_that_of_blocks_and_of_waiting_for_data_but_not_of_what_lies_between() -> None:
    blocks = [Sleeping(), Sleeping()]
    own = OwnTime(blocks, torch.device("cpu"))
    for _ in range(3):
        own.start(reported=False)
        for block in blocks:
            block(torch.zeros(1))
            time.sleep(0.05)  # in a collective
        own.stop()
        blocks[0](torch.zeros(1))  # of a validation
    assert 0.16 <= own.take(data=3 * 2 * 0.1) < 0.16 + 0.1  # 3 × 0.02 + 0.1, and the machine is busy
    own.start(reported=True)
    blocks[0](torch.zeros(1))
    own.stop()
    assert 0.06 <= own.take(data=0.0) < 0.06 + 0.1


@pytest.mark.soak
def test_with_every_engine_the_slow_rank_is_told_from_the_one_that_waits_for_it(tmp_path: Path) -> None:
    found = results_of_pair("tests.tasks.pretrain.insight.slow_rank", tmp_path)
    assert {name: [*slow_ranks(times)] for name, times in found.items()} == {name: [1] for name in ENGINES}


class Told(World):
    """A world whose other ranks took these times."""

    times: tuple[float, ...]

    def sum(self, values: Tensor) -> Tensor:
        return torch.tensor(self.times, dtype=torch.float64)

    def gathered(self, value: object) -> list:  # type: ignore[type-arg]
        return HOSTS


class Compared:
    """The stragglers among four ranks whose own times are given."""

    def __init__(self) -> None:
        self.world, self.block = Told(0, 4, torch.device("cpu")), nn.Identity()
        self.found = Stragglers(self.world, [self.block])

    def __call__(self, *times: float) -> tuple[list[dict[str, object]], list[str]]:
        object.__setattr__(self.world, "times", times)
        self.found.before_step(reported=True)
        self.block(torch.zeros(1))
        self.found.after_step()
        return self.found.report(0.0)


FAST, SLOW = (1.0, 1.0, 1.0, 1.0), (1.0, 1.0, 4.0, 2.0)


def test_a_host_is_named_once_when_it_was_slow_for_long_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stragglers, "SECONDS", 0.0)
    report = Compared()
    assert [report(*times) for times in (SLOW, SLOW, FAST, FAST)] == [([], [])] * 4, "too few to tell"
    rows, told = report(*SLOW)
    assert rows == [{"slow_host": "b", "ranks": [2, 3], "factor": 4.0}]
    assert told == [
        "slow host: b (rank 2, 3) takes 4.0 times as long as the others for its own part of a step, "
        "and they wait for it"
    ]
    assert report(*SLOW) == (rows, [])
    assert [report(*FAST) for _ in range(4)] == [([], [])] * 4
    assert [len(report(*SLOW)[1]) for _ in range(5)] == [0, 0, 1, 0, 0], "by the median of five"


def test_a_rank_at_the_limit_is_named_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stragglers, "SECONDS", 0.0)
    monkeypatch.setattr(stragglers, "REPORTS", 1)
    report = Compared()
    told = [len(report(1.0, 1.0, 1.0, factor)[1]) for factor in (1.6, 1.4, 1.6, 1.4, 1.6, 1.0, 1.6)]
    assert told == [1, 0, 0, 0, 0, 0, 1]


def test_nobody_is_named_for_a_moment() -> None:
    report = Compared()
    assert [report(*SLOW) for _ in range(10)] == [([], [])] * 10


def test_the_run_keeps_which_hosts_were_waited_for() -> None:
    rows = [{"begun": 0, "starting_seconds": 1.0, "peak_flops": 1.0}]
    rows += [{"step": step, **by_host({1: factor}, ["a", "b"])[0]} for step, factor in ((30, 2.0), (40, 3.0), (50, 4))]
    assert slow_hosts(rows) == [
        {"host": "b", "ranks": "1", "named from step": 30, "to step": 50, "times as long as others": 3.0}
    ]
    assert summarise(rows)["redone_steps"] == 0
    assert "b (rank 1)" in sentence(rows[-1])
