"""The checkpoints that stay, and the room that they take."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tasks.pretrain.checkpoints.manager import Checkpoints
from tasks.pretrain.engines import open_engine
from tasks.pretrain.world import World
from tasks.training.checkpoint_marker import complete_checkpoints
from tasks.training.retention import most_kept, superfluous
from tests.tasks.pretrain.tiny_training import alone, make_spec


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with alone() as found:
        yield found


def kept(apart: int, steps: int, newest: int, every: int | None) -> tuple[list[int], int]:
    """The checkpoints that a run of some steps leaves, and the most that existed at once."""
    held: list[int] = []
    most = 0
    for step in range(apart, steps, apart):
        held.append(step)
        most = max(most, len(held))
        gone = superfluous(held, newest=newest, every=every)
        held = [one for one in held if one not in gone]
    return held, most


def test_the_newest_stay_and_one_of_each_so_many_steps() -> None:
    assert kept(100, 1001, 2, None)[0] == [900, 1000]
    assert kept(100, 1001, 2, 300)[0] == [300, 600, 900, 1000]
    assert kept(100, 1001, 1, 250)[0] == [300, 500, 800, 1000]
    assert kept(300, 1001, 1, 100)[0] == [300, 600, 900]
    assert superfluous([100, 200, 400, 500], newest=1, every=300) == [100, 200]  # none was saved at 300


@given(st.integers(1, 40), st.integers(1, 400), st.integers(1, 4), st.none() | st.integers(1, 100))
def test_never_more_lie_there_than_room_was_asked_for(apart: int, steps: int, newest: int, every: int | None) -> None:
    held, most = kept(apart, steps, newest, every)
    assert most <= 1 + most_kept(steps, newest=newest, every=every, apart=apart)
    assert held == sorted(held)


def test_a_run_keeps_them(world: World, tmp_path: Path) -> None:
    spec = make_spec(tmp_path)
    engine = open_engine(spec, world)
    checkpoints = Checkpoints(spec.checkpoints, "mine", world=world, keep=1, keep_every=3)
    ids = torch.arange(4 * 32).view(4, 32)
    engine.step([(ids, ids, None)], 1e-3)
    for step in range(1, 6):
        checkpoints.save(engine, step)
    assert list(complete_checkpoints(spec.checkpoints)) == [3, 5]
