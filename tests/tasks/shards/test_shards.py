"""The seam for shards: order, resume, errors, and no orphan."""

from __future__ import annotations

import functools
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from storage.errors import LostWorker, SourceError
from tasks.shards import collect, map_shards
from tasks.shards.shard import STOP, Stopped, check_going_on
from tasks.stage.output import Output
from tests.ended import have_ended
from tests.runtimes import runtime_of


def double(log: Path, shard: int, folder: Path) -> dict[str, int]:
    if shard == 13:
        raise SourceError("Shard 13 is bad.", "Mend it.")
    with log.open("a") as file:
        file.write(f"{shard}\n")
    (folder / "value.txt").write_text(str(2 * shard))
    return {"value": 2 * shard}


@pytest.mark.parametrize("threads", [False, True])
@pytest.mark.parametrize("workers", [1, 2, 8])
def test_results_come_in_the_order_of_the_shards(tmp_path: Path, workers: int, threads: bool) -> None:
    out = Output.at(tmp_path, runtime=runtime_of(workers=workers))
    results = map_shards(functools.partial(double, tmp_path / "log"), range(6), out, "double", releases_gil=threads)
    assert [result.counts["value"] for result in results] == [0, 2, 4, 6, 8, 10]
    assert [(result.folder / "value.txt").read_text() for result in results] == ["0", "2", "4", "6", "8", "10"]


@pytest.mark.parametrize("threads", [False, True])
@pytest.mark.parametrize("workers", [1, 2])
def test_finished_shards_are_not_worked_again_after_an_error(tmp_path: Path, workers: int, threads: bool) -> None:
    out = Output.at(tmp_path, runtime=runtime_of(workers=workers))
    log = tmp_path / "log"
    with pytest.raises(SourceError, match="Shard 13 is bad"):
        map_shards(functools.partial(double, log), [1, 2, 13], out, "double", releases_gil=threads)
    map_shards(functools.partial(double, log), [1, 2, 3], out, "double", releases_gil=threads)
    assert sorted(log.read_text().split()) == ["1", "2", "3"]


@pytest.mark.parametrize("file", ["value.txt", "result.json"])
@pytest.mark.parametrize("damage", ["cut", "flipped", "gone", "emptied"])
def test_a_finished_shard_whose_files_have_changed_is_worked_anew(tmp_path: Path, file: str, damage: str) -> None:
    out, log = Output.at(tmp_path), tmp_path / "log"
    work = functools.partial(double, log)
    first = map_shards(work, [1, 2], out, "double")
    path = first[0].folder / file
    content = path.read_bytes()
    if damage == "gone":
        path.unlink()
    else:
        path.write_bytes({"cut": content[:-1], "flipped": content[:-1] + b"~", "emptied": b""}[damage])
    again = map_shards(work, [1, 2], out, "double")
    assert sorted(log.read_text().split()) == ["1", "1", "2"]
    assert [result.counts["value"] for result in again] == [2, 4]
    assert [(result.folder / "value.txt").read_text() for result in again] == ["2", "4"]


def killed_unless(mended: Path, shard: int, folder: Path) -> dict[str, int]:
    if shard == 13 and not mended.exists():
        os.kill(os.getpid(), signal.SIGKILL)  # as the kernel does when memory runs out
    return {}


def test_a_killed_worker_is_named_with_what_to_do(tmp_path: Path) -> None:
    out = Output.at(tmp_path, stage="dedup", runtime=runtime_of(workers=2, executor="process"))
    work = functools.partial(killed_unless, tmp_path / "mended")
    with pytest.raises(LostWorker, match=r"of dedup was killed \(sketch\), .*memory\. Lower .*workers, now 2\."):
        map_shards(work, [1, 2, 13], out, "sketch")
    (tmp_path / "mended").touch()
    assert len(map_shards(work, [1, 2, 13], out, "sketch")) == 3


def test_collected_files_are_numbered_and_stay_for_a_resume(tmp_path: Path) -> None:
    out = Output.at(tmp_path, runtime=runtime_of(workers=1))
    results = map_shards(functools.partial(double, tmp_path / "log"), [3, 4], out, "double")
    (results[0].folder / "value.txt").rename(results[0].folder / "other.txt")  # a shard without the file
    collect(results, "value.txt", out.path / "values")
    assert {path.name: path.read_text() for path in (out.path / "values").iterdir()} == {"00001.txt": "8"}
    assert (results[1].folder / "value.txt").exists()


SCRIPT = """
import sys, time
from pathlib import Path
from tests.ended import have_ended
from tests.runtimes import runtime_of
from tasks.stage.output import Output
from tasks.shards import map_shards
from tests.tasks.shards.test_shards import linger
if __name__ == "__main__":
    out = Output.at(Path(sys.argv[1]), runtime=runtime_of(workers=2, executor="process"))
    map_shards(linger, [0, 1], out, "linger")
"""


def linger(shard: int, folder: Path) -> dict[str, int]:
    (folder.parent / f"{shard}.pid").write_text(str(os.getpid()))
    time.sleep(120)
    return {}


def test_kill_9_leaves_no_worker_behind(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    root = Path(__file__).parents[3]
    process = subprocess.Popen(
        [sys.executable, str(script), str(tmp_path)], env={**os.environ, "PYTHONPATH": str(root)}
    )
    folder = tmp_path / "scratch" / "linger"
    deadline = time.monotonic() + 60
    while len([path for path in folder.glob("*.pid") if path.read_text()]) < 2:
        assert time.monotonic() < deadline, "the workers never started"
        time.sleep(0.1)
    workers = [int(path.read_text()) for path in folder.glob("*.pid")]
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert have_ended(workers)


def _stopped_once(shard: int, folder: Path) -> dict[str, int]:
    if not (folder.parent / "once").exists():
        (folder.parent / "once").touch()
        (folder.parent / STOP).touch()  # as the map does when it ends early
    check_going_on(folder)
    return {}


def test_long_work_is_given_up_when_its_map_has_ended_and_done_by_the_next_one(tmp_path: Path) -> None:
    out = Output.at(tmp_path, runtime=runtime_of(workers=1))
    with pytest.raises(Stopped):
        map_shards(_stopped_once, [0, 1], out, "work")
    assert len(map_shards(_stopped_once, [0, 1], out, "work")) == 2
