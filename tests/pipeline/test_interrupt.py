"""Ctrl-C in the middle of training: it stops at once, leaves no child, and the next run resumes."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

from storage.store import Store
from tests.pipeline.runs import ROOT, SMALL


def processes_of(scratch: Path) -> list[int]:
    """Every process whose command line names a file under the store."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command = (folder / "cmdline").read_bytes().decode(errors="replace")
        except OSError:
            continue
        if str(scratch) in command and int(folder.name) != os.getpid():
            found.append(int(folder.name))
    return found


def mind_ctrl_c() -> None:
    """A shell has what it starts in the background ignore Ctrl-C, these tests too; Python minds it if it may."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def test_ctrl_c_stops_cleanly_and_the_next_run_resumes(tmp_path: Path) -> None:
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
            command, cwd=ROOT, stdout=file, stderr=subprocess.STDOUT, start_new_session=True, preexec_fn=mind_ctrl_c
        )
        deadline = time.monotonic() + 300
        while not list(store.glob("work/pretrain-*/scratch/checkpoints/step-*/complete.json")):
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline
            time.sleep(0.2)
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
    said = log.read_text()
    assert "The same command resumes" in said
    assert "Traceback" not in said
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
