"""A program's processes and resources are bounded, reach no other process and don't outlive it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from storage.errors import LostWorker
from tasks.sandbox import Program, Sandbox, SandboxConfig, run_programs
from tasks.sandbox.worker import Means, Worker
from tests.pipeline.runs import mind_signals
from tests.tasks.sandbox.attacks import (
    EVERYTHING,
    FILTERS,
    NAMESPACES,
    named,
    new_name,
    offered,
    processes,
    wait_until,
    without_sandbox,
)

CONFIG = SandboxConfig(seconds=0.4, memory_mb=256)
SLOW = SandboxConfig(seconds=10, memory_mb=256)


@pytest.fixture(params=[EVERYTHING, NAMESPACES, FILTERS], ids=["everything", "namespaces", "filters"])
def means(request: pytest.FixtureRequest) -> Means:
    return offered(request.param)


@pytest.fixture
def name() -> Iterator[str]:
    """A name for processes, none of which may be left."""
    chosen = new_name()
    yield chosen
    left = processes(chosen)
    for process in left:
        os.kill(process, signal.SIGKILL)
    assert left == []


@pytest.mark.soak_but("everything")
def test_a_fork_bomb_does_not_spread(means: Means, name: str) -> None:
    count = "children = 0\nfor _ in range(100):\n    try: child = os.fork()\n    except OSError: break\n"
    count += "    if child == 0:\n        time.sleep(30)\n        os._exit(0)\n    children += 1\n"
    bomb = "while True:\n    try: os.fork()\n    except OSError: pass"
    counted, bombed = run_programs(
        [Program(named(name) + count, "assert children == 100"), Program(named(name) + bomb, "")], CONFIG, 2, means
    )
    assert (counted.state, counted.error) == ("failed", "AssertionError")
    assert bombed.state == "timed out"
    assert wait_until(0, name)
    assert without_sandbox(f"{named(name)}{count}assert children == 100") == 0
    for process in processes(name):
        os.kill(process, signal.SIGKILL)
    wait_until(0, name)


ENDLESS = {
    "loop": "while True: pass",
    "sleep": "time.sleep(1000)",
    "threads": "import threading\ndef spin():\n    while True: pass\n"
    "for _ in range(4): threading.Thread(target=spin).start()",
    "signals": "import signal\nfor number in range(1, 65):\n    try: signal.signal(number, signal.SIG_IGN)\n"
    "    except (OSError, ValueError): pass\nsignal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))\ntime.sleep(1000)",
    "arithmetic": "10 ** 10 ** 9",
    "pattern": "import re; re.match('(a+)+$', 'a' * 60 + 'b')",
    "stopped": "os.kill(os.getpid(), 19)\ntime.sleep(1000)",
}


@pytest.mark.soak_but("everything")
def test_time_is_bounded(means: Means, name: str) -> None:
    with Worker(CONFIG, means) as worker:
        for way, body in ENDLESS.items():
            begun = time.monotonic()
            outcome = worker.run(Program(named(name) + body, "time.sleep(1000)"))
            assert outcome.state == "timed out", way
            assert CONFIG.seconds <= outcome.seconds <= time.monotonic() - begun < 6
            assert processes(name) == []


def test_memory_is_bounded(means: Means, name: str) -> None:
    hogs = ["b = bytearray(2_000_000_000)", "b = []\nwhile True: b.append(bytearray(10_000_000))", "b = 'x' * 10 ** 10"]
    mapped = "import mmap\nb = mmap.mmap(-1, 2_000_000_000)"
    outcomes = run_programs([Program(named(name) + hog, "") for hog in (*hogs, mapped)], SLOW, means=means)
    assert [outcome.state for outcome in outcomes[:3]] == ["out of memory"] * 3
    assert (outcomes[3].state, outcomes[3].error) == ("failed", "OSError")


def test_threads_are_bounded(means: Means, name: str) -> None:
    many = (
        "import threading\nfor _ in range(2000): threading.Thread(target=time.sleep, args=(30,), daemon=True).start()"
    )
    (outcome,) = run_programs([Program(named(name) + many, "")], SLOW, means=means)
    assert (outcome.state, outcome.error) == ("failed", "RuntimeError")
    # threads whose stacks take next to no memory; with `filters` the supervisor looks how many there are
    small = f"import threading\nthreading.stack_size(32_768)\n{many}\ntime.sleep(1)"
    (outcome,) = run_programs([Program(named(name) + small, "")], SandboxConfig(seconds=10), means=means)
    assert (outcome.state, outcome.error) == ("failed", "RuntimeError")
    few = "import threading\nt = threading.Thread(target=time.sleep, args=(0.1,)); t.start(); t.join()"
    assert run_programs([Program(named(name) + few, "")], SLOW, means=means)[0].passed


def test_a_daemon_does_not_outlive_its_program(means: Means, name: str) -> None:
    daemon = named(name) + "if os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0: time.sleep(60)\n    os._exit(0)"
    run_programs([Program(daemon, "time.sleep(0.2)")], SLOW, means=means)
    assert processes(name) == []
    without_sandbox(daemon)
    assert wait_until(1, name)
    for process in processes(name):
        os.kill(process, signal.SIGKILL)
    wait_until(0, name)


KILLS = {
    "kill": "os.kill({victim}, 9)",
    "group": "os.killpg({victim}, 9)",
    "thread": "ctypes.CDLL(None).syscall({tkill}, {victim}, 9)",
    "pidfd": "import signal; signal.pidfd_send_signal(os.pidfd_open({victim}), 9)",
    "owner": "import fcntl; r, w = os.pipe(); fcntl.fcntl(r, 8, {victim}); fcntl.fcntl(r, fcntl.F_SETFL, os.O_ASYNC); "
    "os.write(w, b'x'); time.sleep(0.1)",
    "limits": "import resource; resource.prlimit({victim}, resource.RLIMIT_CPU, (0, 0))",
    "memory": "f = open('/proc/{victim}/mem', 'rb'); 1 / 0",
    "trace": "ctypes.CDLL(None).ptrace(16, {victim}, 0, 0) == 0 and 1 / 0",
    "priority": "os.setpriority(os.PRIO_PROCESS, {victim}, 19); 1 / 0",
    "affinity": "os.sched_setaffinity({victim}, [0]); 1 / 0",
}


def test_no_other_process_is_touched(means: Means, name: str) -> None:
    quiet = [sys.executable, "-I", "-S", "-c", f"{named(name)}\nwhile True: time.sleep(0.01)"]
    tkill = {"x86_64": 200, "aarch64": 130}.get(os.uname().machine, 0)
    with Worker(SLOW, means) as worker:
        for way, attack in KILLS.items():
            with subprocess.Popen(quiet, start_new_session=True) as victim:
                line = attack.format(victim=victim.pid, tkill=tkill)
                source = f"import ctypes, os, time\ntry:\n    {line}\nexcept (OSError, AttributeError): pass"
                assert worker.run(Program(source, "")).passed, way
                assert victim.poll() is None, way
                harmed = without_sandbox(source) != 0
                if way in ("kill", "group", "thread", "pidfd", "owner"):
                    assert victim.wait(5) < 0, f"{way} does no harm anyway"
                elif os.geteuid() == 0 and way != "limits":  # a system may keep these from ordinary users by itself
                    assert harmed, f"{way} does no harm anyway"
                victim.kill()
    wait_until(0, name)


def test_killing_its_parent_ends_nothing_but_itself(means: Means) -> None:
    kills = ["os.kill(os.getppid(), 9)", "os.kill(0, 9)", "os.kill(-1, 9)", "os.kill(os.getpid(), 9)"]
    kills.append("import ctypes; ctypes.CDLL(None).ptrace(0, 0, 0, 0); os.kill(os.getpid(), 5); os.abort()")
    if os.geteuid() == 0 and not means.namespaces:
        kills.remove("os.kill(-1, 9)")  # a defect here should not end the machine
    programs = [Program("import os", line) for line in kills] + [Program("x = 1", "assert x")]
    outcomes = run_programs(programs, SLOW, 1, means)
    assert outcomes[-1].passed


def test_a_sandbox_that_can_not_work_is_no_failure_of_a_program() -> None:
    with Worker(SLOW, offered(FILTERS)) as worker:
        assert worker.run(Program("x = 1", "assert x")).passed
        shutil.rmtree(worker._folder)
        with pytest.raises(LostWorker, match="No such file"):
            worker.run(Program("x = 1", "assert x"))


def test_a_caller_that_ignores_its_children_s_end_gets_its_outcomes() -> None:
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        assert run_programs([Program("x = 1", "assert x")] * 3, SLOW, 1)[2].passed
    finally:
        signal.signal(signal.SIGCHLD, before)


def test_a_worker_that_is_killed_takes_its_program_along(means: Means, name: str) -> None:
    endless = Program(named(name) + "while True: time.sleep(1)", "")
    with Sandbox(SLOW, 1, means) as sandbox:

        def kill_the_worker() -> None:
            assert wait_until(1, name)
            (worker,) = sandbox._crew
            os.kill(worker._process.pid, signal.SIGKILL)

        with ThreadPoolExecutor(1) as pool:
            killing = pool.submit(kill_the_worker)
            with pytest.raises(LostWorker, match="killed"):
                sandbox.run([endless])
            killing.result()
        assert wait_until(0, name, 5)
        assert sandbox.run([Program("x = 1", "assert x")])[0].passed  # by a new one


@pytest.mark.soak_but("everything-9", "filters-15")
@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_caller_that_is_ended_leaves_nothing(sent: signal.Signals, means: Means, name: str, tmp_path: Path) -> None:
    source = (
        "from tasks.sandbox import *\nfrom tasks.sandbox.worker import Means\n"
        f"program = Program({named(name) + 'while True: time.sleep(1)'!r}, '')\n"
        f"run_programs([program] * 3, SandboxConfig(seconds=100), 2, {means!r})"
    )
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    command = [sys.executable, "-c", source]
    with subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL, preexec_fn=mind_signals) as caller:
        try:
            assert wait_until(2, name)
            caller.send_signal(sent)
            assert caller.wait(10) != 0
        finally:
            caller.kill()
    assert wait_until(0, name, 5)
    deadline = time.monotonic() + 5
    while list(tmp_path.iterdir()) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert list(tmp_path.iterdir()) == []
