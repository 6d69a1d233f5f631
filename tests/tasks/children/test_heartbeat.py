"""Ranks that the kernel does not tie to their stage, as on other hosts: they end soon after it, and only then."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tasks.children.heartbeat import VARIABLE, shown_alive

ROOT = Path(__file__).parents[3]
PATIENCE = 2.0
RANK = f"""
import tasks.children.heartbeat as alive
alive.POLL_SECONDS, alive.PATIENCE_SECONDS = 0.1, {PATIENCE}
alive.end_with_stage()
import time
time.sleep(120)
"""
STAGE = """
import sys, time
from pathlib import Path
from tasks.children.heartbeat import shown_alive
with shown_alive(Path(sys.argv[1]), "demo"):
    print("begun", flush=True)
    time.sleep(120)
"""
BUSY = """
import sys
import tasks.children.heartbeat as alive
alive.BEAT_SECONDS, sys.argv[1:] = 0.2, [{file!r}, "name"]
alive.main()
"""


def rank(file: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", RANK],
        cwd=ROOT,
        env=os.environ | {VARIABLE: str(file)},
        stderr=subprocess.PIPE,
        text=True,
    )


def beats(file: Path) -> subprocess.Popen[bytes]:
    """The writer of a stage, with shorter intervals."""
    return subprocess.Popen([sys.executable, "-c", BUSY.format(file=str(file))], cwd=ROOT)


def test_a_rank_ends_when_its_stage_was_killed_and_says_why(tmp_path: Path) -> None:
    file = tmp_path / "alive"
    stage = subprocess.Popen([sys.executable, "-c", STAGE, str(file)], cwd=ROOT, stdout=subprocess.PIPE)
    assert stage.stdout is not None
    stage.stdout.readline()
    before = file.read_text()
    deadline = time.monotonic() + 20
    while file.read_text() in (before, "") and time.monotonic() < deadline:
        time.sleep(0.1)
    other = rank(file)
    try:
        stage.kill()
        stage.wait()
        _, said = other.communicate(timeout=30)
    finally:
        other.kill()
    assert other.returncode == -signal.SIGKILL
    assert "has ended or restarted" in said
    last = file.read_text()
    time.sleep(0.5)
    assert file.read_text() == last, "what writes outlived its stage"


def test_a_rank_whose_scratch_folder_is_gone_ends(tmp_path: Path) -> None:
    other = rank(tmp_path / "alive")
    assert other.wait(30) == -signal.SIGKILL
    other.communicate()


@pytest.mark.soak
def test_a_file_system_that_stalls_ends_no_rank(tmp_path: Path) -> None:
    """A pipe without a writer: opening it blocks."""
    file = tmp_path / "alive"
    os.mkfifo(file)
    other = rank(file)
    try:
        time.sleep(3 * PATIENCE)
        assert other.poll() is None
        kept = tmp_path / "kept"
        file.rename(kept)
        writer = beats(file)
        with kept.open("w") as pipe:  # the blocked read returns
            pipe.write("name 1")
        time.sleep(2 * PATIENCE)
        assert other.poll() is None
        writer.kill()
        writer.wait()
        assert other.wait(30) == -signal.SIGKILL
    finally:
        other.kill()
        other.communicate()


def test_a_rank_ends_when_the_stage_has_begun_another_training(tmp_path: Path) -> None:
    file = tmp_path / "alive"
    with shown_alive(file, "demo"):
        other = rank(file)
        time.sleep(PATIENCE / 2)
        assert other.poll() is None
    with shown_alive(file, "demo"):
        assert other.wait(PATIENCE) == -signal.SIGKILL
    other.communicate()


def test_nothing_is_left_of_it_afterwards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    with shown_alive(tmp_path / "alive", "demo"):
        assert (tmp_path / "alive").read_text()
    assert not (tmp_path / "alive").exists()
