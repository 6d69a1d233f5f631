"""Several pieces of work in one child, or in one for each GPU: each is done once, and none outlives a failure."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from storage.errors import ParityError
from tasks.children.run_many import run_several
from tasks.children.spec import ChildSpec
from tasks.stage import machine
from tasks.stage.output import Output
from tests.runtimes import runtime_of

MODULE = "tests.tasks.children.piece"


@pytest.fixture(autouse=True)
def _here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[3]))


def pieces(
    folder: Path, number: int, together: Sequence[int] = (), threads: int | None = 1
) -> list[tuple[ChildSpec, Output]]:
    """Specs of pieces, of which those in `together` wait for each other."""
    runtime = runtime_of(device="auto", threads=threads)
    work = []
    for place in range(number):
        out = Output.at(folder / f"piece{place}", stage="demo", runtime=runtime)
        waits_for = [str(folder / f"piece{other}" / "scratch") for other in together if place in together]
        (out.scratch / "waits_for").write_text("\n".join(waits_for))
        work.append((ChildSpec(runtime=runtime, scratch=out.scratch, out=out.path), out))
    return work


def test_one_device_does_all_in_one_process(tmp_path: Path) -> None:
    heard: list[float] = []
    found = dict(run_several(MODULE, pieces(tmp_path, 3), on_line=lambda done, line: heard.append(done), devices=["0"]))
    assert [*found] == [0, 1, 2]
    assert len({result["pid"] for result in found.values()}) == 1
    assert heard == [0.5, 1.5, 2.5]


def test_several_devices_work_at_the_same_time(tmp_path: Path) -> None:
    heard: list[float] = []
    work = pieces(tmp_path, 5, together=[0, 1])
    found = dict(
        run_several(
            MODULE, work, on_line=lambda done, line: heard.append(done), weights=[1, 1, 1, 1, 6], devices=["2", "7"]
        )
    )
    assert [found[number]["gpu"] for number in range(5)] == ["2", "7", "2", "7", "2"]
    assert len({result["pid"] for result in found.values()}) == 2
    assert found[0]["pid"] != os.getpid()
    assert heard == sorted(heard)
    assert heard[-1] < 10, "the weights of all are 10, and the last that is heard is not done"
    assert len(heard) == 5


def test_what_one_device_fails_at_ends_the_others_and_keeps_what_is_done(tmp_path: Path) -> None:
    work = pieces(tmp_path, 4, together=[1, 2])
    (work[1][1].scratch / "fails").touch()
    (work[2][1].scratch / "hangs").touch()
    found: dict[int, Any] = {}
    started = time.monotonic()
    results = run_several(MODULE, work, on_line=lambda done, line: None, devices=["0", "1"])
    with pytest.raises(ParityError, match="This piece fails"):
        found.update(results)
    assert [*found] == [0]
    assert time.monotonic() - started < 50, "the piece that hangs was ended"


@pytest.mark.parametrize(
    ("asked", "devices", "threads"), [(None, 2, max(1, machine.cores() // 2)), (None, 1, machine.cores()), (3, 2, 3)]
)
def test_processes_of_several_devices_share_the_cores(
    tmp_path: Path, asked: int | None, devices: int, threads: int
) -> None:
    work = pieces(tmp_path, 2, threads=asked)
    names = [str(number) for number in range(devices)]
    found = dict(run_several(MODULE, work, on_line=lambda done, line: None, devices=names))
    assert [result["threads"] for result in found.values()] == [[threads, threads]] * 2
