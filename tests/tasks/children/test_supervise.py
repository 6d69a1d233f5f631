"""Training children: their reports, how they fail, and that none outlives its stage."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flows.stop import stoppable
from storage.errors import LostProcess, OutOfMemory, ParityError, TrainingError
from tasks.children.environment import environment_file, training_environment
from tasks.children.launchers import training_command
from tasks.children.spec import ChildSpec
from tasks.children.supervise import RERUN, Keeps, run_child, run_module
from tasks.stage.output import Output
from tests.ended import have_ended, is_running
from tests.runtimes import runtime_of

ROOT = Path(__file__).parents[3]


def run(tmp_path: Path, script: str, **runtime: Any) -> list[dict[str, Any]]:
    out = Output.at(tmp_path, stage="demo", runtime=runtime_of(**runtime))
    said: list[dict[str, Any]] = []
    environment = {**training_environment(out.runtime.compute), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", script]
    run_child(command, out=out, environment=environment, log=tmp_path / "log", on_line=said.append)
    return said


def test_json_lines_reach_the_stage_and_the_rest_goes_to_the_log(tmp_path: Path) -> None:
    script = "print('noise'); from tasks.children.child import emit; emit(step=1, loss=2.5); print('{broken')"
    assert run(tmp_path, script) == [{"step": 1, "loss": 2.5}]
    assert "noise" in (tmp_path / "log").read_text()


@pytest.mark.parametrize("name", ["spec.json", "child.log", "stop", "log.jsonl", "result.json"])
def test_nothing_is_read_or_written_through_what_is_no_plain_file(name: str, tmp_path: Path) -> None:
    """Opening a pipe would block, and a link may lead to a file of the user's."""
    out = Output.at(tmp_path, stage="demo")
    path, mine = out.scratch / name, tmp_path / "mine"
    spec = ChildSpec(runtime=out.runtime, scratch=out.scratch, out=out.path)
    mine.write_text("precious")
    plants: list[Callable[[], None]] = [lambda: os.mkfifo(path), lambda: path.symlink_to(mine), path.mkdir]
    for plant in plants:
        plant()
        with pytest.raises(TrainingError, match=f"{name} is not a regular file"):
            run_module("nothing", spec, out, on_line=lambda line: None)
        path.rmdir() if path.is_dir() else path.unlink()
    assert mine.read_text() == "precious"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_second_signal_ends_a_child_that_is_writing_its_last_checkpoint(
    number: signal.Signals, tmp_path: Path
) -> None:
    out = Output.at(tmp_path, stage="demo", runtime=runtime_of(stop_grace_seconds=60))
    script = "import time; from tasks.children.child import emit; emit(stoppable=True); emit(step=1); time.sleep(60)"
    environment = {**training_environment(out.runtime.compute), "PYTHONPATH": str(ROOT)}

    def interrupt(message: dict[str, Any]) -> None:
        threading.Timer(1, os.kill, [os.getpid(), number]).start()
        signal.raise_signal(number)

    started = time.monotonic()
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # background jobs may ignore it
    with stoppable(), pytest.raises(KeyboardInterrupt):
        run_child(
            [sys.executable, "-c", script],
            out=out,
            environment=environment,
            log=tmp_path / "log",
            on_line=interrupt,
            stop=tmp_path / "stop",
        )
    signal.signal(signal.SIGINT, before)
    assert (tmp_path / "stop").exists(), "it was asked"
    assert time.monotonic() - started < 30


def test_a_host_is_heard_through_a_launcher_that_puts_its_name_before_each_line(tmp_path: Path) -> None:
    told = "print('worker-1.cluster: {\"step\": 1}')"
    assert run(tmp_path, told) == [{"step": 1}]
    with pytest.raises(ParityError, match="Not equal"):
        run(tmp_path, told + '\nprint(\'worker-2: {"error": "ParityError", "message": "Not equal."}\')')


def test_hosts_of_a_hostfile_get_what_is_set_for_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DS_ENV_FILE", raising=False)
    monkeypatch.setenv("GRISTMILL_FAULTS", "kill:1@3")
    (tmp_path / ".deepspeed_env").write_text("NCCL_DEBUG=INFO\n\n")
    out = Output.at(tmp_path, runtime=runtime_of(threads=1, hostfile="hosts"))
    lines = environment_file(out, {"GRISTMILL_ALIVE": "/scratch/alive"}).read_text().splitlines()
    assert (out.scratch / "environment").stat().st_mode & 0o077 == 0, "the user's own lines may hold tokens"
    for said in (
        "NCCL_DEBUG=INFO",
        "OMP_NUM_THREADS=1",
        "WANDB_MODE=disabled",
        "GRISTMILL_FAULTS=kill:1@3",
        "GRISTMILL_ALIVE=/scratch/alive",
    ):
        assert said in lines
    assert all(line.partition("=")[1] for line in lines)
    assert not [line for line in lines if line.startswith("PATH=")], "each host has its own"


def test_a_typed_error_of_the_child_is_raised_as_it_is(tmp_path: Path) -> None:
    script = (
        "from tasks.children.child import run_as_child\nfrom storage.errors import ParityError\n"
        "def fail(spec): raise ParityError('They differ.', 'Look.')\nrun_as_child(fail)"
    )
    with pytest.raises(ParityError, match=r"They differ\."):
        run(tmp_path, script)


@pytest.mark.parametrize(
    ("script", "named"),
    [
        ("raise RuntimeError('out of luck')", "exit code 1(?s:.*)out of luck"),
        ("import os; os.kill(os.getpid(), 9)", "SIGKILL"),
    ],
)
def test_any_other_end_quotes_the_log_and_names_it(script: str, named: str, tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match=named) as caught:
        run(tmp_path, script)
    assert str(tmp_path / "log") in caught.value.remedy


def test_a_killed_child_names_its_stage_memory_and_what_a_rerun_does(tmp_path: Path) -> None:
    out, environment = Output.at(tmp_path, stage="export"), {"PATH": os.environ["PATH"]}
    told: dict[Keeps, str] = {}
    for keeps in RERUN:
        with pytest.raises(LostProcess, match=r"The child process of export was killed by SIGKILL") as caught:
            run_child(["bash", "-c", "kill -9 $$"], out=out, environment=environment, log=tmp_path / "log", keeps=keeps)
        told[keeps] = caught.value.remedy
        assert "because memory ran out" in told[keeps]
        assert told[keeps].endswith(RERUN[keeps])
    assert "checkpoint" not in told["nothing"]
    with pytest.raises(LostProcess) as caught:
        run_child(["false"], out=out, environment=environment, log=tmp_path / "log")
    assert "memory" not in caught.value.remedy


def test_a_child_that_is_lost_after_its_result_has_done_its_work(tmp_path: Path) -> None:
    out = Output.at(tmp_path)
    spec = ChildSpec(runtime=out.runtime, scratch=out.scratch, out=out.path)
    module = "tests.tasks.children.finished_child"
    assert run_module(module, spec, out, on_line=lambda line: None, ranks=False) == {"loss": 2.5}
    (out.scratch / "early").touch()  # an earlier run's result does not count
    with pytest.raises(LostProcess, match="killed by SIGKILL"):
        run_module(module, spec, out, on_line=lambda line: None, ranks=False)


def test_the_first_crash_of_several_ranks_is_named(tmp_path: Path) -> None:
    rank = "from tasks.children.child import run_as_child\ndef fail(spec): raise OSError('torn')\nrun_as_child(fail)"
    script = (
        f"import os, subprocess, sys\nfor rank in '10':\n"
        f"    subprocess.run([sys.executable, '-c', {rank!r}], env={{**os.environ, 'RANK': rank}})\nsys.exit(1)"
    )
    with pytest.raises(LostProcess) as caught:
        run(tmp_path, script)
    assert caught.value.facts["how"] == "ended with exit code 1, rank 1: OSError: torn"
    assert (tmp_path / "log").read_text().count("OSError: torn") == 2


def test_a_killed_rank_is_named_and_not_what_the_others_say_of_it(tmp_path: Path) -> None:
    (tmp_path / "ranks.py").write_text(
        "import os, signal, time\n"
        "from tasks.children.child import run_as_child\n"
        "def fail(spec):\n"
        "    if os.environ['RANK'] == '1': os.kill(os.getpid(), signal.SIGKILL)\n"
        "    time.sleep(0.5)\n"
        "    raise RuntimeError('connection closed by peer')\n"
        "run_as_child(fail)\n"
    )
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}:{Path.cwd()}"}
    with pytest.raises(LostProcess) as caught:
        run_child(
            training_command("ranks", tmp_path / "spec", runtime_of(processes=2).training, {}),
            out=Output.at(tmp_path),
            environment=environment,
            log=tmp_path / "log",
        )
    assert caught.value.facts["how"] == "ended with exit code 1 (rank 1 was killed by SIGKILL)"
    assert "because memory ran out" in caught.value.remedy


def test_a_child_that_runs_too_long_is_ended_with_its_own_children(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = (
        "import subprocess, sys, time\nfrom tasks.children.child import emit\n"
        "grandchild = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        "open('pid', 'w').write(str(grandchild.pid)); time.sleep(600)"
    )
    monkeypatch.chdir(tmp_path)
    with pytest.raises(TrainingError, match="timeout_minutes"):
        run(tmp_path, script, timeout_minutes=0.05)
    assert have_ended([int((tmp_path / "pid").read_text())])


def test_a_child_that_beats_and_then_falls_silent_hangs_and_is_ended(tmp_path: Path) -> None:
    script = (
        "import time; from tasks.children.child import emit\n"
        "for beat in range(3): emit(heartbeat=1.0, step=beat); time.sleep(0.6)\n"
        "print('last words', flush=True); time.sleep(600)"
    )
    began = time.monotonic()
    with pytest.raises(LostProcess, match="no sign of life for 1 seconds") as caught:
        run(tmp_path, script)
    assert caught.value.facts["how"] == "hung"
    assert caught.value.facts["last_lines"] == ["last words"]
    assert time.monotonic() - began < 60


def test_a_child_that_said_why_it_ends_and_does_not_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tasks.children.supervise.LEAVE_SECONDS", 0.5)
    script = (
        "import time; from tasks.children.child import emit\n"
        "emit(error='OutOfMemory', message='Full.', remedy='Less.', facts={'step': 3})\n"
        "emit(error='TrainingError', message='Another rank, which this one took with it.')\ntime.sleep(600)"
    )
    with pytest.raises(OutOfMemory, match=r"Full\. Less\.") as caught:
        run(tmp_path, script)
    assert caught.value.facts["step"] == 3
    assert caught.value.facts["exit_code"] == -signal.SIGTERM


def test_kill_9_of_the_stage_ends_the_child(tmp_path: Path) -> None:
    child = "import os, time; open('pid', 'w').write(str(os.getpid())); time.sleep(600)"
    parent = (
        "import sys\nfrom pathlib import Path\nfrom tasks.children.supervise import *\n"
        "from tasks.children.environment import *\n"
        "from tasks.stage.output import Output\n"
        f"out = Output.at(Path('.'))\nrun_child([sys.executable, '-c', {child!r}], out=out,"
        " environment=training_environment(out.runtime.compute), log=Path('log'))"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen([sys.executable, "-c", parent], cwd=tmp_path, env=environment)
    deadline = time.monotonic() + 60
    while not (tmp_path / "pid").is_file() or not (tmp_path / "pid").read_text():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    pid = int((tmp_path / "pid").read_text())
    assert is_running(pid)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert have_ended([pid])


def test_nothing_that_a_child_imports_may_call_out() -> None:
    environment = training_environment(runtime_of(device="cpu", threads=1).compute)
    assert environment["HF_HUB_OFFLINE"] == environment["DO_NOT_TRACK"] == "1"
    assert environment["OMP_NUM_THREADS"] == "1"
    assert environment["CUDA_VISIBLE_DEVICES"] == ""
