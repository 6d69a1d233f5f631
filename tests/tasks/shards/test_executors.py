"""Shards in threads, processes, on Dask and on Ray: the same bytes, whatever is killed, and nothing left behind."""

from __future__ import annotations

import functools
import gc
import hashlib
import json
import os
import pickle
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from contextvars import Context
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numba.core.event import trigger_event
from pydantic import ValidationError

from storage.errors import ConfigError, LostWorker, SourceError
from storage.shards.arrays import Int64
from tasks.shards import ShardResult, dask_workers, map_shards, processes, ray_workers
from tasks.shards.broadcast import broadcast
from tasks.shards.processes import Processes
from tasks.shards.shard import DRAFT, RESULT, Call, is_done, work
from tasks.shards.temporary import temporary_folder
from tasks.stage.display.progress import Observer, Progress
from tasks.stage.output import Output
from tasks.stage.session import resources
from tasks.text import kernel_cache
from tests.ended import have_ended
from tests.pipeline.runs import mind_signals
from tests.runtimes import runtime_of

ROOT = Path(__file__).parents[3]
EXECUTORS = ("thread", "process", "dask", "ray")
ELSEWHERE = ("process", "dask", "ray")
RAY = pytest.param("ray", marks=pytest.mark.soak)  # where its start is most of the test
TABLE = np.arange(1 << 16)


@pytest.fixture(scope="module", autouse=True)
def _workers() -> Iterator[None]:
    """One cluster of each kind for all tests here, as for a run."""
    with resources():
        yield


def output(folder: Path, executor: str, workers: int = 2, **settings: Any) -> Output:
    return Output.at(folder, runtime=runtime_of(executor=executor, workers=workers, **settings))


def digest(results: list[ShardResult]) -> str:
    """Of all that shards left, in order, but for what each worker needed."""
    found = hashlib.sha256()
    for result in results:
        for path in sorted(set(result.folder.rglob("*")) - {result.folder / RESULT}):
            found.update(f"{result.folder.name}/{path.name} {sorted(result.counts.items())}\n".encode())
            found.update(path.read_bytes())
    return found.hexdigest()


def measure(table: Int64, log: Path, shard: int, folder: Path) -> dict[str, int]:
    """A shard that needs what all shards share."""
    with log.open("a") as file:
        file.write(f"{shard}\n")
    np.save(folder / "values.npy", table[:: shard + 1])
    return {"values": len(table[:: shard + 1])}


FEW = [pytest.param(kind, 2) for kind in EXECUTORS] + [("thread", 4), ("process", 4)]
MANY = [pytest.param(kind, n, marks=pytest.mark.soak) for kind in ("dask", "ray") for n in (1, 4)]


@pytest.mark.soak_but("thread-2", "process-2", "thread-4")
@pytest.mark.parametrize(("executor", "workers"), [*FEW, *MANY])
def test_the_executor_and_the_number_of_workers_change_no_byte(tmp_path: Path, executor: str, workers: int) -> None:
    job = functools.partial(measure, TABLE, tmp_path / "log")
    alone = map_shards(job, range(200), output(tmp_path / "alone", "auto", 1), "measure")
    out = output(tmp_path / executor, executor, workers)
    assert digest(map_shards(job, range(200), out, "measure")) == digest(alone)
    assert sorted(path.name for path in (out.scratch / "measure").iterdir()) == [f"{n:05d}" for n in range(200)]


class Loaded:
    """Leaves a line for each time that it is unpickled."""

    def __init__(self, log: Path) -> None:
        self.log, self.ballast = log, bytes(1 << 20)

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ = state
        with self.log.open("a") as file:
            file.write(f"{os.getpid()}\n")

    def __call__(self, shard: int, folder: Path) -> dict[str, int]:
        return {"pid": os.getpid()}


@pytest.mark.soak
@pytest.mark.parametrize("executor", ELSEWHERE)
def test_what_shards_share_is_loaded_once_a_worker(tmp_path: Path, executor: str) -> None:
    log = tmp_path / "log"
    results = map_shards(Loaded(log), range(30), output(tmp_path, executor), "load")
    loads = log.read_text().split()
    assert set(loads) == {str(result.counts["pid"]) for result in results}
    assert len(loads) == len(set(loads)) <= 2


class Runs:
    """Code that would run when it is unpickled."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> Any:
        return Path.touch, (self.trace,)


def test_a_function_whose_file_was_replaced_is_refused_and_does_not_run(tmp_path: Path) -> None:
    with broadcast(functools.partial(measure, TABLE, tmp_path / "log"), tmp_path) as sent:
        sent.path.write_bytes(pickle.dumps(Runs(tmp_path / "trace")))
        with closing(Processes(1)) as elsewhere:
            answer = elsewhere.submit(Call(sent, 0, tmp_path / "shard", False)).exception()
    assert isinstance(answer, ConfigError)
    assert re.search(r"doesn't see the files of this run in .*: different bytes there", answer.message)
    assert not list(tmp_path.glob("*.pickle"))
    assert not (tmp_path / "trace").exists()


@pytest.mark.parametrize(("seconds", "processes"), [(0.0, 1), (0.1, 2)])
def test_processes_are_started_where_much_is_left(tmp_path: Path, seconds: float, processes: int) -> None:
    """By default: the first shards are worked through here. A later map of the run finds the workers, of which this
    process is one, even if threads could do its work."""
    found: list[set[int]] = []

    def run() -> None:
        with resources():
            for name, releases_gil in (("perhaps", False), ("again", True)):
                out, work = output(tmp_path, "auto"), functools.partial(slow, seconds, os.getpid())
                results = map_shards(work, range(60), out, name, releases_gil=releases_gil)
                found.append({result.counts["pid"] for result in results})

    Context().run(run)
    alone, workers = {os.getpid()}, found[0] - {os.getpid()}
    assert alone <= found[0] == found[1]
    assert len(found[0]) == processes
    assert have_ended(workers)


def slow(seconds: float, run: int, shard: int, folder: Path) -> dict[str, int]:
    """Where processes are expected, the run's own takes its time over later shards until one of them works."""
    elsewhere = folder.parent.parent / "elsewhere"
    if os.getpid() != run:
        elsewhere.touch()
    time.sleep(seconds)
    waits_until = time.monotonic() + (60 if seconds and shard > 30 else 0)
    while time.monotonic() < waits_until and not elsewhere.exists():
        time.sleep(0.01)
    return {"pid": os.getpid()}


def test_a_shard_over_which_a_worker_died_does_not_come_to_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would take the run with it. The run's own thread is idle when the worker dies, which has two shards."""
    for name, value in {"FIRST": 0.0, "SAVED": 0.0, "IMPORTED": ()}.items():
        monkeypatch.setattr(processes, name, value)
    died = tmp_path / "died"
    results = map_shards(functools.partial(die_once, died, os.getpid()), range(60), output(tmp_path, "auto"), "die")
    assert sum(result.counts["pid"] != os.getpid() for result in results) == 2


def die_once(died: Path, run: int, shard: int, folder: Path) -> dict[str, int]:
    if os.getpid() != run and not died.exists():
        died.touch()
        slow(0.0, run, shard, folder)
        while sum(DRAFT not in other.name for other in folder.parent.iterdir()) < 58:  # all but its own and the next
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGKILL)
    return slow(0.02, run, shard, folder)


@pytest.mark.soak
def test_where_no_cluster_is_the_error_names_the_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing, and something else than Dask, which would have its client wait without end."""
    monkeypatch.setattr(dask_workers, "PATIENCE", 1)
    with ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as web, socket.socket() as unheard:
        threading.Thread(target=web.serve_forever, daemon=True).start()
        unheard.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{web.server_port}"
        with pytest.raises(ConfigError, match=f"No Dask scheduler with a worker answers at {address}"):
            map_shards(kill_always, range(6), output(tmp_path, "dask", address=address), "reach")
        address = f"127.0.0.1:{unheard.getsockname()[1]}"
        with pytest.raises(ConfigError, match=f"No Ray cluster answers at {address}"):
            ray_workers._check_answers(address)  # the tests here share a cluster, which a second one would be
        web.shutdown()


def kill_once(marker: Path, shard: int, folder: Path) -> dict[str, int]:
    (folder / "value").write_text(str(shard))
    if shard == 5:
        try:
            marker.touch(exist_ok=False)
        except FileExistsError:
            return {"value": shard}
        os.kill(os.getpid(), signal.SIGKILL)  # as the kernel does when memory runs out
    return {"value": shard}


@pytest.mark.soak
@pytest.mark.parametrize("executor", ELSEWHERE)
def test_what_a_killed_worker_had_is_worked_again(tmp_path: Path, executor: str) -> None:
    out = output(tmp_path, executor)
    results = map_shards(functools.partial(kill_once, tmp_path / "marker"), range(12), out, "kill")
    assert (tmp_path / "marker").exists()
    assert [(r.counts["value"], (r.folder / "value").read_text()) for r in results] == [(n, str(n)) for n in range(12)]


def kill_always(shard: int, folder: Path) -> dict[str, int]:
    if shard == 5:
        os.kill(os.getpid(), signal.SIGKILL)
    return {}


@pytest.mark.parametrize("executor", [pytest.param(name, marks=pytest.mark.soak) for name in ("dask", "ray")])
def test_a_shard_that_kills_every_worker_ends_the_stage(tmp_path: Path, executor: str) -> None:
    with pytest.raises(
        LostWorker, match=r"killed \(kill\), 4 times with the same shard, .* Lower runtime.data.workers"
    ):
        map_shards(kill_always, range(6), output(tmp_path, executor), "kill")


def fail(log: Path, kind: str, shard: int, folder: Path) -> dict[str, int]:
    if shard == 3:
        with log.open("a") as file:
            file.write("once\n")
        raise SourceError("Shard 3 is bad.", "Mend it.", line=7) if kind == "typed" else KeyError("a defect")
    return {}


@pytest.mark.soak_but("process", "thread")
@pytest.mark.parametrize("executor", EXECUTORS)
def test_an_error_of_logic_comes_back_as_it_was_and_is_not_tried_again(tmp_path: Path, executor: str) -> None:
    log, out = tmp_path / "log", output(tmp_path, executor)
    with pytest.raises(SourceError) as caught:
        map_shards(functools.partial(fail, log, "typed"), range(6), out, "typed")
    assert (caught.value.message, caught.value.remedy) == ("Shard 3 is bad.", "Mend it.")
    assert caught.value.facts == {"line": 7}
    with pytest.raises(KeyError, match="a defect"):
        map_shards(functools.partial(fail, log, "other"), range(6), out, "other")
    assert log.read_text().split() == ["once", "once"]


def overlap(folder: Path, shard: int, draft: Path) -> dict[str, int]:
    """How many shards of this process ran at once."""
    (folder / str(shard)).touch()
    time.sleep(0.05)
    found = len(list(folder.iterdir()))
    (folder / str(shard)).unlink()
    return {"most": found}


@pytest.mark.parametrize("releases_gil", [True, False])
def test_work_that_holds_the_lock_is_never_in_two_threads(tmp_path: Path, releases_gil: bool) -> None:
    (tmp_path / "now").mkdir()
    job, out = functools.partial(overlap, tmp_path / "now"), output(tmp_path, "thread", 4)
    results = map_shards(job, range(12), out, "overlap", releases_gil=releases_gil)
    assert (max(result.counts["most"] for result in results) > 1) == releases_gil


def pid_of(shard: int, folder: Path) -> dict[str, int]:
    return {"pid": os.getpid()}


def pids(out: Output, name: str, **needs: Any) -> set[int]:
    return {result.counts["pid"] for result in map_shards(pid_of, range(4), out, name, **needs)}


@pytest.mark.soak
def test_workers_serve_a_whole_run_but_isolated_ones_and_those_with_a_gpu(tmp_path: Path) -> None:
    out = output(tmp_path, "process", 1)
    usual = pids(out, "first")
    assert usual == pids(out, "second", releases_gil=True) != {os.getpid()}
    assert not usual & pids(out, "third", isolated=True)
    assert not usual & pids(out, "fourth", accelerators=1)


def test_without_a_session_workers_end_with_the_map(tmp_path: Path) -> None:
    found = Context().run(pids, output(tmp_path, "process"), "alone")
    assert found
    assert have_ended(found, seconds=0)


def half(folder: Path, barrier: threading.Barrier, shard: int, draft: Path) -> dict[str, int]:
    (draft / "value").write_text(str(shard))
    barrier.wait()
    return {"value": shard}


@pytest.mark.parametrize("before", ["nothing", "damaged"])
def test_a_shard_that_runs_twice_at_once_is_sound(tmp_path: Path, before: str) -> None:
    """Often, as each may find a damaged folder while the other removes it."""
    for number in range(200):
        folder = tmp_path / f"{number:05d}"
        if before == "damaged":
            folder.mkdir()
            (folder / "result.json").write_text('{"files": {"value": "other"}}')
        call = Call(functools.partial(half, tmp_path, threading.Barrier(2)), 7, folder, releases_gil=True)
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(work, [call, call]))
        assert is_done(folder)
        assert (folder / "value").read_text() == "7"
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"{number:05d}" for number in range(200)]


def test_a_worker_that_outlives_its_run_makes_no_folder(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        work(Call(kill_always, 0, tmp_path / "gone" / "00000", releases_gil=True))
    assert not (tmp_path / "gone").exists()


def test_drafts_of_dead_runs_are_removed(tmp_path: Path) -> None:
    out = output(tmp_path, "auto", 1)
    (out.scratch / "first" / "00001.draft-dead").mkdir(parents=True)
    pids(out, "first")
    assert sorted(path.name for path in (out.scratch / "first").iterdir()) == [f"{n:05d}" for n in range(4)]


class Heard(Observer):
    def __init__(self) -> None:
        self.done: list[float] = []
        self.notes: list[str] = []

    def progressed(self, progress: Progress) -> None:
        self.done.append(progress.done)
        self.notes.append(progress.note)


def test_progress_is_told_once_a_second_and_at_the_end(tmp_path: Path) -> None:
    out = output(tmp_path, "thread", 4)
    out.observer = heard = Heard()
    started = time.monotonic()
    map_shards(pid_of, range(300), out, "many")
    assert (heard.done[0], heard.done[-1]) == (0, 300)
    assert len(heard.done) <= 2 + time.monotonic() - started


def compile_a_while(shard: int, folder: Path) -> dict[str, int]:
    with trigger_event("numba:compile"), trigger_event("numba:compile"):  # a kernel, and one that it calls
        time.sleep(2.5)
        return {"threshold": gc.get_threshold()[0]}


def test_a_first_run_says_that_it_compiles_and_meanwhile_rarely_looks_for_garbage(tmp_path: Path) -> None:
    out = output(tmp_path, "thread", 1)
    out.observer = heard = Heard()
    before, usual = gc.get_threshold(), (701, 11, 12)
    gc.set_threshold(*usual)
    try:
        (result,) = map_shards(compile_a_while, [0], out, "measure")
        assert gc.get_threshold() == usual
    finally:
        gc.set_threshold(*before)
    assert {*heard.notes} == {"measure", "measure, compiling for this machine"}
    assert heard.notes[0] == heard.notes[-1] == "measure"
    assert result.counts["threshold"] == kernel_cache.RARE[0]


def compile_first(shard: int, folder: Path) -> dict[str, int]:
    if shard == 0:
        compile_a_while(shard, folder)
    return {"pid": os.getpid()}


def test_no_processes_are_started_to_wait_for_what_this_one_compiles(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "FIRST", 1.0)
    results = Context().run(map_shards, compile_first, range(4), output(tmp_path, "auto"), "perhaps")
    assert {result.counts["pid"] for result in results} == {os.getpid()}


def test_a_folder_of_a_killed_cluster_is_swept(tmp_path: Path) -> None:
    with temporary_folder() as held:
        dead = held.with_name("gristmill-deadbeef")
        dead.mkdir(exist_ok=True)
        (dead / "lock").touch()
        os.utime(dead, (0, 0))
        os.utime(held, (0, 0))
        with temporary_folder():
            assert not dead.exists()
            assert held.exists()
    assert not held.exists()


@pytest.mark.parametrize(("executor", "package"), [("dask", "distributed"), ("ray", "ray")])
def test_a_missing_package_is_named(
    tmp_path: Path, executor: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ConfigError, match=rf"pip install 'gristmill\[{executor}\]'"):
        pids(output(tmp_path, executor, 3), "first")  # not the workers of the other tests


@pytest.mark.parametrize(
    ("executor", "address"),
    [("process", "tcp://host:8786"), ("auto", "auto"), ("dask", "host:6379"), ("ray", "tcp://host:8786"), ("ray", "x")],
)
def test_an_address_must_suit_the_executor(executor: str, address: str) -> None:
    with pytest.raises(ValidationError, match="address"):
        runtime_of(executor=executor, address=address)


def linger(log: Path, shard: int, folder: Path) -> dict[str, int]:
    """The first shards at once, the others so slowly that the run can be killed meanwhile."""
    with log.open("a") as file:
        file.write(f"{shard}\n")
    if shard >= 3 and not log.with_name("fast").exists():
        time.sleep(120)
    return {"shard": shard}


SCRIPT = """
import sys
from functools import partial
from pathlib import Path
from tests.tasks.shards.test_executors import linger, output
from tasks.shards import map_shards
if __name__ == "__main__":
    executor, folder = sys.argv[1], Path(sys.argv[2])
    map_shards(partial(linger, folder / "log"), range(6), output(folder, executor), "linger")
"""


@contextmanager
def begun(folder: Path, executor: str) -> Iterator[subprocess.Popen[str]]:
    """A run that has done three shards and is at two others."""
    (folder / "script.py").write_text(SCRIPT)
    run = subprocess.Popen(
        [sys.executable, str(folder / "script.py"), executor, str(folder)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        start_new_session=True,
        text=True,
        preexec_fn=mind_signals,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    log, done = folder / "log", folder / "scratch" / "linger"
    try:
        while len(list(done.glob("0000[012]/result.json"))) < 3 or len(log.read_text().split()) < 5:
            assert run.poll() is None, run.communicate()[0]
            time.sleep(0.1)
        yield run
    finally:
        if run.poll() is None:
            os.killpg(run.pid, signal.SIGKILL)
            run.communicate()


def of_session(session: int) -> list[str]:
    """The processes of a session that live."""
    found = subprocess.run(["ps", "-o", "stat=,args=", "-s", str(session)], capture_output=True, text=True, check=False)
    return [line for line in found.stdout.splitlines() if not line.startswith("Z")]


def wait_for(happened: Any, seconds: float = 180) -> None:
    deadline = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < deadline, "too late"
        time.sleep(0.1)


@pytest.mark.soak_but("process")
@pytest.mark.parametrize("executor", ["process", "dask", RAY])
def test_kill_9_leaves_no_process_and_a_rerun_does_what_was_missing(tmp_path: Path, executor: str) -> None:
    log = tmp_path / "log"
    with begun(tmp_path, executor) as run:
        run.kill()
        run.wait()
        wait_for(lambda: not of_session(run.pid), 30)
    (tmp_path / "fast").touch()
    log.unlink()
    results = map_shards(functools.partial(linger, log), range(6), output(tmp_path, executor), "linger")
    assert [result.counts["shard"] for result in results] == list(range(6))
    assert sorted(log.read_text().split()) == ["3", "4", "5"]


@pytest.mark.soak
@pytest.mark.parametrize("executor", ["dask", RAY])
def test_ctrl_c_ends_a_cluster_of_ours_in_seconds(tmp_path: Path, executor: str) -> None:
    with begun(tmp_path, executor) as run:
        os.killpg(run.pid, signal.SIGINT)  # as a terminal does, to every process
        said, _ = run.communicate(timeout=60)
        assert run.returncode == -signal.SIGINT
        assert said.rstrip().endswith("KeyboardInterrupt")
        wait_for(lambda: not of_session(run.pid), 30)


@pytest.fixture(scope="module")
def scheduler(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a Dask scheduler on this machine."""
    file = tmp_path_factory.mktemp("dask") / "scheduler.json"
    command = (
        "scheduler --host 127.0.0.1 --port 0 --dashboard-address 127.0.0.1:0 --no-dashboard --no-show --scheduler-file"
    )
    process = dask(*command.split(), str(file))
    try:
        wait_for(lambda: file.exists() and file.read_text().endswith("}"))
        yield json.loads(file.read_text())["address"]
    finally:
        process.terminate()
        process.wait()


def dask(*arguments: str, before: tuple[str, ...] = (), code: Path = ROOT) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [*before, sys.executable, "-m", "dask", *arguments],
        cwd=code,
        env={**os.environ, "PYTHONPATH": str(code)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def worker(address: str, **how: Any) -> subprocess.Popen[bytes]:
    here = ("--host", "127.0.0.1", "--dashboard-address", "127.0.0.1:0")
    return dask("worker", address, *here, "--nthreads", "1", "--no-dashboard", "--no-nanny", **how)


def end(process: subprocess.Popen[bytes]) -> None:
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def test_a_running_cluster_is_used_by_its_address_and_stays(tmp_path: Path, scheduler: str) -> None:
    process = worker(scheduler)
    try:
        for number in range(2):
            out = output(tmp_path / str(number), "dask", address=scheduler)
            assert Context().run(pids, out, "first") == {process.pid}
        assert process.poll() is None
    finally:
        end(process)


def test_a_worker_that_sees_other_files_is_named(tmp_path: Path, scheduler: str) -> None:
    hidden = tmp_path / "seen"
    out = output(hidden, "dask", address=scheduler)
    mount = f'mount -t tmpfs none {hidden} && exec "$@"'
    unshare = ("unshare", "-m", "sh", "-c", mount, "sh")
    if subprocess.run([*unshare, "true"], capture_output=True, check=False).returncode:
        pytest.skip("needs the right to mount")
    refused(out, worker(scheduler, before=unshare), r"doesn't see the files of this run in .*: .* same path")


@pytest.mark.soak
def test_a_worker_with_other_code_is_named(tmp_path: Path, scheduler: str) -> None:
    for package in ("storage", "models", "tasks"):
        shutil.copytree(ROOT / package, tmp_path / "code" / package, ignore=shutil.ignore_patterns("__pycache__"))
    with (tmp_path / "code" / "tasks" / "text" / "scan.py").open("a") as file:
        file.write("CHANGED = 1\n")
    out = output(tmp_path, "dask", address=scheduler)
    refused(out, worker(scheduler, code=tmp_path / "code"), "has different code of Gristmill. Install the same version")


def refused(out: Output, process: subprocess.Popen[bytes], message: str) -> None:
    try:
        with pytest.raises(ConfigError, match=message):
            Context().run(pids, out, "first")
        assert not list((out.scratch / "first").iterdir())
    finally:
        end(process)
