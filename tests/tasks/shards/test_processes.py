"""Worker processes leave the program that starts them alone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
WORK = """
def double(number, folder):
    return {"doubled": 2 * number}
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
