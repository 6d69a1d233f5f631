"""A process goes on after its reader is gone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPT = """
import os, sys, time
from rich.console import Console
from flows.pages.log import drop_closed_streams
print("begun", flush=True)
sys.stdin.readline()
drop_closed_streams()
Console(file=sys.stderr).print("unread")
print("unread", flush=True)
open(sys.argv[1], "w").write("went on")
"""


def test_a_process_whose_output_nobody_reads_goes_on(tmp_path: Path) -> None:
    command = [sys.executable, "-c", SCRIPT, str(tmp_path / "trace")]
    pipe = subprocess.PIPE
    process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, cwd=Path(__file__).parents[3])
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.readline()
    process.stdout.close()
    process.stderr.close()
    process.stdin.write(b"\n")
    process.stdin.close()
    assert process.wait(60) == 0
    assert (tmp_path / "trace").read_text() == "went on"


def test_output_that_is_read_stays(tmp_path: Path) -> None:
    command = [sys.executable, "-c", SCRIPT, str(tmp_path / "trace")]
    done = subprocess.run(command, input=b"\n", capture_output=True, cwd=Path(__file__).parents[3], check=True)
    assert done.stdout.split() == [b"begun", b"unread"]
