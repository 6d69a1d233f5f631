"""Worker processes leave the program that starts them alone, and end with it without a word."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
WORK = """
import time

def double(number, folder):
    return {"doubled": 2 * number}

def sleep(number, folder):
    folder.parent.joinpath(f"begun-{number}").touch()
    time.sleep(300)
"""
PROGRAM = """
import sys
from pathlib import Path
from tasks.shards import map_shards
from tasks.stage.output import Output
from tasks.stage.runtime import DataRuntime, Runtime
from work import double

print("begun")
out = Output.at(Path(sys.argv[1]), runtime=Runtime(data=DataRuntime(workers=2, executor="process")))
print(sum(result.counts["doubled"] for result in map_shards(double, [1, 2, 3], out, "double")))
"""


def test_a_script_without_a_guard_is_not_begun_again_in_its_workers(tmp_path: Path) -> None:
    (tmp_path / "work.py").write_text(WORK)
    (tmp_path / "program.py").write_text(PROGRAM)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(tmp_path)])}
    command = [sys.executable, str(tmp_path / "program.py"), str(tmp_path / "made")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stdout.split()) == (0, ["begun", "12"]), done.stderr


STOPPED = """
import signal, sys
from pathlib import Path
from tasks.shards import map_shards, processes
from tasks.stage.output import Output
from tasks.stage.runtime import DataRuntime, Runtime
from work import sleep

processes.GRACE = 0.5
signal.signal(signal.SIGTERM, signal.default_int_handler)
out = Output.at(Path(sys.argv[1]), runtime=Runtime(data=DataRuntime(workers=2, executor="process")))
try:
    map_shards(sleep, range(9), out, "sleep")
except KeyboardInterrupt:
    print("stopped")
"""


@pytest.mark.parametrize(
    ("begun", "number", "group"),
    [(False, signal.SIGINT, True), (True, signal.SIGTERM, True), (True, signal.SIGINT, False)],
)
def test_an_interrupt_ends_workers_soon_and_quietly(
    tmp_path: Path, begun: bool, number: signal.Signals, group: bool
) -> None:
    """While they import, and while they work on shards that would take minutes."""
    (tmp_path / "work.py").write_text(WORK)
    (tmp_path / "program.py").write_text(STOPPED)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(tmp_path)])}
    command = [sys.executable, str(tmp_path / "program.py"), str(tmp_path / "made")]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=environment, start_new_session=True, stdout=pipe, stderr=pipe, text=True) as run:
        children = Path(f"/proc/{run.pid}/task/{run.pid}/children")
        try:
            while len(children.read_text().split()) < 3 or (begun and len(list(tmp_path.rglob("begun-*"))) < 2):
                time.sleep(0.01)  # for two workers and the process that looks after their semaphores
            (os.killpg if group else os.kill)(run.pid, number)
            assert run.communicate(timeout=20) == ("stopped\n", "")
        finally:
            run.kill()
