"""A run of a deployment whose worker is gone: nobody reads its console's pipe any more."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SPEAKS = """
import sys, time
from pathlib import Path
from flows.deployed.console import outlive_reader, reader_is_gone
outlive_reader()
assert not reader_is_gone()
print("begun", flush=True)
sys.stdin.read()
while not reader_is_gone():
    time.sleep(0.01)
print("goes on", flush=True)
print("goes on", file=sys.stderr, flush=True)
Path(sys.argv[1]).write_text("done")
"""


def test_what_is_written_to_a_console_whose_reader_is_gone_goes_nowhere(tmp_path: Path) -> None:
    done = tmp_path / "done"
    process = subprocess.Popen(
        [sys.executable, "-c", SPEAKS, str(done)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stdout.readline() == b"begun\n"
    process.stdout.close()
    process.stdin.close()
    assert process.wait(60) == 0
    assert done.read_text() == "done"
