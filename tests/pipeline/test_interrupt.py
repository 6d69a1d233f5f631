"""A signal in the middle of training: the run stops at once, leaves no process, and the next run resumes.

So it does when its Prefect server is killed. Each other signal goes to the whole process group, as Ctrl-C at a terminal
does. Prefect's server must not die with it: the run would wait for it for minutes.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

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


@pytest.mark.parametrize(
    ("name", "code", "sentence"),
    [
        ("SIGINT", 130, "Interrupted. The same command resumes"),
        pytest.param("SIGHUP", 129, "The terminal was closed. The same command resumes", marks=pytest.mark.soak),
        pytest.param("SIGTERM", 143, "Terminated. The same command resumes", marks=pytest.mark.soak),
        pytest.param("SIGKILL", -9, "", marks=pytest.mark.soak),
        pytest.param("server", 1, "The Prefect server ended during the run.", marks=pytest.mark.soak),
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
        "runtime.training.checkpoint_every=5",
        "runtime.pretrain.engine=ddp",
    )
    arguments = [f"--set={value}" for value in sets]
    command = [sys.executable, "-m", "flows.cli", "run", "smoke", "--to=pretrain", *arguments]
    log = tmp_path / "log"
    with log.open("w") as file:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env={**os.environ, MARK: str(store)},
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=mind_signals,
        )
        deadline = time.monotonic() + 300
        while not list(store.glob("work/pretrain-*/scratch/checkpoints/step-*/complete.json")):
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline
            time.sleep(0.2)
        assert len(processes_of(store)) >= 3, "the run, Prefect's server, the training"
        if name == "server":
            (server,) = [pid for pid in processes_of(store) if b"uvicorn" in Path(f"/proc/{pid}/cmdline").read_bytes()]
            os.kill(server, signal.SIGKILL)
        else:
            os.killpg(process.pid, signal.Signals[name])
        assert process.wait(30) == code
    said = log.read_text()
    assert sentence in said
    assert "Traceback" not in said
    assert "ERROR" not in said
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
    assert manifest.facts["resumed_from_step"] > 0
