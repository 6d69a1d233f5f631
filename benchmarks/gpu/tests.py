"""Section: the tests that need a GPU (`pytest -m gpu`), a row for each as soon as it is over.

They run in a process of their own, which a crash may end: `python -m benchmarks.gpu.tests` prints outcomes as JSON.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.gpu.bench import Bench
from benchmarks.measure import ROOT, end_as_interrupted, ended

NAME = "tests"
FIRST = (
    "test_attention",
    "test_precision",
    "test_runs",
    "test_resume",
)  # as time may run out: fewest tests of most code
DEVICE_VARIABLE = "GRISTMILL_TEST_DEVICE"  # where tests/gpu runs: cuda, or cpu to try the tests themselves
DATA_VARIABLE = "GRISTMILL_TEST_DATA"  # the folder of their data, which the first run makes


def run(bench: Bench) -> None:
    """Run them until the time is over."""
    command = [sys.executable, "-m", "benchmarks.gpu.tests"]
    variables = {**os.environ, DEVICE_VARIABLE: bench.device, DATA_VARIABLE: str(bench.data / "tests")}
    process = subprocess.Popen(command, cwd=ROOT.parent, env=variables, stdout=subprocess.PIPE, text=True)
    with process, process.stdout or open(os.devnull) as outcomes, ended(process, max(1.0, bench.left)):
        for line in outcomes:
            row = json.loads(line)
            bench.results.row(NAME, **row)
            bench.results.failed += row["outcome"] == "failed"
    if bench.left <= 0:
        bench.results.missed(NAME, "the rest of the tests")
    elif process.returncode not in (0, 1):  # 1: some failed, which is counted
        bench.results.failure(NAME, f"pytest ended with {process.returncode}")


class Outcomes:
    """A plugin of pytest that prints each test's outcome, and what it said if it did not pass."""

    def __init__(self, file: Any) -> None:
        self.file = file

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.when != "call" and report.passed:
            return
        said = ""
        if report.skipped:
            said = str(report.longrepr[2])
        elif report.failed:
            crash = getattr(report.longrepr, "reprcrash", None)
            said = str(crash.message if crash else report.longrepr).strip()
        name = report.nodeid.rpartition("/")[2]
        row = {"test": name, "outcome": report.outcome, "seconds": round(report.duration, 2), "said": said[:300]}
        self.file.write(json.dumps(row) + "\n")
        self.file.flush()


def _child() -> int:
    import pytest

    end_as_interrupted()
    said = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what pytest and the tests say is for people
    files = sorted(Path("tests/gpu").glob("test_*.py"), key=_order)
    return int(pytest.main(["-m", "gpu", *map(str, files)], plugins=[Outcomes(said)]))


def _order(path: Path) -> int:
    return FIRST.index(path.stem) if path.stem in FIRST else len(FIRST)


if __name__ == "__main__":
    sys.exit(_child())
