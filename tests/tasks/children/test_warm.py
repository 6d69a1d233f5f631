"""Children that are forks: each is like a new Python process, and none outlives its stage or its server."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from storage.errors import LostProcess
from tasks.children.reap_orphans import descendants
from tasks.children.spec import ChildSpec
from tasks.children.supervise import run_module
from tasks.children.warm import processes
from tasks.children.warm.server import LIBRARIES, import_for
from tasks.stage import machine
from tasks.stage.output import Output
from tests.ended import have_ended, is_running
from tests.runtimes import runtime_of

MODULE = "tests.tasks.children.forked_child"
ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def _own_servers(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An environment of these tests only, so that they have their own servers."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setitem(LIBRARIES, MODULE, ())
    monkeypatch.setattr(processes, "_SERVERS", {})
    monkeypatch.setattr(processes, "MOST", 2)
    yield
    for server in processes._SERVERS.values():
        server.close()


class Child:
    """A spec of a child, which is started as a stage does."""

    def __init__(self, folder: Path, threads: int = 1) -> None:
        runtime = runtime_of(device="cpu", threads=threads)
        self.out = Output.at(folder, stage="demo", runtime=runtime)
        self.spec = ChildSpec(runtime=runtime, scratch=self.out.scratch, out=self.out.path)
        self.result: dict[str, Any] = {}

    def run(self) -> dict[str, Any]:
        self.result = run_module(MODULE, self.spec, self.out, on_line=lambda line: None, ranks=False, keeps="nothing")
        return self.result

    def pids(self, number: int) -> list[int]:
        """The children that have begun, once there are `number`."""
        times, deadline = self.out.scratch / "times", time.monotonic() + 60
        while not times.exists() or len(found := times.read_text().split()) < number:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        return [int(pid) for pid in found]


def test_a_child_is_as_a_new_process_would_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sitecustomize.py").write_text("import numpy.random, torch")  # in the server, which seeds them
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{ROOT}")
    monkeypatch.setenv("GRISTMILL_FAULTS", "one")
    first = Child(tmp_path / "1").run()
    monkeypatch.setenv("GRISTMILL_FAULTS", "two")
    monkeypatch.setenv("JUDGE_API_KEY", "a secret")
    monkeypatch.setenv("PYTEST_CURRENT_TEST", "another (call)")  # or each test of a child would start a server
    child = Child(tmp_path / "2")
    second = child.run()
    assert first["parent"] == second["parent"] != os.getpid()
    assert first["pid"] != second["pid"] == second["group"]
    assert (first["own"], second["own"], second["shared"]) == ("one", "two", "1")
    assert (first["key"], second["key"]) == (None, "a secret")
    assert second["folder"] == str(tmp_path)
    assert second["main"] == MODULE
    assert Path(second["words"][0]) == ROOT / "tests/tasks/children/forked_child.py"
    assert second["command"][1:] == ["-m", MODULE, str(child.out.scratch / "spec.json")]
    assert second["interrupt"]
    assert second["open"] == []
    assert len({*first["drawn"], *second["drawn"]}) == 6
    assert (child.out.scratch / "child.log").read_text() == "noise\n"


def test_each_environment_has_a_server_and_those_used_last_are_kept(tmp_path: Path) -> None:
    parents = [Child(tmp_path / str(number), threads=number).run()["parent"] for number in (1, 2, 1, 3, 2, 1)]
    assert parents[0] == parents[2]
    assert len({*parents}) == 5
    assert have_ended(parents[number] for number in (0, 1, 3))
    assert all(is_running(parents[number]) for number in (4, 5))


def test_what_a_child_used_counts_for_its_stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    used: list[tuple[float, int]] = []
    monkeypatch.setattr(machine, "add_worker", lambda seconds, peak: used.append((seconds, peak)))
    child = Child(tmp_path)
    (child.out.scratch / "end").write_text("held = b'x' * 400_000_000\nwhile time.process_time() < 1: pass")
    child.run()
    ((seconds, peak),) = used
    assert 0.5 < seconds < 5
    assert 4e8 < peak < 2e9


@pytest.mark.parametrize(("end", "how"), [("os._exit(3)", "ended with exit code 3"), ("os.abort()", "by SIGABRT")])
def test_how_a_child_ended_is_told(end: str, how: str, tmp_path: Path) -> None:
    child = Child(tmp_path)
    (child.out.scratch / "end").write_text(end)
    with pytest.raises(LostProcess, match=how):
        child.run()
    (child.out.scratch / "end").unlink()
    assert child.run()["words"]


def test_a_child_whose_server_is_killed_is_begun_once_more(tmp_path: Path) -> None:
    server = Child(tmp_path / "1").run()["parent"]
    child = Child(tmp_path / "2")
    (child.out.scratch / "wait").touch()
    running = threading.Thread(target=child.run)
    running.start()
    (killed,) = child.pids(1)
    os.kill(server, signal.SIGKILL)
    _, again = child.pids(2)
    assert have_ended([killed])
    (child.out.scratch / "wait").unlink()
    running.join()
    assert child.result["pid"] == again
    assert child.result["parent"] != server


def test_a_server_that_was_killed_between_two_children_is_started_anew(tmp_path: Path) -> None:
    server = Child(tmp_path / "1").run()["parent"]
    os.kill(server, signal.SIGKILL)
    assert have_ended([server])
    child = Child(tmp_path / "2")
    assert child.run()["parent"] not in (server, os.getpid())
    assert len(child.pids(1)) == 1


def test_kill_9_of_the_stage_ends_server_and_child(tmp_path: Path) -> None:
    stage = (
        "import sys; from pathlib import Path\n"
        "from tasks.children.warm.server import LIBRARIES\n"
        "from tests.tasks.children.test_warm import Child, MODULE\n"
        "LIBRARIES[MODULE] = ()\n"
        "Child(Path(sys.argv[1])).run()"
    )
    child = Child(tmp_path)
    (child.out.scratch / "wait").touch()
    with subprocess.Popen([sys.executable, "-c", stage, str(tmp_path)], cwd=ROOT) as process:
        (pid,) = child.pids(1)
        everyone = {pid, *(below for below, _ in descendants(process.pid))}
        assert len(everyone) == 2
        process.kill()
    assert have_ended(everyone)


def test_a_child_that_nobody_waits_for_any_more_is_ended(tmp_path: Path) -> None:
    child = Child(tmp_path)
    (child.out.scratch / "wait").touch()
    (child.out.scratch / "spec.json").write_text(child.spec.model_dump_json())
    with (tmp_path / "log").open("wb") as log:
        command = [sys.executable, "-m", MODULE, str(child.out.scratch / "spec.json")]
        forked = processes.fork(command, dict(os.environ), log.fileno())
    (pid,) = child.pids(1)
    forked._reports.close()
    assert have_ended([pid])


def test_what_no_server_can_do_is_done_by_a_new_process_and_its_other_children_live(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request that is too long, and one from a deleted folder."""
    server = Child(tmp_path / "1").run()["parent"]
    own = len(os.listdir("/proc/self/fd"))
    monkeypatch.setenv("GRISTMILL_FAULTS", "x" * 100_000)
    assert Child(tmp_path / "2").run()["parent"] == os.getpid()
    monkeypatch.delenv("GRISTMILL_FAULTS")
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    child = Child(tmp_path / "3")
    (child.out.scratch / "end").write_text("os.chdir('/')")
    assert child.run()["parent"] == os.getpid()
    monkeypatch.chdir(tmp_path)
    assert Child(tmp_path / "4").run()["parent"] == server
    assert len(os.listdir("/proc/self/fd")) == own


def test_a_child_leads_its_group_when_it_is_told_of(tmp_path: Path) -> None:
    """An interrupted stage ends the group, which a fork joins only after its start."""
    child = Child(tmp_path)
    (child.out.scratch / "wait").touch()
    (child.out.scratch / "spec.json").write_text(child.spec.model_dump_json())
    command = [sys.executable, "-m", MODULE, str(child.out.scratch / "spec.json")]
    with (tmp_path / "log").open("wb") as log:
        for _ in range(20):
            forked = processes.fork(command, dict(os.environ), log.fileno())
            os.killpg(forked.pid, signal.SIGKILL)
            assert forked.wait(60) == -signal.SIGKILL


def test_a_stage_in_a_thread_outlives_the_main_one(tmp_path: Path) -> None:
    stage = (
        "import sys, threading; from pathlib import Path\n"
        "from tasks.children.warm.server import LIBRARIES\n"
        "from tests.tasks.children.test_warm import Child, MODULE\n"
        "LIBRARIES[MODULE] = ()\n"
        "first, second = (Child(Path(sys.argv[1]) / name) for name in '12')\n"
        "(first.out.scratch / 'end').write_text('time.sleep(1)')\n"
        "threading.Thread(target=lambda: (first.run(), second.run())).start()"
    )
    done = subprocess.run([sys.executable, "-c", stage, str(tmp_path)], cwd=ROOT, capture_output=True, text=True)
    assert done.stderr == ""
    assert [len(Child(tmp_path / name).pids(1)) for name in "12"] == [1, 1]


def test_a_library_that_can_t_be_imported_is_the_childs_to_tell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "of_a_broken_driver.py").write_text("raise OSError('libsomething.so: cannot open')")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setitem(LIBRARIES, "broken.", ("of_a_broken_driver",))
    import_for("broken.child")


def test_where_there_may_be_a_gpu_nothing_is_forked(monkeypatch: pytest.MonkeyPatch) -> None:
    command = [sys.executable, "-m", "tasks.pretrain.train", "spec.json"]
    assert processes.may_fork(command)
    assert not processes.may_fork([sys.executable, "-m", "json.tool"])
    assert not processes.may_fork(["srun", *command])
    monkeypatch.setattr(processes, "missing_gpu", lambda: None)
    assert not processes.may_fork(command)
