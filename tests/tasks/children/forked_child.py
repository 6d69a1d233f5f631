"""A child that reports its state, waits if a file in its scratch folder says so, and ends as another file says."""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from pathlib import Path

import numpy as np

from tasks.children.child import run_as_child
from tasks.children.spec import ChildSpec


def describe(path: Path) -> None:
    """Write the state that each process has of its own."""
    spec = ChildSpec.model_validate_json(path.read_text())
    print("noise")
    times = spec.scratch / "times"
    times.write_text(f"{times.read_text() if times.exists() else ''}{os.getpid()}\n")
    while (spec.scratch / "wait").exists():
        time.sleep(0.01)
    if (spec.scratch / "end").exists():
        exec((spec.scratch / "end").read_text())
    spec.finish(
        {
            "pid": os.getpid(),
            "parent": os.getppid(),
            "group": os.getpgid(0),
            "folder": os.getcwd(),
            "main": sys.modules["__main__"].__spec__.name,  # type: ignore[union-attr]
            "words": sys.argv,
            "command": Path("/proc/self/cmdline").read_text().rstrip("\0").split("\0"),
            "own": os.environ.get("GRISTMILL_FAULTS"),
            "key": os.environ.get("JUDGE_API_KEY"),
            "shared": os.environ.get("OMP_NUM_THREADS"),
            "drawn": [random.random(), float(np.random.random()), *drawn_by_torch()],
            "interrupt": signal.getsignal(signal.SIGINT) is signal.default_int_handler,
            "open": sorted(
                os.readlink(f"/proc/self/fd/{number}").split(":")[0] for number in range(3, 12) if _open(number)
            ),
        }
    )


def drawn_by_torch() -> list[float]:
    """A random number, if the server has imported torch."""
    return [float(sys.modules["torch"].rand(1))] if "torch" in sys.modules else []


def _open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False
    return True


if __name__ == "__main__":
    run_as_child(describe)
