"""One training at a time on a device, also when who trains is killed."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from multiprocessing.synchronize import Event
from pathlib import Path

import pytest

from storage.files.locks import hold, hold_if_free
from tasks.stage.runtime import ComputeRuntime
from tasks.training.device_lock import own_turn, wanted_gpus

CPU = ComputeRuntime(device="cpu")
FORK = multiprocessing.get_context("fork")


def train(begun: Event) -> None:
    with own_turn(CPU, lambda holder: None):
        begun.set()
        signal.pause()


def test_a_second_training_waits_for_the_first_and_not_for_a_killed_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    begun, told, trained = FORK.Event(), threading.Event(), threading.Event()
    first = FORK.Process(target=train, args=(begun,))
    first.start()
    assert begun.wait(30)
    heard: list[str] = []

    def second() -> None:
        with own_turn(CPU, lambda holder: (heard.append(holder), told.set())[0]):  # type: ignore[func-returns-value]
            trained.set()

    waiting = threading.Thread(target=second, daemon=True)
    waiting.start()
    assert told.wait(30)
    assert heard[0].startswith(f"process {first.pid} on ")
    assert not trained.wait(1)
    os.kill(first.pid or 0, signal.SIGKILL)
    first.join()
    assert trained.wait(30)


def test_a_lock_can_be_shared_against_those_who_want_it_alone(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with hold(path, shared=True), hold(path, shared=True), hold_if_free(path) as free:
        assert not free
    with hold_if_free(path) as free:
        assert free


@pytest.mark.parametrize(
    ("first", "second", "together"),
    [("0", "1", True), ("0,1", "1,2", False), ("0", "", False), ("", "", False), ("2,3", "1,0", True)],
)
def test_trainings_on_other_gpus_go_side_by_side(first: str, second: str, together: bool) -> None:
    """As the locks that they want say: two conflict in one that both want, and not both share."""
    locks = [dict(wanted_gpus({"CUDA_VISIBLE_DEVICES": visible} if visible else {})) for visible in (first, second)]
    conflicts = [name for name in locks[0].keys() & locks[1].keys() if not (locks[0][name] and locks[1][name])]
    assert (not conflicts) is together
