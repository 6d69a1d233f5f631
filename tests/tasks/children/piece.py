"""A piece of work that reports where it runs, waits for the others to run too if told to, and may fail."""

from __future__ import annotations

import os
import time
from pathlib import Path

from storage.errors import ParityError
from tasks.children.child import emit
from tasks.children.spec import ChildSpec

SECONDS = 60


def run(path: Path) -> None:
    """Write the process, its GPU, its threads, and whether the others were running."""
    spec = ChildSpec.model_validate_json(path.read_text())
    emit(done=1, total=2, note=spec.scratch.name)
    (spec.scratch / "running").touch()
    others = [Path(line) for line in (spec.scratch / "waits_for").read_text().split()]
    ends = time.monotonic() + SECONDS
    while not all((other / "running").exists() for other in others) and time.monotonic() < ends:
        time.sleep(0.01)
    if (spec.scratch / "fails").exists():
        raise ParityError("This piece fails.", "Mend it.")
    if (spec.scratch / "hangs").exists():
        time.sleep(SECONDS)
    threads = [spec.runtime.compute.cpu_threads(), int(os.environ["OMP_NUM_THREADS"])]
    spec.finish({"pid": os.getpid(), "gpu": os.environ.get("CUDA_VISIBLE_DEVICES"), "threads": threads})
