"""A signal in the middle of training: the run stops within seconds with a checkpoint of its step, leaves no process,
and the next run goes on from there.

SIGINT comes from a terminal and reaches the whole process group, as does SIGHUP. SIGTERM reaches the command alone.
"""

from __future__ import annotations

import fcntl
import os
import pty
import re
import signal
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest

from storage.runs import history
from storage.runs.record import RunRecord
from storage.store import Store
from tests.pipeline.runs import ROOT, SMALL, mind_signals

MARK = "GRISTMILL_TEST_RUN"


def processes_of(store: Path) -> list[int]:
    """Every process that descends from the run on this store: they inherit its environment."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            inherited = (folder / "environ").read_bytes()
        except OSError:
            continue
        if f"{MARK}={store}".encode() in inherited.split(b"\0"):
            found.append(int(folder.name))
    return found


def begin() -> None:
    """In the child: its standard input is the terminal that it belongs to."""
    mind_signals()
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


@pytest.mark.soak
@pytest.mark.parametrize(
    ("name", "code", "sentence"),
    [
        ("SIGINT", 130, "Interrupted. The same command resumes"),
        pytest.param("SIGHUP", 129, "The terminal was closed. The same command resumes", marks=pytest.mark.soak),
        pytest.param("SIGTERM", 143, "Terminated. The same command resumes", marks=pytest.mark.soak),
        pytest.param("SIGKILL", -9, "", marks=pytest.mark.soak),
    ],
    ids=lambda value: value if str(value).isalpha() else "",
)
def test_a_signal_stops_it_cleanly_and_the_next_run_resumes(
    name: str, code: int, sentence: str, tmp_path: Path
) -> None:
    store = tmp_path / "store"
    sets = (
        SMALL,
        "pretrain.steps=60",
        f"runtime.store={store}",
        f"runtime.training.checkpoint_every={5 if name == 'SIGKILL' else 1000}",
        "runtime.training.log_every=1",
        "runtime.training.stop_grace_seconds=120",  # for a busy machine
        "runtime.pretrain.engine=ddp",
    )
    arguments = [f"--set={value}" for value in sets]
    command = [sys.executable, "-m", "flows.cli", "run", "smoke", "--to=pretrain", *arguments]
    log = tmp_path / "log"
    terminal, end = pty.openpty()
    with log.open("w") as file:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env={**os.environ, MARK: str(store)},
            stdin=end,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=begin,
        )
        deadline = time.monotonic() + 300
        waits_for = "checkpoints/step-*/complete.json" if name == "SIGKILL" else "log.jsonl"
        while not any(path.stat().st_size for path in store.glob(f"work/pretrain-*/scratch/{waits_for}")):
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline
            time.sleep(0.2)
        assert len(processes_of(store)) >= 2, "the run, the training"
        if name == "SIGINT":
            os.write(terminal, b"\x03")  # Ctrl-C
        elif name == "SIGTERM":
            process.send_signal(signal.SIGTERM)
        else:
            os.killpg(process.pid, signal.Signals[name])
        assert process.wait(150) == code
    said = log.read_text()
    assert sentence in said
    if name != "SIGKILL":
        assert "stopping after this step with a checkpoint" in said
    assert "Traceback" not in said
    assert "ERROR" not in said
    (record,) = history.records(Store(str(store)))
    assert isinstance(record, RunRecord)
    assert record.state == "stopped" or name == "SIGKILL"
    deadline = time.monotonic() + 10
    while processes_of(store) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert processes_of(store) == []
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert re.search(r"tokenize .*cached", done.stdout)
    (location,) = Store(str(store)).locations("pretrain")
    manifest = Store(str(store)).manifest(location)
    assert manifest is not None
    assert 0 < manifest.facts["resumed_from_step"] < 60


def test_ctrl_c_before_the_first_stage_ends_with_a_sentence(tmp_path: Path) -> None:
    store = tmp_path / "store"
    command = [sys.executable, "-m", "flows.cli", "run", "smoke", "--to=download", f"--set=runtime.store={store}"]
    log = tmp_path / "log"
    with log.open("w") as file:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env={**os.environ, MARK: str(tmp_path)},
            stdout=file,
            stderr=subprocess.STDOUT,
            preexec_fn=mind_signals,
        )
        of_imports = Path(f"/proc/{process.pid}/maps")
        while "libarrow" not in of_imports.read_text():
            assert process.poll() is None, log.read_text()
            time.sleep(0.005)
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
    said = log.read_text()
    assert "Interrupted" in said
    assert "Traceback" not in said
    assert processes_of(tmp_path) == []
