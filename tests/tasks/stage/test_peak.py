"""The peak of a stage is that of the stage, and not of what the process did before it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from storage.store import Store
from tasks.shards import map_shards
from tasks.stage import machine
from tasks.stage.output import Output
from tasks.stage.session import Session, open_session
from tests.runtimes import runtime_of

SIZE = 300_000_000  # bytes
ROOT = Path(__file__).parents[3]


def take(size: int, folder: Path | None = None) -> dict[str, int]:
    """Hold this number of bytes for a moment."""
    return {"sum": int(np.ones(size, np.uint8)[::4096].sum())}


def test_what_was_before_is_not_counted() -> None:
    take(SIZE)
    peak = machine.Peak()
    before = peak.bytes
    take(SIZE // 3)
    assert before + 0.9 * SIZE / 3 < peak.bytes < before + 0.9 * SIZE


def test_one_peak_in_another_hides_nothing_from_it() -> None:
    outer = machine.Peak()
    begun = outer.bytes
    take(SIZE)
    inner = machine.Peak()
    take(SIZE // 3)
    assert inner.bytes < begun + 0.9 * SIZE < outer.bytes


def a_child_counts_where_it_ends() -> None:
    first = machine.Peak()
    subprocess.run([sys.executable, "-c", f"print(len(b'x' * {2 * SIZE}))"], check=True, stdout=subprocess.DEVNULL)
    assert first.bytes > 1.9 * SIZE
    assert machine.Peak().bytes < 1.9 * SIZE


def a_worker_counts_for_the_map_that_it_works_in(folder: Path) -> None:
    out = Output.at(folder, runtime=runtime_of(workers=2))
    with open_session(Session(Store(str(folder / "store")), out.runtime, "tiny")):
        found = []
        for name, size in (("large", SIZE), ("small", 1)):
            peak = machine.Peak()
            map_shards(take, [size, size], out, name)
            found.append(peak.bytes)
    assert found[0] > found[1] + SIZE / 2


@pytest.mark.parametrize(
    "call", ["a_child_counts_where_it_ends()", "a_worker_counts_for_the_map_that_it_works_in(Path('work'))"]
)
def test_in_a_small_process(call: str, tmp_path: Path) -> None:
    """Beside this one, which other tests have made large, nobody else would be the largest."""
    script = f"from tests.tasks.stage.test_peak import *\n{call}"
    path = os.pathsep.join([str(ROOT), *sys.path])
    subprocess.run([sys.executable, "-c", script], cwd=tmp_path, env={**os.environ, "PYTHONPATH": path}, check=True)


def test_what_was_freed_is_given_back() -> None:
    """Pieces below the size for which the C library asks the system each time, with one in use behind them."""
    pieces = [np.ones(100_000, np.uint8) for _ in range(1000)]
    last = np.ones(100_000, np.uint8)
    held = resident()
    del pieces
    machine.give_back()
    assert resident() < held - 50e6
    assert last.all()


def resident() -> int:
    status = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in status if line.startswith("VmRSS"))
