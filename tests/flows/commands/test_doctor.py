"""`gristmill doctor`: a line a check, the remedy below what failed, and an exit code that a script can trust."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from flows.commands.doctor import conclude, examine, show

ROOT = Path(__file__).parents[3]
QUICK = ["runtime.pretrain.engine=ddp", "runtime.compute.threads=1"]


def console() -> Console:
    return Console(file=io.StringIO(), width=100)


def text_of(made: Console) -> str:
    assert isinstance(made.file, io.StringIO)
    return made.file.getvalue()


@pytest.mark.soak
def test_a_profile_without_data_is_tried_on_made_up_tokens_and_leaves_nothing(tmp_path: Path) -> None:
    terminal = console()
    assert examine(terminal, "smoke", [*QUICK, f"runtime.store={tmp_path / 'store'}"])
    text = text_of(terminal)
    assert "on synthetic tokens" in text
    assert "✓  first loss" in text
    assert "All 14 checks passed" in text
    assert list(tmp_path.iterdir()) == []


def test_a_failed_check_names_the_remedy_and_ends_with_1(tmp_path: Path) -> None:
    settings = [*QUICK, f"runtime.store={tmp_path / 'store'}", "pretrain.learning_rate=1e-7"]
    command = [sys.executable, "-m", "flows.cli", "doctor", "smoke", *(f"--set={one}" for one in settings)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 1
    assert "✗  overfit one batch" in done.stdout
    assert "→ Lower pretrain.learning_rate" in done.stdout
    assert "1 of 14 checks failed: overfit one batch." in done.stdout
    assert "Traceback" not in done.stdout + done.stderr


def test_lines_say_how_it_is_and_the_end_counts() -> None:
    terminal = console()
    good = {"name": "disk", "state": "passed", "value": "9 GB [free]", "remedy": "", "seconds": 0.0}
    slow = {"name": "threads", "state": "advice", "value": "4 on 2", "remedy": "Use two.", "seconds": 1.25}
    bad = {"name": "loader", "state": "failed", "value": "differs", "remedy": "Look.", "seconds": 0.0}
    for line in (good, slow, bad):
        show(terminal, line)
    assert conclude(terminal, [good, slow])
    assert not conclude(terminal, [good, slow, bad])
    text = text_of(terminal)
    assert "9 GB [free]" in text
    assert "→ Use two." in text
    assert "All 2 checks passed, with advice on threads." in text
    assert "1 of 3 checks failed: loader." in text
