"""The process that measures on a GPU, where there is none: one task changes nothing for the next, and one that fails,
crashes or takes too long costs no other."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu.shared import Shared
from benchmarks.measure import Failed, Late

ROOT = Path(__file__).parents[1]
LONG = 120.0  # seconds, for a process that starts on a busy machine


@pytest.fixture
def shared() -> Iterator[Shared]:
    """A process of one thread."""
    found = Shared({**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"})
    yield found
    found.close()


def ask(shared: Shared, what: str, seconds: float = LONG) -> dict[str, Any]:
    return shared.ask("tests.gpu_tasks", {"what": what}, seconds)


@pytest.mark.soak
def test_tasks_share_a_process_and_leave_nothing_to_each_other(shared: Shared) -> None:
    first, second, third = (ask(shared, what) for what in ("leave much", "leave a setting", "nothing"))
    assert not first.pop("optimize_ddp")
    assert second.pop("optimize_ddp")
    assert second == first, "another process, other random numbers or another environment"
    assert third["pid"] != first["pid"], "a setting that was not put back was there for the next task"
    assert shared.started == 2


@pytest.mark.soak
def test_a_task_that_fails_crashes_or_hangs_is_told_and_the_next_one_goes_on(shared: Shared) -> None:
    with pytest.raises(Failed, match=r"OutOfMemoryError: no room for it$"):
        ask(shared, "fail")
    assert ask(shared, "nothing")["left"] is None
    with pytest.raises(Failed, match="exit -11"):
        ask(shared, "crash")
    assert ask(shared, "nothing")["left"] is None
    with pytest.raises(Late, match="ended after 2 s"):
        ask(shared, "hang", 2)
    assert ask(shared, "nothing")["left"] is None
    assert shared.started == 4
