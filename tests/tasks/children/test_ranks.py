"""The ranks of a training on one host: each knows its rank, and all end together."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
RANK = """
import os, sys, time
rank = os.environ["RANK"]
open(f"{sys.argv[1]}/{rank}", "w").write(" ".join(os.environ[name] for name in sys.argv[2].split(",")))
exec(open(f"{sys.argv[1]}/does").read())
"""
TOLD = "RANK,LOCAL_RANK,WORLD_SIZE,LOCAL_WORLD_SIZE,MASTER_ADDR,MASTER_PORT"
LAUNCHER = """
import sys
from tasks.children import ranks
ranks.missing_gpu = lambda: {why!r}
sys.argv[0] = "ranks"
ranks.main()
"""


@pytest.fixture(params=[None, "there is none"], ids=["new", "forked"])
def why(request: pytest.FixtureRequest) -> str | None:
    """The reason why a GPU is missing, None if there may be one."""
    return request.param  # type: ignore[no-any-return]


def launch(folder: Path, does: str, why: str | None) -> tuple[int, str]:
    (folder / "of_tests.py").write_text(RANK)
    (folder / "does").write_text(does)
    command = [sys.executable, "-c", LAUNCHER.format(why=why), "3", "29511", "of_tests", str(folder), TOLD]
    environment = {**os.environ, "PYTHONPATH": f"{folder}:{ROOT}"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    return done.returncode, done.stderr


def test_each_is_told_who_it_is(why: str | None, tmp_path: Path) -> None:
    assert launch(tmp_path, "", why) == (0, "")
    for rank in range(3):
        assert (tmp_path / str(rank)).read_text() == f"{rank} {rank} 3 3 127.0.0.1 29511"


@pytest.mark.parametrize(("ends", "code"), [("sys.exit(7)", "7"), ("os.kill(os.getpid(), 9)", "-9")])
def test_the_first_that_fails_is_named_and_ends_the_others(
    ends: str, code: str, why: str | None, tmp_path: Path
) -> None:
    began = time.monotonic()
    found, said = launch(tmp_path, f"if rank == '1': {ends}\ntime.sleep(600)", why)
    assert found == 1
    assert f"rank      : 1 (local_rank: 1)\n  exitcode  : {code} " in said
    assert said.count("exitcode") == 1
    assert time.monotonic() - began < 60


def test_a_rank_that_does_not_end_when_it_is_asked_is_killed(why: str | None, tmp_path: Path) -> None:
    deaf = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    short = LAUNCHER.replace("ranks.main()", "ranks.GRACE_SECONDS = 0.5\nranks.main()")
    (tmp_path / "of_tests.py").write_text(RANK)
    wait = "while not os.path.exists(sys.argv[1] + '/deaf'): time.sleep(0.01)\n"
    (tmp_path / "does").write_text(
        f"if rank == '0':\n  {wait}  sys.exit(1)\n{deaf}open(sys.argv[1] + '/deaf', 'w')\ntime.sleep(600)"
    )
    command = [sys.executable, "-c", short.format(why=why), "2", "29511", "of_tests", str(tmp_path), TOLD]
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT}"}
    assert subprocess.run(command, env=environment, capture_output=True, timeout=120).returncode == 1
